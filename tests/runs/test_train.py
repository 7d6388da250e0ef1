"""From a recipe to a run folder; killed and resumed; on two processes; on a disk that is full."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import patch

import lightning
import pytest
import torch
import yaml
from PIL import Image

import turnwise
from turnwise.data import load_dataset
from turnwise.errors import InputError
from turnwise.models import create_model, save
from turnwise.runs import Run
from turnwise.runs.run import load_recipe_data
from turnwise.runs.train import build_model, train
from turnwise.training.module import SupervisedModule
from turnwise.training.recipe import make_recipe

ONE_VALUE = "Expected more than 1 value per channel when training, got input size [1, 8, 1, 1]"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # two runs side by side on two cores


def command(*words):
    return [sys.executable, "-m", "turnwise", "train", *map(str, words)]


def weights(run, name="last"):
    return run.read_checkpoint(name)["state_dict"]


def epoch_of(run, name):
    return run.read_checkpoint(name)["epoch"]


def column(run, name):
    return [row[name] for row in run.metrics]


@pytest.fixture
def recipe_file(tmp_path, quick):
    path = tmp_path / "recipe.yaml"
    path.write_text(quick("trainer.max_epochs=4").yaml())
    return path


def test_a_run_stores_everything_that_is_needed(tmp_path, quick):
    started = []
    run = train(quick(), tmp_path / "run", command="turnwise train x.yaml", on_start=started.append)
    assert started == [run]
    inferred = quick("data.fill=zeros", "trainer.select=accuracy")
    assert run.recipe.plain() == inferred.plain()
    assert column(run, "epoch") == [0, 1]
    assert run.environment["command"] == "turnwise train x.yaml"
    assert list(run.training_files().logs.glob("events.*"))
    model, best = run.model(), max(column(run, "val_accuracy"))
    assert model.classes == tuple("0123456789")
    val = load_dataset("digits").val
    predicted = model(model.preprocess(val.images.float() / 255)).argmax(-1)
    assert (predicted == val.labels).double().mean().item() == pytest.approx(best, abs=1e-6)


def test_training_lowers_the_loss_and_keeps_the_model_equivariant(tmp_path, quick):
    run = train(quick("trainer.max_epochs=3", "optimisation.batch_size=100"), tmp_path / "run")
    losses = column(run, "train_loss")
    assert losses[-1] < losses[0] < 2.5
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    turnwise.assert_equivariant(run.model().double(), "C4", images)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path, quick):
    runs = [train(quick(f"seed={seed}", "trainer.max_epochs=1"), tmp_path / str(i))
            for i, seed in enumerate((0, 0, 1))]  # fmt: skip
    first, again, other = (weights(run)["model.model.head.weight"] for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_killed_run_resumes_to_the_same_weights(tmp_path, quick):
    """SIGKILL during an epoch; with drop path, augmented images and averaged weights."""
    path = tmp_path / "recipe.yaml"
    full = ("trainer.max_epochs=4", "optimisation.ema=0.9", "model.drop_path=0.2",
            "optimisation.batch_size=40")  # fmt: skip
    path.write_text(quick(*full).yaml())
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    first = subprocess.Popen(command(path, "--output", whole.path), env=ENVIRONMENT)
    second = subprocess.Popen(command(path, "--output", killed.path), env=ENVIRONMENT)
    deadline = time.monotonic() + 120
    while not killed.is_resumable and time.monotonic() < deadline:
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    second.wait()
    assert 1 <= len(killed.metrics) < 4, "the run must be killed before its end"
    assert not killed.model_folder.exists()
    subprocess.run(command("--resume", killed.path), check=True, env=ENVIRONMENT)
    assert first.wait() == 0
    for name in ("last", "best"):
        one, other = weights(whole, name), weights(killed, name)
        assert all(torch.equal(one[key], other[key]) for key in one)
    figures = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics]
        for run in (whole, killed)
    ]
    assert figures[0] == figures[1]


def test_two_processes_have_the_losses_of_one(tmp_path, recipe_file):
    """Gloo on the CPU: the same global batches, so the same losses to 1e-5."""
    for devices in (1, 2):
        words = (recipe_file, f"trainer.devices={devices}", "--output", tmp_path / str(devices))
        subprocess.run(command(*words), check=True, env=ENVIRONMENT, capture_output=True)
    one, two = Run(tmp_path / "1"), Run(tmp_path / "2")
    assert len(one.metrics) == len(two.metrics) == 4
    for name in ("train_loss", "val_loss", "val_accuracy"):
        assert column(one, name) == pytest.approx(column(two, name), abs=1e-5)
    assert two.model().classes


def test_runs_are_numbered(tmp_path, quick):
    recipe = quick("trainer.max_epochs=1")
    runs = [train(recipe, tmp_path / "logs" / "x", numbered=True) for _ in range(2)]
    assert [run.path.name for run in runs] == ["version_0", "version_1"]


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path, quick):
    with pytest.raises(InputError, match="no folder"):
        train(quick("data.name=folder:nowhere"), tmp_path / "logs" / "x", numbered=True)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tmp_path, quick):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"exists; choose another folder\.$"):
        train(quick(), tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_fewer_epochs_than_were_trained_are_reported_in_one_line(tmp_path, quick):
    run = train(quick("trainer.max_epochs=4"), tmp_path / "run")
    with pytest.raises(InputError, match="max_epochs"):
        train(quick("trainer.max_epochs=1"), run.path, resume=True)
    assert run.model()
    assert run.recipe.trainer.max_epochs == 4


def test_new_settings_are_stored_even_if_the_resumed_run_fails(tmp_path, quick):
    """Otherwise they would have to be given again to resume it again."""
    run = train(quick("trainer.max_epochs=1"), tmp_path / "run")

    def fail(*_):
        raise ZeroDivisionError

    failing = patch.object(SupervisedModule, "training_step", fail)
    with failing, pytest.raises(ZeroDivisionError):
        train(quick("trainer.max_epochs=3"), run.path, resume=True)
    assert run.recipe.trainer.max_epochs == 3
    train(run.recipe, run.path, resume=True)
    assert len(run.metrics) == 3


def test_a_batch_of_one_with_batch_norm_is_reported_in_one_line(tmp_path):
    recipe = make_recipe(
        {"model": {"name": "small_alexnet"}, "data": {"name": "digits", "fraction": 0.01}},
        ["optimisation.batch_size=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"],
    )
    with (
        patch.object(lightning.Trainer, "fit", side_effect=ValueError(ONE_VALUE)),
        pytest.raises(InputError, match=r"another optimisation\.batch_size"),
    ):
        train(recipe, tmp_path / "run")


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path, quick):
    with pytest.raises(InputError, match="has no checkpoint to resume from: no epoch was finished"):
        train(quick(), tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused_before_training(tmp_path, quick):
    last = Run(tmp_path).checkpoint("last")
    last.parent.mkdir()
    last.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"last\.ckpt is damaged or no checkpoint"):
        train(quick(), tmp_path, resume=True)


def test_a_loss_that_is_not_a_number_leaves_no_folder(tmp_path, quick):
    recipe = quick(
        "optimisation.learning_rate=1e9", "optimisation.gradient_clip=null",
        "optimisation.batch_size=100",
    )  # fmt: skip
    with pytest.raises(InputError, match="training diverges: the gradients of 5 steps"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_device_is_reported_in_one_line(tmp_path, quick):
    with pytest.raises(InputError, match="these trainer settings cannot be used here"):
        train(quick("trainer.accelerator=tpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_created(tmp_path, quick):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*; choose another path\.$"):
        train(quick(), tmp_path / "file" / "run")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB; mounting one takes privileges."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk; test_files.py simulates one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing(small_disk, quick):
    with pytest.raises(InputError, match=r"cannot write .*ckpt: no space left on device"):
        train(quick("model.width=64"), small_disk / "run")
    assert list(small_disk.iterdir()) == []


def test_a_batch_that_does_not_divide_among_the_processes(tmp_path, recipe_file):
    words = (recipe_file, "trainer.devices=3", "--output", tmp_path / "run")
    ended = subprocess.run(command(*words), env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "batch_size = 400 must be a multiple of 3" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_the_stored_recipe_is_plain_yaml(tmp_path, quick):
    run = train(quick("trainer.max_epochs=1"), tmp_path / "run")
    assert yaml.safe_load(run.recipe_file.read_text())["optimisation"]["schedule"] == "cosine"


def interrupted(run, words, stop):
    """Train in a process, call `stop` with it after the first epoch, and return what it printed."""
    process = subprocess.Popen(
        command(*words, "--output", run.path), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        # background processes of a shell ignore interruptions, and their children would, too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        try:
            while not run.is_resumable and process.poll() is None:
                time.sleep(0.02)
            stop(process)
            _, printed = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, printed


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupted_run_can_be_resumed(tmp_path, recipe_file, name):
    """Ctrl-C, the end of a job, or a closed terminal: exit status 130 and one line."""
    run = Run(tmp_path / "run of today")
    words = (recipe_file, "optimisation.batch_size=20")
    status, printed = interrupted(run, words, lambda p: p.send_signal(getattr(signal, name)))
    assert status == 130
    assert "turnwise train: interrupted; continue with: turnwise train --resume '" in printed
    assert "Traceback" not in printed
    if name != "SIGINT":
        return
    subprocess.run(command("--resume", run.path), check=True, env=ENVIRONMENT, capture_output=True)
    assert len(run.metrics) == 4


def child_of(process):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
    return int(listed.stdout.split()[0])


@pytest.mark.parametrize("name", ["SIGTERM to all", "SIGKILL to rank 1"])
def test_two_processes_that_are_stopped_end_in_one_line(tmp_path, recipe_file, name):
    run = Run(tmp_path / "run")
    words = (recipe_file, "optimisation.batch_size=20", "trainer.devices=2", "trainer.max_epochs=9")

    def stop(process):
        if name == "SIGKILL to rank 1":
            os.kill(child_of(process), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGTERM)

    status, printed = interrupted(run, words, stop)
    last = printed.splitlines()[-1]
    assert status == 130
    assert last.startswith("turnwise train: interrupted; ")
    assert last.endswith(f"continue with: turnwise train --resume {run.path}")
    assert "Traceback" not in printed and "bug in turnwise" not in printed
    assert not run.model_folder.exists()


@pytest.mark.parametrize(("precision", "allowed"), [("bf16-mixed", True), ("32-true", False)])
def test_tf32_is_allowed_only_under_mixed_precision(
    tmp_path, quick, monkeypatch, precision, allowed
):
    seen = []

    def fit(*_, **__):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        raise KeyboardInterrupt

    monkeypatch.setattr(lightning.Trainer, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        train(quick(f"trainer.precision={precision}"), tmp_path / "run")
    assert seen == [allowed]


@pytest.fixture
def past_its_best(tmp_path, quick):
    """A run whose validation accuracy fell before its last epoch: its steps are too large."""
    recipe = quick("trainer.max_epochs=3", "optimisation.schedule=constant",
                   "optimisation.learning_rate=0.03", "optimisation.warmup_epochs=0",
                   "model.qk_norm=false")  # fmt: skip
    for seed in range(9):
        run = train(replace(recipe, seed=seed), tmp_path / f"past{seed}")
        if epoch_of(run, "best") < 2:
            return run
    raise AssertionError("with these seeds the last epoch is always the best")


def test_last_is_the_last_epoch_and_best_the_best(past_its_best):
    scores = column(past_its_best, "val_accuracy")
    assert epoch_of(past_its_best, "best") == scores.index(max(scores)) < 2
    assert epoch_of(past_its_best, "last") == 2


def test_resuming_a_finished_run_trains_no_epoch(past_its_best):
    before = past_its_best.metrics
    train(past_its_best.recipe, past_its_best.path, resume=True)
    assert past_its_best.metrics == before


def test_a_run_in_another_folder_keeps_its_best(past_its_best):
    """Resumed there for one more epoch, best is still the best of all epochs."""
    run = Run(past_its_best.path.rename(past_its_best.path.parent / "renamed"))
    train(run.read_recipe(["trainer.max_epochs=4"]), run.path, resume=True)
    scores = column(run, "val_accuracy")
    assert len(scores) == 4
    assert epoch_of(run, "best") == scores.index(max(scores))
    assert epoch_of(run, "last") == 3


def test_a_folder_of_images_is_stored_by_its_full_path(tmp_path, quick, monkeypatch):
    for label, name in enumerate(("round", "square")):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(8):
            pixels = Image.new("L", (7, 7), 9 * i + 99 * label)
            pixels.save(tmp_path / "own" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    recipe = quick("data.name=folder:own", "optimisation.batch_size=4", "trainer.max_epochs=1")
    run = train(recipe, tmp_path / "run")
    assert run.recipe.data.name == f"folder:{(tmp_path / 'own').resolve()}"


def test_a_trained_base_keeps_the_normalisation_it_was_trained_with(tmp_path):
    options = {"width": 16, "heads": 2, "depth": 1}
    base = create_model("vit", **options)
    base.preprocess.mean.fill_(0.7)
    save(base, tmp_path / "base")
    for path, kept in ((str(tmp_path / "base"), True), ("", False)):
        model = {"name": "orbit_vit", "weights": path, **options}
        recipe = make_recipe({"model": model, "data": {"name": "digits"}})
        built = build_model(recipe, load_recipe_data(recipe, None))
        assert (built.model.preprocess.mean.item() == pytest.approx(0.7)) == kept


def test_a_run_folder_may_be_in_the_home_folder(tmp_path, quick, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    run = train(quick("trainer.max_epochs=1"), "~/run")
    assert run.path == tmp_path / "run"
    assert run.model_folder.is_dir() and run.checkpoint("best").is_file()


@pytest.mark.parametrize(
    ("name", "rotation", "mirror"), [("orbit_vit", 45, True), ("vit", 180, True)]
)
def test_a_run_stores_the_rotations_that_its_model_needs(tmp_path, quick, name, rotation, mirror):
    """The recipe sets the flips and leaves the rotations to the policy."""
    recipe = quick("data.augment.policy=standard", "trainer.max_epochs=1", "optimisation.cutmix=1")
    augment = replace(recipe.data.augment, rotation=None)
    recipe = replace(recipe, data=replace(recipe.data, augment=augment))
    run = train(replace(recipe, model=replace(recipe.model, name=name)), tmp_path / "run")
    stored = run.recipe.data.augment
    assert (stored.rotation, stored.mirror, stored.policy) == (rotation, mirror, "standard")
    assert stored.hue > 0
