"""Damaged, edited and half-written runs: resumed to the same weights, or refused in one line."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from turnwise.errors import InputError
from turnwise.files import write_atomic
from turnwise.models import create_model
from turnwise.runs import Run
from turnwise.runs.resume import newest_checkpoint, require_fitting
from turnwise.runs.train import train

LINE = r"^[^\n]{1,500}$"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from conftest import QUICK_RECIPE

    from turnwise.training.recipe import make_recipe

    recipe = make_recipe(QUICK_RECIPE, ["trainer.max_epochs=1", "model.depth=1"])
    return train(recipe, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a run of one epoch, which may be damaged."""
    shutil.copytree(finished.path, tmp_path / "run")
    return Run(tmp_path / "run")


def resume(run, epochs=2):
    return train(run.read_recipe([f"trainer.max_epochs={epochs}"]), run.path, resume=True)


def weights(run, name="last"):
    return run.read_checkpoint(name)["state_dict"]


def rewrite(path, change):
    """Read a checkpoint, change it, and write it."""
    checkpoint = torch.load(path, weights_only=True)
    torch.save(change(checkpoint) or checkpoint, path)


@pytest.mark.parametrize("name", ["last", "best"])
def test_damaged_checkpoints_raise_input_errors_only(run, name):
    """Of 900 mutants 212 once ended in other exceptions: bytes flipped, cut, zeroed, inserted."""
    path, generator = run.checkpoint(name), random.Random(0)
    whole = path.read_bytes()
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        # three in four where the structure is: the first bytes and the directory at the end
        ends = [generator.randrange(2000), len(whole) - 1 - generator.randrange(4000)]
        at = generator.choice([*ends, *ends, *ends, generator.randrange(len(whole))])
        kind = generator.randrange(4)
        if kind == 0:
            content[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            content[at : at + 16] = bytes(16)
        else:
            content[at:at] = generator.randbytes(9)
        path.write_bytes(content)
        try:
            run.read_checkpoint(name)
        except InputError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)
            refused += 1
    assert refused > 20


def other_model(checkpoint):
    state = create_model("vit", width=16, depth=1, heads=2).state_dict()
    return checkpoint | {"state_dict": {f"model.{key}": value for key, value in state.items()}}


def only_weights(checkpoint):
    return {"state_dict": checkpoint["state_dict"]}


def odd_loops(checkpoint):
    return checkpoint | {"loops": {"fit_loop": 3}}


def odd_optimiser(checkpoint):
    return checkpoint | {"optimizer_states": [{"state": {}}]}


def odd_callbacks(checkpoint):
    return checkpoint | {"callbacks": [1]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_model, r"is the checkpoint of another model \(model\..* differs\)"),
        (only_weights, r"holds weights but not the state of a training"),
        (odd_loops, r"does not hold the state of this training"),
        (odd_optimiser, r"does not hold the state of this training"),
        (odd_callbacks, r"does not hold the state of this training"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(run, change, words):
    rewrite(run.checkpoint("last"), change)
    with pytest.raises(InputError, match=words) as refused:
        resume(run)
    assert "\n" not in str(refused.value)
    assert run.checkpoint("last").exists(), "a resumed run is never removed"


@pytest.mark.parametrize(
    "content",
    [b"\x00\xff\xfe", b"when,what\n1,2\n", b"epoch,step,extra\n0,1,2\n", b"epoch\nfirst\n",
     b"epoch,step\n0,1,2,3\n", b'epoch\n"0\n'],
)  # fmt: skip
def test_a_table_with_other_columns_is_refused_in_one_line(run, content):
    (run.path / "metrics.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"metrics\.csv is no table of epochs; restore it") as bad:
        resume(run)
    assert "\n" not in str(bad.value)


def test_a_damaged_best_checkpoint_is_replaced_by_the_last(run, capsys):
    score = run.metrics[0]["val_accuracy"]
    run.checkpoint("best").write_bytes(run.checkpoint("best").read_bytes()[:999])
    resume(run, epochs=1)
    assert "best.ckpt was damaged or missing" in capsys.readouterr().err
    assert all(torch.equal(v, weights(run, "last")[k]) for k, v in weights(run, "best").items())
    resume(run, epochs=3)
    scores = [row["val_accuracy"] for row in run.metrics]
    assert scores[0] == score
    assert run.read_checkpoint("best")["epoch"] == scores.index(max(scores))


@pytest.mark.parametrize("with_metrics", [True, False])
def test_a_run_killed_before_its_first_checkpoint_starts_again(run, finished, capsys, with_metrics):
    """The weights are those of the run that was not killed."""
    shutil.rmtree(run.path / "checkpoints")
    shutil.rmtree(run.model_folder)
    if not with_metrics:
        (run.path / "metrics.csv").unlink()
    with pytest.raises(InputError, match=r"without a checkpoint.*, or resume it\.$"):
        train(run.recipe, run.path)
    resume(run, epochs=1)
    assert "its training starts again" in capsys.readouterr().err
    assert all(torch.equal(v, weights(finished)[k]) for k, v in weights(run).items())
    assert [row["epoch"] for row in run.metrics] == [0]


def test_a_failed_resumption_keeps_the_folder(run):
    shutil.rmtree(run.path / "checkpoints")
    shutil.rmtree(run.model_folder)
    with pytest.raises(InputError, match="these trainer settings cannot be used"):
        train(run.read_recipe(["trainer.accelerator=tpu"]), run.path, resume=True)
    assert run.exists


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("learning_rate", "0.003", "0.004"), ("width", "16", "32"), ("seed", "0", "1")],
)
def test_an_edited_recipe_is_noticed(run, key, before, after):
    text = run.recipe_file.read_text()
    assert f"{key}: {before}\n" in text
    run.recipe_file.write_text(text.replace(f"{key}: {before}\n", f"{key}: {after}\n", 1))
    with pytest.raises(InputError, match=rf"was changed after .*{key} was {before} and is {after}"):
        resume(run)


def test_a_run_of_an_earlier_version_does_not_know_its_recipe(run):
    path = run.path / "environment.json"
    environment = json.loads(path.read_text())
    del environment["recipe"]
    path.write_text(json.dumps(environment))
    run.recipe_file.write_text(run.recipe_file.read_text().replace("seed: 0\n", "seed: 1\n"))
    assert len(resume(run).metrics) == 2


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_temporary_files_of_dead_processes_are_removed(run, tmp_path):
    dead, alive = dead_process(), os.getppid()
    folder = run.path / "checkpoints"
    for name in (f".last.{dead}.ckpt", f".best.{dead}.ckpt", f".best.{alive}.ckpt", ".best.x.ckpt"):
        (folder / name).touch()
    resume(run)
    left = {path.name for path in folder.iterdir()}
    assert left == {"best.ckpt", "last.ckpt", f".best.{alive}.ckpt", ".best.x.ckpt"}
    (tmp_path / f".table.{dead}.csv").touch()
    write_atomic(tmp_path / "table.csv", b"1")
    assert not (tmp_path / f".table.{dead}.csv").exists()


def test_two_processes_cannot_resume_one_run(run):
    with run.lock(), pytest.raises(InputError, match="is being trained by another process"):
        resume(run)


def train_until_killed(recipe, folder, step):
    """Train in a fork that is killed when a step begins; every earlier step has a checkpoint."""
    from turnwise.training.module import SupervisedModule

    process = os.fork()
    if process == 0:
        try:
            training_step = SupervisedModule.training_step

            def die(self, batch, batch_idx):
                if self.global_step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return training_step(self, batch, batch_idx)

            SupervisedModule.training_step = die
            train(recipe, folder)
        finally:
            os._exit(1)  # never back into pytest
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture(scope="module")
def eventful():
    """A recipe of three epochs of nine steps, with every source of randomness, and its run."""
    from conftest import QUICK_RECIPE

    from turnwise.training.recipe import make_recipe

    return make_recipe(QUICK_RECIPE, [
        "trainer.max_epochs=3", "trainer.checkpoint_minutes=1e-9", "model.depth=1",
        "model.drop_path=0.2", "optimisation.ema=0.9", "optimisation.mixup=0.4",
    ])  # fmt: skip


def without_seconds(run):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics]


@pytest.fixture(scope="module")
def undisturbed(eventful, tmp_path_factory):
    return train(eventful, tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_run_killed_within_an_epoch_continues_there(eventful, undisturbed, tmp_path, epochs):
    """To the same weights and metrics, without another look at images of the epoch."""
    steps = int(undisturbed.metrics[0]["step"])
    at = epochs * steps + steps // 2
    run = Run(tmp_path / "killed")
    train_until_killed(eventful, run.path, at)
    assert (
        newest_checkpoint(run) == "partial" and run.read_checkpoint("partial")["global_step"] == at
    )
    assert run.checkpoint("last").is_file() == bool(epochs)
    shutil.copy(run.checkpoint("partial"), tmp_path)
    resumed = count_steps(lambda: resume(run, epochs=3))
    assert resumed == 3 * steps - at
    assert not run.checkpoint("partial").exists()
    for name in ("last", "best"):
        one, other = weights(run, name), weights(undisturbed, name)
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    assert without_seconds(run) == without_seconds(undisturbed)
    shutil.copy(tmp_path / "partial.ckpt", run.checkpoint("partial"))
    assert newest_checkpoint(run) == "last", "one that was left behind is older than the epoch"


def count_steps(work):
    from turnwise.training.module import SupervisedModule

    with patch.object(SupervisedModule, "training_step", autospec=True,
                      side_effect=SupervisedModule.training_step) as step:  # fmt: skip
        work()
    return step.call_count


def test_a_damaged_partial_checkpoint_costs_no_more_than_its_epoch(run, finished):
    run.checkpoint("partial").write_bytes(b"PK")
    assert newest_checkpoint(run) == "last"
    run.checkpoint("last").unlink()
    with pytest.raises(InputError, match=r"partial\.ckpt is damaged"):
        resume(run)


def test_a_whole_checkpoint_fits(run, finished):
    require_fitting(run, finished.model(), newest_checkpoint(run))
