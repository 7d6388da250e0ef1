"""`Run` reads what training, testing and certifying wrote, and refuses what is damaged."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import turnwise
from turnwise.data import load_dataset
from turnwise.errors import InputError, UnfinishedRunError
from turnwise.files import to_json_value
from turnwise.models import create_model, save
from turnwise.runs import Run
from turnwise.runs import run as module
from turnwise.runs.run import load_recipe_data
from turnwise.training.recipe import make_recipe

SOURCE = Path(turnwise.__file__).parent
OLD = Path(__file__).parents[1] / "regression" / "version_0_1_0"
SMALL = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
RECIPE = {"model": {"name": "vit", **SMALL}, "data": {"name": "digits"}}
EVALUATION = {
    "images": 500, "times_evaluated": 3, "rotation_agreement": 0.5, "orbit_agreement": 0.5,
    "scores": {"auc": {"value": float("nan")}}, "classes": [], "angles": {},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run as training would leave it, without training."""
    run = Run.create(tmp_path / "run")
    run.start(make_recipe(RECIPE), load_dataset("digits"), "turnwise train x.yaml")
    run.save_model(create_model("vit", **SMALL), tuple("0123456789"))
    return run


def test_only_this_package_knows_the_file_names():
    names = [module.RECIPE, module.ENVIRONMENT, module.METRICS, module.EVALUATION,
             module.CERTIFICATE, module.CHECKPOINTS, module.ELSEWHERE]  # fmt: skip
    quoted = re.compile(rf"""["'/]({"|".join(map(re.escape, names))})["']""")
    users = [p for p in SOURCE.rglob("*.py") if quoted.search(p.read_text())]
    assert {p.relative_to(SOURCE).parts[0] for p in users} == {"runs"}


def test_a_run_is_a_folder_with_a_recipe(run, tmp_path):
    assert run.exists and not run.is_resumable and not run.has_metrics
    assert not Run(tmp_path).exists
    assert Run(run).path == Run(str(run.path)).path == run.path


def test_the_recipe_is_read_with_overrides(run):
    assert run.recipe.plain() == make_recipe(RECIPE).plain()
    assert run.read_recipe(["trainer.max_epochs=5"]).trainer.max_epochs == 5


def test_the_environment_is_stored(run):
    found = run.environment
    assert found["command"] == "turnwise train x.yaml"
    assert found["turnwise"] == turnwise.__version__
    assert torch.__version__.startswith(found["packages"]["torch"])  # may end in +cpu or +cu130
    assert found["data"]["classes"] == list("0123456789")


@pytest.mark.parametrize("content", ["", "[1", "3"])
def test_a_damaged_environment_is_refused(run, content):
    (run.path / module.ENVIRONMENT).write_text(content)
    with pytest.raises(
        InputError, match=r"environment\.json is damaged.*; without it the run is not comp"
    ):
        run.trained_on()


def test_the_data_set_is_that_of_training(run):
    assert run.dataset().digests() == load_dataset("digits").digests()
    assert run.trained_on()[:2] == ("digits", list("0123456789"))


@pytest.mark.parametrize("change", ["add", "rename"])
def test_a_data_set_that_changed_since_training_is_refused(tmp_path, change):
    """One more image changes the splits; another name renumbers the classes."""
    folder = tmp_path / "own"
    for label, name in enumerate(("round", "square")):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (7, 7), 9 * i + 99 * label).save(folder / name / f"{i}.png")
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": f"folder:{folder}"}})
    run = Run.create(tmp_path / "run")
    run.start(recipe, load_recipe_data(recipe, None), "")
    assert run.dataset().classes == ("round", "square")
    if change == "add":
        Image.new("L", (7, 7)).save(folder / "round" / "new.png")
    else:
        (folder / "round").rename(folder / "ztill round")
    with pytest.raises(InputError, match=r"are not those that .*run was trained on; restore them"):
        run.dataset()


# Creating and locking


def test_numbered_folders_continue_after_the_last(tmp_path):
    assert Run.create(tmp_path / "x", numbered=True).path.name == "version_0"
    (tmp_path / "x" / "version_11").mkdir()
    (tmp_path / "x" / "version_²").mkdir()  # a digit, but no number
    assert Run.create(tmp_path / "x", numbered=True).path.name == "version_12"


def test_two_processes_never_get_the_same_folder(tmp_path, monkeypatch):
    """Both choose a number before either creates its folder: the second takes the next."""
    first, second = (tmp_path / f"version_{number}" for number in range(2))
    choices = iter([first, first, second])
    monkeypatch.setattr(module, "_next_version", lambda _: next(choices))
    assert Run.create(tmp_path, numbered=True).path == first
    assert Run.create(tmp_path, numbered=True).path == second


def test_an_existing_folder_is_not_overwritten(tmp_path):
    """The error offers to resume only a run that has a checkpoint."""
    with pytest.raises(InputError, match=r"exists; choose another folder\.$"):
        Run.create(tmp_path)
    (tmp_path / module.RECIPE).touch()
    with pytest.raises(InputError, match=r"exists; choose another folder\.$"):
        Run.create(tmp_path)
    (tmp_path / module.ENVIRONMENT).touch()
    with pytest.raises(InputError, match="without a checkpoint, which is in training or was"):
        Run.create(tmp_path)
    (tmp_path / module.ENVIRONMENT).unlink()
    (tmp_path / module.METRICS).touch()
    with pytest.raises(InputError, match=r"exists; choose another folder\.$"):
        Run.create(tmp_path)
    checkpoint = Run(tmp_path).checkpoint("last")
    checkpoint.parent.mkdir()
    checkpoint.touch()
    with pytest.raises(InputError, match="can be resumed; choose another folder, or resume it"):
        Run.create(tmp_path)


def test_a_run_is_locked_for_other_processes(run):
    other = f"from turnwise.runs import Run\nwith Run({str(run.path)!r}).lock(): pass"
    with run.lock():
        ended = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert "is being trained by another process" in ended.stderr
    subprocess.run([sys.executable, "-c", other], check=True)


# Checkpoints and the model


def test_there_are_two_checkpoints(run):
    assert run.checkpoint("best").name == "best.ckpt"
    with pytest.raises(InputError, match="unknown checkpoint 'first'"):
        run.checkpoint("first")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused(run, content):
    run.checkpoint("last").parent.mkdir()
    run.checkpoint("last").write_bytes(content)
    with pytest.raises(InputError, match=r"last\.ckpt is damaged or no checkpoint"):
        run.read_checkpoint("last")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": Path}, "is damaged or no checkpoint"),  # a class is enough to be refused
        ({"epoch": 1}, "holds no weights"),
    ],
)
def test_a_checkpoint_cannot_run_code_and_holds_weights(run, content, message):
    run.checkpoint("last").parent.mkdir()
    torch.save(content, run.checkpoint("last"))
    with pytest.raises(InputError, match=rf"last\.ckpt {message}"):
        run.read_checkpoint("last")


def test_the_model_is_in_eval_mode(run):
    assert not run.model().training
    assert run.model().classes == tuple("0123456789")


def test_a_run_without_a_model_is_unfinished_if_it_can_be_resumed(run):
    shutil.rmtree(run.model_folder)
    with pytest.raises(InputError, match="is not a model or run folder"):
        run.model()
    run.checkpoint("last").parent.mkdir()
    run.checkpoint("last").touch()
    with pytest.raises(UnfinishedRunError, match="has not finished training") as error:
        run.model()
    assert error.value.folder == run.path


def test_metrics_are_rows_of_numbers(run):
    path = run.training_files().metrics
    path.write_text("epoch,train_loss,val_accuracy\n0,2.5,\n1,2.25,0.5\n")
    assert run.metrics == [
        {"epoch": 0.0, "train_loss": 2.5},
        {"epoch": 1.0, "train_loss": 2.25, "val_accuracy": 0.5},
    ]
    path.write_text("epoch\nx\n")
    with pytest.raises(InputError, match=r"metrics\.csv cannot be read as a table of epochs"):
        run.metrics  # noqa: B018


# Evaluations and the certificate


def test_an_evaluation_is_read_as_it_was_written(run):
    assert run.evaluation() is None and run.times_evaluated() == 0
    run.write_evaluation(EVALUATION)
    assert run.evaluation() == to_json_value(EVALUATION)
    assert run.times_evaluated() == 3


def test_an_evaluation_of_other_weights_is_only_counted(run):
    run.write_evaluation({**EVALUATION, "weights_sha256": run.weights_hash})
    assert run.evaluation() is not None
    save(create_model("vit", **SMALL), run.model_folder)
    assert run.evaluation() is None
    assert run.times_evaluated() == 3


@pytest.mark.parametrize("content", ["", "{", "3", "[]", "{}", "null", '{"times_evaluated": 1}'])
def test_a_damaged_evaluation_is_refused(run, content):
    run.evaluation_file().write_text(content)
    with pytest.raises(InputError, match=r"test\.json is damaged.*; remove it to test again"):
        run.evaluation()


def test_an_evaluation_that_is_no_text_is_refused(run):
    run.evaluation_file().write_bytes(b"\xff\xfe\x80")
    with pytest.raises(InputError, match="is damaged"):
        run.evaluation()


def test_an_evaluation_of_version_0_1_0_is_read_in_the_present_words():
    found = Run(OLD / "plain").evaluation()
    old = json.loads((OLD / "plain" / "test.json").read_text())
    assert found["images"] == old["pictures"]
    assert found["times_evaluated"] == old["times_examined"] == 1
    assert found["rotation_agreement"] == old["turn_agreement"]
    assert found["scores"] == old["scores"]


def test_each_data_set_has_its_own_evaluation(run, tmp_path):
    run.write_evaluation(EVALUATION, "mnist_rotated")
    assert run.evaluation() is None
    assert run.evaluation("mnist_rotated") == to_json_value(EVALUATION)
    paths = [run.evaluation_file(f"folder:{tmp_path / path}") for path in ("a/x", "b/x", "a_x")]
    assert len(set(paths)) == 3
    assert all(path.parents[1] == run.path / module.ELSEWHERE for path in paths)


def test_the_name_of_a_data_set_cannot_leave_the_run(run):
    with pytest.raises(InputError, match="Did you mean 'mnist_rotated'"):
        run.evaluation_file("mnist_rotate")
    with pytest.raises(InputError, match="unknown data set"):
        run.evaluation_file("..")
    inside = run.evaluation_file("folder:../x")
    assert inside.parents[1] == run.path / module.ELSEWHERE


def test_the_certificate_is_read_as_it_was_written(run):
    assert run.certificate is None
    run.write_certificate({"format": 3, "holds": True})
    assert run.certificate == {"format": 3, "holds": True}
    run.certificate_file.write_text("{")
    with pytest.raises(InputError, match=r"certificate\.json is damaged .*; certify again"):
        run.certificate  # noqa: B018


# Finding runs
