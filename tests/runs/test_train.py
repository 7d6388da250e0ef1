"""From a recipe to a folder; killed and resumed; on two processes; on a disk that is full."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import lightning
import pytest
import torch
import yaml
from PIL import Image

import turnwise
from turnwise.errors import InputError
from turnwise.models import create_model, save
from turnwise.runs import train as runs
from turnwise.runs.train import (
    build_model,
    claim_folder,
    load_recipe_data,
    load_run_data,
    next_folder,
    train,
)
from turnwise.training.recipe import make_recipe, read_recipe

ONE_VALUE = "Expected more than 1 value per channel when training, got input size [1, 8, 1, 1]"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # two runs side by side on two cores


def command(*words):
    return [sys.executable, "-m", "turnwise", "train", *map(str, words)]


def rows(run):
    return list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))


def weights(run, name="last"):
    return torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def recipe_file(tmp_path, quick):
    path = tmp_path / "recipe.yaml"
    path.write_text(quick("trainer.max_epochs=4").yaml())
    return path


def test_a_run_leaves_everything_that_is_needed(tmp_path, quick):
    run = train(quick(), tmp_path / "run", command="turnwise train x.yaml")
    assert read_recipe(run / "recipe.yaml").plain() == quick().plain()
    assert [row["epoch"] for row in rows(run)] == ["0", "1"]
    kept = json.loads((run / "environment.json").read_text())
    assert kept["command"] == "turnwise train x.yaml"
    assert kept["packages"]["torch"] == torch.__version__
    assert list((run / "tensorboard").glob("events.*"))
    model = turnwise.load(run)
    assert model.classes == tuple("0123456789")
    best = max(float(row["val_accuracy"]) for row in rows(run))
    digits = turnwise.load_dataset("digits").val
    answers = model(model.preprocess(digits.images.float() / 255)).argmax(-1)
    assert (answers == digits.labels).double().mean().item() == pytest.approx(best, abs=1e-6)


def test_training_lowers_the_loss_and_keeps_the_law(tmp_path, quick):
    run = train(quick("trainer.max_epochs=3", "optimisation.batch_size=100"), tmp_path / "run")
    losses = [float(row["train_loss"]) for row in rows(run)]
    assert losses[-1] < losses[0] < 2.5
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    turnwise.assert_equivariant(turnwise.load(run).double(), "C4", images)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path, quick):
    runs = [train(quick(f"seed={seed}", "trainer.max_epochs=1"), tmp_path / str(i))
            for i, seed in enumerate((0, 0, 1))]  # fmt: skip
    first, again, other = (weights(run)["model.model.head.weight"] for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_killed_run_resumes_to_the_same_weights(tmp_path, quick):
    """SIGKILL in mid-epoch; with dropped paths, moved pictures and averaged weights."""
    path = tmp_path / "recipe.yaml"
    full = ("trainer.max_epochs=4", "optimisation.ema=0.9", "model.drop_path=0.2",
            "optimisation.batch_size=40")  # fmt: skip
    path.write_text(quick(*full).yaml())
    whole = subprocess.Popen(command(path, "--output", tmp_path / "whole"), env=ENVIRONMENT)
    killed = subprocess.Popen(command(path, "--output", tmp_path / "killed"), env=ENVIRONMENT)
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert 1 <= len(rows(tmp_path / "killed")) < 4, "the run must die half-way"
    assert not (tmp_path / "killed" / "model").exists()
    subprocess.run(command("--resume", tmp_path / "killed"), check=True, env=ENVIRONMENT)
    assert whole.wait() == 0
    for name in ("last", "best"):
        one, other = weights(tmp_path / "whole", name), weights(tmp_path / "killed", name)
        assert all(torch.equal(one[key], other[key]) for key in one)
    figures = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in rows(tmp_path / run)]
        for run in ("whole", "killed")
    ]
    assert figures[0] == figures[1]


def test_two_processes_see_the_loss_of_one(tmp_path, recipe_file):
    """Gloo on the CPU: the same global batches, so the same losses to 1e-5."""
    for devices in (1, 2):
        words = (recipe_file, f"trainer.devices={devices}", "--output", tmp_path / str(devices))
        subprocess.run(command(*words), check=True, env=ENVIRONMENT, capture_output=True)
    one, two = rows(tmp_path / "1"), rows(tmp_path / "2")
    assert len(one) == len(two) == 4
    for single, double in zip(one, two, strict=True):
        for key in ("train_loss", "val_loss", "val_accuracy"):
            assert float(single[key]) == pytest.approx(float(double[key]), abs=1e-5)
    assert turnwise.load(tmp_path / "2").classes


def test_folders_are_numbered(tmp_path):
    assert next_folder(tmp_path / "x").name == "version_0"
    (tmp_path / "x" / "version_0").mkdir(parents=True)
    (tmp_path / "x" / "version_11").mkdir()
    (tmp_path / "x" / "version_²").mkdir()  # a digit, but no number
    assert next_folder(tmp_path / "x").name == "version_12"


def test_two_runs_never_get_the_same_folder(tmp_path, monkeypatch):
    """Both look before either makes its folder: the second takes the next."""
    first, second = (tmp_path / f"version_{number}" for number in range(2))
    monkeypatch.setattr(runs, "next_folder", Mock(side_effect=[first, first, second]))
    assert claim_folder(tmp_path, numbered=True) == first
    assert claim_folder(tmp_path, numbered=True) == second


def test_numbered_runs(tmp_path, quick):
    recipe = quick("trainer.max_epochs=1")
    made = [train(recipe, tmp_path / "logs" / "x", numbered=True) for _ in range(2)]
    assert [path.name for path in made] == ["version_0", "version_1"]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path, quick):
    with pytest.raises(InputError, match="no folder"):
        train(quick("data.name=folder:nowhere"), tmp_path / "logs" / "x", numbered=True)
    assert list(tmp_path.iterdir()) == []


def test_fewer_epochs_than_were_trained_are_one_line(tmp_path, quick):
    run = train(quick("trainer.max_epochs=4"), tmp_path / "run")
    with pytest.raises(InputError, match="max_epochs"):
        train(quick("trainer.max_epochs=1"), run, resume=True)
    assert (run / "model").is_dir()
    assert read_recipe(run / "recipe.yaml").trainer.max_epochs == 4


def test_what_is_set_anew_is_kept_by_a_resumed_run_that_ends_early(tmp_path, quick):
    """Or it could not be resumed again without saying it once more."""
    run = train(quick("trainer.max_epochs=1"), tmp_path / "run")
    ended = patch.object(runs.Classifier, "_loss", side_effect=ZeroDivisionError)
    with ended, pytest.raises(ZeroDivisionError):
        train(quick("trainer.max_epochs=3"), run, resume=True)
    assert read_recipe(run / "recipe.yaml").trainer.max_epochs == 3
    train(read_recipe(run / "recipe.yaml"), run, resume=True)
    assert len(rows(run)) == 3


def test_a_batch_of_one_and_batch_norm_are_one_line(tmp_path, quick):
    recipe = make_recipe(
        {"model": {"name": "small_alexnet"}, "data": {"name": "digits", "fraction": 0.01}},
        ["optimisation.batch_size=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"],
    )
    with (
        patch.object(lightning.Trainer, "fit", side_effect=ValueError(ONE_VALUE)),
        pytest.raises(InputError, match=r"another optimisation\.batch_size"),
    ):
        train(recipe, tmp_path / "run")


def test_an_existing_folder_is_not_overwritten(tmp_path, quick):
    """And what is said would work: only a run with a whole epoch can be continued."""
    with pytest.raises(InputError, match=r"exists; choose another --output\.$"):
        train(quick(), tmp_path)
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(InputError, match="without a whole epoch, which goes on or was killed"):
        train(quick(), tmp_path)
    (tmp_path / "metrics.csv").touch()  # it had one, and may be worth keeping
    with pytest.raises(InputError, match=r"exists; choose another --output\.$"):
        train(quick(), tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    with pytest.raises(InputError, match="exists; choose another --output, or continue it"):
        train(quick(), tmp_path)


def test_nothing_to_resume(tmp_path, quick):
    with pytest.raises(InputError, match=r"has no checkpoints/last\.ckpt to resume from: no"):
        train(quick(), tmp_path, resume=True)


def test_nonsense_leaves_nothing_behind(tmp_path, quick):
    recipe = quick("optimisation.learning_rate=1e9", "optimisation.gradient_clip=null")
    with pytest.raises(InputError, match="the loss is not a number"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there(tmp_path, quick):
    with pytest.raises(InputError, match="these trainer settings cannot be used here"):
        train(quick("trainer.accelerator=tpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_read_only_place(tmp_path, quick):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*; choose another place with --output"):
        train(quick(), tmp_path / "file" / "run")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB; making one takes the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk; test_files.py simulates one")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk, quick):
    with pytest.raises(InputError, match=r"cannot write .*ckpt: no space left on device"):
        train(quick("model.width=64"), small_disk / "run")
    assert list(small_disk.iterdir()) == []


def test_a_batch_that_does_not_split_over_the_processes(tmp_path, recipe_file):
    words = (recipe_file, "trainer.devices=3", "--output", tmp_path / "run")
    done = subprocess.run(command(*words), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "batch_size = 400 must be a multiple of 3" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_resolved_recipe_is_plain_yaml(tmp_path, quick):
    run = train(quick("trainer.max_epochs=1"), tmp_path / "run")
    assert yaml.safe_load((run / "recipe.yaml").read_text())["optimisation"]["schedule"] == "cosine"


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused(tmp_path, quick, content):
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.write_bytes(content)
    with pytest.raises(InputError, match=r"last\.ckpt is damaged or no checkpoint"):
        train(quick(), tmp_path, resume=True)


def test_a_checkpoint_cannot_run_code(tmp_path, quick):
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    torch.save({"state_dict": Path}, last)  # a class is enough to be refused
    with pytest.raises(InputError, match=r"last\.ckpt is damaged or no checkpoint"):
        train(quick(), tmp_path, resume=True)


def test_an_interruption_keeps_what_can_be_resumed(tmp_path, recipe_file):
    """Ctrl-C after an epoch: status 130, one line, and the run can be continued."""
    run = tmp_path / "run"
    words = (recipe_file, "optimisation.batch_size=20", "--output", run)
    process = subprocess.Popen(
        command(*words), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # what a shell runs in the background ignores interruptions, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        try:
            while not (run / "checkpoints" / "last.ckpt").is_file() and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "turnwise train: interrupted" in said
    assert "Traceback" not in said
    subprocess.run(command("--resume", run), check=True, env=ENVIRONMENT, capture_output=True)
    assert len(rows(run)) == 4


@pytest.mark.parametrize(("precision", "rounded"), [("bf16-mixed", True), ("32-true", False)])
def test_only_half_precision_is_trained_with_rounded_products(
    tmp_path, quick, monkeypatch, precision, rounded
):
    seen = []

    def fit(*_, **__):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        raise KeyboardInterrupt

    monkeypatch.setattr(lightning.Trainer, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        train(quick(f"trainer.precision={precision}"), tmp_path / "run")
    assert seen == [rounded]


def epoch_of(run, name):
    return torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)["epoch"]


@pytest.fixture
def past_its_best(tmp_path, quick):
    """A run whose validation accuracy fell before its last epoch: the steps are too long."""
    recipe = quick("trainer.max_epochs=3", "optimisation.schedule=constant",
                   "optimisation.learning_rate=0.03", "optimisation.warmup_epochs=0")  # fmt: skip
    for seed in range(9):
        run = train(replace(recipe, seed=seed), tmp_path / f"past{seed}")
        if epoch_of(run, "best") < 2:
            return run
    raise AssertionError("no seed passes its best")


def test_last_is_the_last_epoch_and_best_the_best(past_its_best):
    scores = [float(row["val_accuracy"]) for row in rows(past_its_best)]
    assert epoch_of(past_its_best, "best") == scores.index(max(scores)) < 2
    assert epoch_of(past_its_best, "last") == 2


def test_a_finished_run_has_nothing_to_resume(past_its_best):
    before = rows(past_its_best)
    train(read_recipe(past_its_best / "recipe.yaml"), past_its_best, resume=True)
    assert rows(past_its_best) == before


def test_a_moved_run_keeps_its_best(past_its_best):
    """Resumed for one more epoch at another place: best is still the best of all epochs."""
    moved = past_its_best.rename(past_its_best.parent / "moved")
    recipe = read_recipe(moved / "recipe.yaml", ["trainer.max_epochs=4"])
    train(recipe, moved, resume=True)
    scores = [float(row["val_accuracy"]) for row in rows(moved)]
    assert len(scores) == 4
    assert epoch_of(moved, "best") == scores.index(max(scores))
    assert epoch_of(moved, "last") == 3


def own_pictures(folder):
    for label, name in enumerate(("round", "square")):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = torch.randint(99 * label, 99 * label + 99, (7, 7), dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name / f"{i}.png")


@pytest.mark.parametrize("change", ["add", "rename"])
def test_pictures_that_changed_since_training_are_refused(tmp_path, quick, change):
    """One more picture moves others between splits; another name moves the classes."""
    own_pictures(tmp_path / "own")
    recipe = quick(f"data.name=folder:{tmp_path / 'own'}", "optimisation.batch_size=4")
    run = train(recipe, tmp_path / "run")
    assert load_run_data(run, recipe, None).classes == ("round", "square")
    if change == "add":
        Image.new("L", (7, 7)).save(tmp_path / "own" / "round" / "new.png")
    else:
        (tmp_path / "own" / "round").rename(tmp_path / "own" / "ztill round")
    with pytest.raises(InputError, match=r"are not those that .*run was trained on; bring them"):
        load_run_data(run, recipe, None)


def test_a_folder_is_kept_by_its_full_path(tmp_path, quick, monkeypatch):
    own_pictures(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    recipe = quick("data.name=folder:own", "optimisation.batch_size=4", "trainer.max_epochs=1")
    run = train(recipe, tmp_path / "run")
    assert read_recipe(run / "recipe.yaml").data.name == f"folder:{(tmp_path / 'own').resolve()}"


def test_a_trained_base_keeps_the_statistics_it_was_trained_with(tmp_path):
    """Upright digits may have taught it; what it is fine-tuned on does not move its zero."""
    base = create_model("vit", width=16, heads=2, depth=1)
    base.preprocess.mean.fill_(0.7)
    save(base, tmp_path / "base")
    options = {"width": 16, "heads": 2, "depth": 1}
    for weights, kept in ((str(tmp_path / "base"), True), ("", False)):
        model = {"name": "orbit_vit", "weights": weights, **options}
        recipe = make_recipe({"model": model, "data": {"name": "digits"}})
        built = build_model(recipe, load_recipe_data(recipe, None))
        assert (built.model.preprocess.mean.item() == pytest.approx(0.7)) == kept


def test_a_folder_below_the_home(tmp_path, quick, monkeypatch):
    """The checkpoints go where the rest of the run goes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run = train(quick("trainer.max_epochs=1"), "~/run")
    assert run == tmp_path / "run"
    assert (run / "model").is_dir() and (run / "checkpoints" / "best.ckpt").is_file()
