"""From a recipe to a run, and everything that a user can get wrong on the way."""

import csv
import shlex
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from PIL import Image

from turnwise.models import load


def rows(run):
    return list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))


@pytest.fixture
def own_pictures(empty_place):
    """Two classes of little pictures in a folder; `counts` says how many of each."""

    def write(size=(8, 8), **counts):
        random, folder = np.random.default_rng(0), empty_place / "own"
        for name, count in counts.items():
            (folder / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, size, np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number}.png")
        return folder

    return write


OWN = ("data.name=folder:own", "model.patch=4", "optimisation.batch_size=4")


def test_a_run_is_made_where_it_is_asked_for(turnwise, recipe, empty_place):
    status, said, _ = turnwise("train", recipe, "seed=3", "--output", "out", "model.depth=2")
    assert status == 0
    assert said == "the run is in out; test it with: turnwise test out\n"
    kept = yaml.safe_load((empty_place / "out" / "recipe.yaml").read_text())
    assert (kept["seed"], kept["model"]["depth"]) == (3, 2)
    assert [row["epoch"] for row in rows(empty_place / "out")] == ["0"]
    assert load("out").classes == tuple("0123456789")


def test_runs_are_numbered_and_can_be_continued(turnwise, recipe, empty_place):
    """Without --output a run gets the next number; --resume takes the recipe of the run."""
    (empty_place / "runs" / "tiny" / "version_0").mkdir(parents=True)
    assert turnwise("train", recipe)[0] == 0
    run = empty_place / "runs" / "tiny" / "version_1"
    assert len(rows(run)) == 1
    status, said, _ = turnwise("train", "--resume", run, "trainer.max_epochs=2")
    assert status == 0
    assert yaml.safe_load((run / "recipe.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert str(run) in said
    assert [row["epoch"] for row in rows(run)] == ["0", "1"]
    assert [p.name for p in sorted(run.parent.iterdir())] == ["version_0", "version_1"]


TINY = ("--patch", "7", "--width", "16", "heads=2", "--depth=1", "--batch-size", "400")


def test_a_model_and_a_data_set(turnwise, empty_place):
    """Runs are numbered below LOG/EXP, which has a name of its own unless one is given."""
    words = ("train", "vit", "digits", *TINY, "epochs=1", "trainer.accelerator=cpu")
    assert turnwise(*words)[0] == 0
    kept = yaml.safe_load((empty_place / "runs/digits_vit/version_0/recipe.yaml").read_text())
    assert (kept["model"]["name"], kept["model"]["width"], kept["seed"]) == ("vit", 16, 0)
    for number in range(2):
        assert turnwise(*words, "--log-path", "logs", "--exp-name", "first", "seed=5")[0] == 0
        run = empty_place / "logs" / "first" / f"version_{number}"
        assert yaml.safe_load((run / "recipe.yaml").read_text())["seed"] == 5
        assert load(run).classes == tuple("0123456789")


def test_a_run_may_have_a_name_instead_of_a_number(turnwise, refused, recipe, empty_place):
    words = ("--log_path", "logs", "--exp_name", "first", "--version", "mine")
    assert turnwise("train", recipe, *words)[0] == 0
    assert load(empty_place / "logs" / "first" / "mine").classes
    assert "logs/first/mine exists" in refused("train", recipe, *words)
    made = ("vit", "digits", *TINY, "epochs=1", "trainer.accelerator=cpu", "--version=mine")
    assert turnwise("train", *made)[0] == 0
    assert [p.name for p in (empty_place / "runs" / "digits_vit").iterdir()] == ["mine"]


def test_a_recipe_of_settings_alone(turnwise, own_pictures, empty_place):
    own_pictures(circle=8, square=8)
    settings = ("model.name=vit", *OWN, "model.width=16", "model.heads=2", "trainer.max_epochs=1")
    assert turnwise("train", *settings, "trainer.accelerator=cpu")[0] == 0
    assert (empty_place / "runs" / "own_vit" / "version_0" / "model").is_dir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vit", "digit"), "unknown data set 'digit'. Did you mean 'digits'?"),
        (("vti", "digits"), "unknown model or recipe 'vti'. Did you mean 'vit'?"),
        (("vit", "digits", "widht=3"), "unknown option of vit 'widht'. Did you mean 'width'?"),
        (("vit", "digits", "--output=o", "--exp-name=e"), "leave --log-path, --exp-name and "),
        (("vit", "digits", "--output=o", "--version=v"), "and --version out."),
        (("vit", "digits", "--version=a/b"), "--version a/b must be a name, not a path"),
        (("vit", "digits", "--schedule", "noam"), "falls from the end of its warm-up"),
        (("seed=1",), "recipe needs 'model'"),
    ],
)
def test_words_that_cannot_be_used(refused, empty_place, words, message):
    assert message in refused("train", *words)
    assert not list(empty_place.iterdir())


def test_own_pictures(turnwise, recipe, own_pictures):
    own_pictures(circle=8, square=8)
    assert turnwise("train", recipe, *OWN, "--output", "out")[0] == 0
    assert load("out").classes == ("circle", "square")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.name=orbit_vti", "unknown model 'orbit_vti'. Did you mean 'orbit_vit'?"),
        ("model.widht=8", "unknown option of orbit_vit 'widht'. Did you mean 'width'?"),
        ("model.group=Q4", "unknown group 'Q4'; write C or D and a number: C1, C4, D4"),
        ("model.patch=5", "patches of 5 pixels"),
        ("model.heads=3", "width = 16 must be a multiple of 3 (it is split over 3 heads)"),
        ("data.name=digit", "unknown data set 'digit'. Did you mean 'digits'?"),
        ("data.nmae=digits", "unknown data key 'nmae'. Did you mean 'name'?"),
        ("data.augment.rotation=400", "rotation = 400.0 must be 0 to 180 degrees"),
        ("trainer.max_epoch=2", "unknown trainer key 'max_epoch'. Did you mean 'max_epochs'?"),
        ("trainer.max_epochs=0", "max_epochs = 0 must be at least 1"),
        ("trainer.max_epochs=many", "trainer.max_epochs must be a whole number, got 'many'"),
        ("trainre.max_epochs=2", "unknown recipe key 'trainre'. Did you mean 'trainer'?"),
        ("optimisation.batch_size=9999", "batch_size = 9999 is more than the 4000 training"),
        ("optimisation.optimiser=adam", "unknown optimiser 'adam'. Did you mean 'adamw'?"),
        ("=3", "an override is written key=value, e.g. trainer.max_epochs=5, got '=3'"),
    ],
)
def test_a_setting_that_is_wrong(refused, recipe, empty_place, setting, words):
    assert words in refused("train", recipe, setting, "--output", "out")
    assert not (empty_place / "out").exists()


def test_a_colour_model_for_grey_pictures_gets_them_repeated(turnwise, recipe):
    assert turnwise("train", recipe, "data.channels=3", "--output", "out")[0] == 0
    assert load("out").config.options["in_chans"] == 3


@pytest.mark.parametrize("channels", [0, 2])
def test_channels_that_no_picture_has(refused, recipe, channels):
    assert f"channels = {channels}" in refused("train", recipe, f"data.channels={channels}")


def test_a_recipe_that_is_not_there(refused):
    assert "cannot read the recipe nowhere.yaml: no such file" in refused("train", "nowhere.yaml")


def test_no_recipe_at_all(refused):
    said = refused("train")
    assert (
        "give a recipe (recipes/*.yaml), MODEL DATASET (turnwise models), or --resume RUN" in said
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("model: [", "is not YAML"),
        ("- 1\n- 2\n", "a recipe has the parts model, data, optimisation"),
        ("", "a recipe has the parts model"),
        ("model: {name: vit}\n", "needs 'data'"),
        ("model: {group: C4}\ndata: {name: digits}\n", "model needs a name"),
    ],
)
def test_a_recipe_that_is_none(refused, recipe, content, words):
    recipe.write_text(content)
    assert words in refused("train", recipe)


def test_a_recipe_of_bytes(refused, recipe):
    recipe.write_bytes(b"\xff\x00\x80")
    assert "cannot read the recipe" in refused("train", recipe)


def test_an_occupied_output(refused, recipe, empty_place):
    (empty_place / "out").mkdir()
    said = refused("train", recipe, "--output", "out")
    assert "out exists; choose another --output." in said


def test_an_output_that_cannot_be_written(refused, recipe, empty_place):
    (empty_place / "file").touch()
    said = refused("train", recipe, "--output", "file/out")
    assert "cannot write file/out" in said
    assert "choose another place with --output" in said


def test_resume_goes_on_in_its_own_folder(refused, run):
    said = refused("train", "--resume", run, "--output", "elsewhere")
    assert "--resume continues in its own folder; leave --output out." in said


def test_nothing_to_resume(refused, run):
    (run / "checkpoints" / "last.ckpt").unlink()
    assert "has no checkpoints/last.ckpt to resume from" in refused("train", "--resume", run)
    assert "cannot read the recipe" in refused("train", "--resume", "nowhere")


def test_several_processes_need_a_common_folder(refused, recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "its folder must be named: give --output" in refused("train", recipe)


def test_an_empty_folder(refused, recipe, empty_place):
    (empty_place / "own").mkdir()
    assert "there are no pictures in own" in refused("train", recipe, *OWN)


def test_a_folder_that_is_not_there(refused, recipe):
    assert "there is no folder 'own'" in refused("train", recipe, *OWN)


def test_a_folder_of_one_class(refused, recipe, own_pictures):
    own_pictures(circle=8)
    assert "own has one class only, 'circle'" in refused("train", recipe, *OWN)


def test_a_picture_that_cannot_be_read(refused, recipe, own_pictures):
    broken = own_pictures(circle=8, square=8) / "square" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    said = refused("train", recipe, *OWN)
    assert "own/square/3.png cannot be read" in said
    assert "remove it or repair it" in said


def test_pictures_that_are_not_square(refused, recipe, own_pictures):
    own_pictures(size=(8, 12), circle=8, square=8)
    assert "write image_size=8" in refused("train", recipe, *OWN)


def test_a_truncated_data_set(refused, recipe, empty_place):
    path = empty_place / "data" / "breastmnist" / "breastmnist.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, train_images=np.zeros((40, 28, 28), np.uint8))
    path.write_bytes(path.read_bytes()[:5000])
    said = refused("train", recipe, "data.name=breastmnist", "--data-dir", "data")
    assert "breastmnist.npz cannot be used: it is damaged" in said


def test_a_data_folder_that_is_not_there(refused, recipe):
    said = refused("train", recipe, "data.name=mnist", "--data-dir", "nowhere")
    assert "nowhere is not a folder; give the folder that holds the data sets" in said


@pytest.fixture
def interrupted(monkeypatch):
    """Training is stopped when its epochs are over, before the model is kept."""
    monkeypatch.setattr("turnwise.runs.train.save", Mock(side_effect=KeyboardInterrupt))


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "runs/tiny/version_0"),
        (["--version", "a b"], "'runs/tiny/a b'"),
        (["--output", "out"], "out"),
        (["--output", "out", "--data-dir", "."], "out --data-dir ."),
    ],
)
def test_interrupted(turnwise, recipe, interrupted, monkeypatch, words, folder):
    """It is said how to continue, and that works."""
    status, _, said = turnwise("train", recipe, *words)
    assert status == 130
    todo = f"turnwise train --resume {folder}"
    assert said.endswith(f"turnwise train: interrupted; continue with: {todo}\n")
    monkeypatch.undo()
    monkeypatch.chdir(recipe.parent)
    assert turnwise(*shlex.split(todo)[1:])[0] == 0


def test_interrupted_before_a_whole_epoch(turnwise, recipe, monkeypatch, empty_place):
    monkeypatch.setattr("turnwise.runs.train._fit", Mock(side_effect=KeyboardInterrupt))
    assert turnwise("train", recipe) == (130, "", "turnwise train: interrupted\n")
    assert [path.name for path in empty_place.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("words", [["test"], ["certify"], ["test-shifted", "--output", "o.csv"]])
def test_what_was_interrupted_is_called_so(turnwise, refused, recipe, interrupted, words):
    turnwise("train", recipe, "--output", "out")
    command, *rest = words
    said = refused(command, "out", *rest)
    assert "out has not finished training: it has no model/config.json; if it was stopped" in said
    assert said.endswith("continue it with: turnwise train --resume out\n")


def test_a_terminal_is_told_where_the_run_is(turnwise, recipe, interrupted, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert turnwise("train", recipe)[2].startswith("the run is in runs/tiny/version_0\n")


def test_another_run_takes_the_folder_first(turnwise, recipe, monkeypatch, empty_place):
    """Both look before either makes its folder: the second takes the next."""
    places = [Path(f"runs/tiny/version_{number}") for number in range(2)]
    (empty_place / places[0]).mkdir(parents=True)
    monkeypatch.setattr("turnwise.runs.train.next_folder", Mock(side_effect=places))
    assert turnwise("train", recipe)[0] == 0
    assert load(empty_place / places[1]).classes


def test_a_resumed_run_keeps_its_recipe(refused, recipe, turnwise, empty_place):
    assert turnwise("train", recipe, "--output", "out")[0] == 0
    before = (empty_place / "out" / "recipe.yaml").read_text()
    said = refused("train", "--resume", "out", "model.width=32")
    assert "only trainer.* can be set anew, got 'model.width=32'" in said
    assert (empty_place / "out" / "recipe.yaml").read_text() == before
