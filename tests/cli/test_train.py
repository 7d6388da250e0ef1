"""`turnwise train` turns a recipe into a run, and refuses what cannot be trained."""

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
def own_images(empty_folder):
    """Write a folder of small images; `counts` are the images per class."""

    def write(size=(8, 8), **counts):
        random, folder = np.random.default_rng(0), empty_folder / "own"
        for name, count in counts.items():
            (folder / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, size, np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number}.png")
        return folder

    return write


OWN = ("data.name=folder:own", "model.patch=4", "optimisation.batch_size=4")


def test_a_run_is_written_to_the_given_folder(turnwise, recipe, empty_folder):
    status, output, _ = turnwise("train", recipe, "seed=3", "--output", "out", "model.depth=2")
    assert status == 0
    assert output == "the run is in out; test it with: turnwise test out\n"
    stored = yaml.safe_load((empty_folder / "out" / "recipe.yaml").read_text())
    assert (stored["seed"], stored["model"]["depth"]) == (3, 2)
    assert [row["epoch"] for row in rows(empty_folder / "out")] == ["0"]
    assert load("out").classes == tuple("0123456789")


def test_runs_are_numbered_and_can_be_resumed(turnwise, recipe, empty_folder):
    """Without --output a run gets the next number; --resume uses the recipe of the run."""
    (empty_folder / "runs" / "tiny" / "version_0").mkdir(parents=True)
    assert turnwise("train", recipe)[0] == 0
    run = empty_folder / "runs" / "tiny" / "version_1"
    assert len(rows(run)) == 1
    status, output, _ = turnwise("train", "--resume", run, "trainer.max_epochs=2")
    assert status == 0
    assert yaml.safe_load((run / "recipe.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert str(run) in output
    assert [row["epoch"] for row in rows(run)] == ["0", "1"]
    assert [p.name for p in sorted(run.parent.iterdir())] == ["version_0", "version_1"]


TINY = ("--patch", "7", "--width", "16", "heads=2", "--depth=1", "--batch-size", "400")


def test_a_model_is_trained_on_a_data_set(turnwise, empty_folder):
    """Runs are numbered in LOG/EXP, and EXP is DATASET_MODEL by default."""
    words = ("train", "vit", "digits", *TINY, "epochs=1", "trainer.accelerator=cpu")
    assert turnwise(*words)[0] == 0
    stored = yaml.safe_load((empty_folder / "runs/digits_vit/version_0/recipe.yaml").read_text())
    assert (stored["model"]["name"], stored["model"]["width"], stored["seed"]) == ("vit", 16, 0)
    for number in range(2):
        assert turnwise(*words, "--log-path", "logs", "--exp-name", "first", "seed=5")[0] == 0
        run = empty_folder / "logs" / "first" / f"version_{number}"
        assert yaml.safe_load((run / "recipe.yaml").read_text())["seed"] == 5
        assert load(run).classes == tuple("0123456789")


def test_a_run_may_have_a_name_instead_of_a_number(turnwise, refused, recipe, empty_folder):
    words = ("--log_path", "logs", "--exp_name", "first", "--version", "mine")
    assert turnwise("train", recipe, *words)[0] == 0
    assert load(empty_folder / "logs" / "first" / "mine").classes
    assert "logs/first/mine holds a run that can be resumed" in refused("train", recipe, *words)
    words = ("vit", "digits", *TINY, "epochs=1", "trainer.accelerator=cpu", "--version=mine")
    assert turnwise("train", *words)[0] == 0
    assert [p.name for p in (empty_folder / "runs" / "digits_vit").iterdir()] == ["mine"]


def test_settings_alone_are_a_recipe(turnwise, own_images, empty_folder):
    own_images(circle=8, square=8)
    settings = ("model.name=vit", *OWN, "model.width=16", "model.heads=2", "trainer.max_epochs=1")
    assert turnwise("train", *settings, "trainer.accelerator=cpu")[0] == 0
    assert (empty_folder / "runs" / "own_vit" / "version_0" / "model").is_dir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vit", "digit"), "unknown data set 'digit'. Did you mean 'digits'?"),
        (("vti", "digits"), "unknown model or recipe 'vti'. Did you mean 'vit'?"),
        (("vit", "digits", "widht=3"), "unknown option of vit 'widht'. Did you mean 'width'?"),
        (("vit", "digits", "--output=o", "--exp-name=e"), "leave --log-path, --exp-name and "),
        (("vit", "digits", "--output=o", "--version=v"), "and --version out."),
        (("vit", "digits", "--version=a/b"), "--version a/b must be a name, not a path"),
        (("vit", "digits", "--schedule", "noam"), "decays from the end of its warm-up"),
        (("seed=1",), "recipe needs 'model'"),
    ],
)
def test_a_wrong_command_leaves_no_files(refused, empty_folder, words, message):
    assert message in refused("train", *words)
    assert not list(empty_folder.iterdir())


def test_images_of_your_own_are_trained_on(turnwise, recipe, own_images):
    own_images(circle=8, square=8)
    assert turnwise("train", recipe, *OWN, "--output", "out")[0] == 0
    assert load("out").classes == ("circle", "square")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.name=orbit_vti", "unknown model 'orbit_vti'. Did you mean 'orbit_vit'?"),
        ("model.widht=8", "unknown option of orbit_vit 'widht'. Did you mean 'width'?"),
        ("model.group=Q4", "unknown group 'Q4'; write C or D and a number: C1, C4, D4"),
        ("model.patch=0", "patch = 0 must be"),
        ("model.heads=3", "width = 16 must be a multiple of 3 (it is split over 3 heads)"),
        ("data.name=digit", "unknown data set 'digit'. Did you mean 'digits'?"),
        ("data.nmae=digits", "unknown data key 'nmae'. Did you mean 'name'?"),
        ("data.augment.rotation=400", "rotation = 400.0 must be 0 to 180 degrees"),
        ("trainer.max_epoch=2", "unknown trainer key 'max_epoch'. Did you mean 'max_epochs'?"),
        ("trainer.max_epochs=0", "max_epochs = 0 must be at least 1"),
        ("trainer.max_epochs=many", "trainer.max_epochs must be a whole number, got 'many'"),
        ("trainre.max_epochs=2", "unknown recipe key 'trainre'. Did you mean 'trainer'?"),
        ("optimisation.batch_size=9999", "batch_size = 9999 is more than the 1500 training"),
        ("optimisation.optimiser=adam", "unknown optimiser 'adam'. Did you mean 'adamw'?"),
        ("=3", "an override is written key=value, e.g. trainer.max_epochs=5, got '=3'"),
        ("word", "an override is written key=value, e.g. trainer.max_epochs=5, got 'word'"),
    ],
)
def test_a_wrong_setting_is_refused(refused, recipe, empty_folder, setting, message):
    assert message in refused("train", recipe, setting, "--output", "out")
    assert not (empty_folder / "out").exists()


def test_a_colour_model_gets_grey_images_repeated(turnwise, recipe):
    assert turnwise("train", recipe, "data.channels=3", "--output", "out")[0] == 0
    assert load("out").config.options["in_chans"] == 3


@pytest.mark.parametrize("channels", [0, 2])
def test_an_impossible_number_of_channels_is_refused(refused, recipe, channels):
    assert f"channels = {channels}" in refused("train", recipe, f"data.channels={channels}")


def test_a_missing_recipe_is_refused(refused):
    assert "cannot read the recipe nowhere.yaml: no such file" in refused("train", "nowhere.yaml")


def test_no_recipe_at_all_is_refused(refused):
    error = refused("train")
    assert (
        "give a recipe (a file or a name), DATASET --minutes M, MODEL DATASET (turnwise models)"
        in error
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "expected the node content"),
        ("- 1\n- 2\n", "a recipe has the parts model, data, optimisation"),
        ("", "a recipe has the parts model"),
        ("model: {name: vit}\n", "needs 'data'"),
        ("model: {group: C4}\ndata: {name: digits}\n", "model needs a name"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(refused, recipe, content, message):
    recipe.write_text(content)
    assert message in refused("train", recipe)


def test_a_binary_recipe_is_refused(refused, recipe):
    recipe.write_bytes(b"\xff\x00\x80")
    assert "cannot read the recipe" in refused("train", recipe)


def test_an_existing_output_is_refused(refused, recipe, empty_folder):
    (empty_folder / "out").mkdir()
    error = refused("train", recipe, "--output", "out")
    assert "out exists; choose another folder." in error


def test_an_output_that_cannot_be_written_is_refused(refused, recipe, empty_folder):
    (empty_folder / "file").touch()
    error = refused("train", recipe, "--output", "file/out")
    assert "cannot write file/out" in error
    assert "choose another path" in error


def test_a_run_is_resumed_in_its_own_folder(refused, run):
    error = refused("train", "--resume", run, "--output", "elsewhere")
    assert "--resume continues in its own folder; leave --output out." in error


def test_a_run_without_a_checkpoint_cannot_be_resumed(refused, run):
    (run / "checkpoints" / "last.ckpt").unlink()
    assert "has no checkpoint to resume from" in refused("train", "--resume", run)
    assert "cannot read the recipe" in refused("train", "--resume", "nowhere")


def test_several_processes_need_a_named_folder(refused, recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "its folder must be named: give --output" in refused("train", recipe)


def test_an_empty_folder_is_refused(refused, recipe, empty_folder):
    (empty_folder / "own").mkdir()
    assert "there are no images in own" in refused("train", recipe, *OWN)


def test_a_missing_folder_is_refused(refused, recipe):
    assert "there is no folder 'own'" in refused("train", recipe, *OWN)


def test_a_folder_of_one_class_is_refused(refused, recipe, own_images):
    own_images(circle=8)
    assert "own has one class only, 'circle'" in refused("train", recipe, *OWN)


def test_an_image_that_cannot_be_read_is_refused(refused, recipe, own_images):
    broken = own_images(circle=8, square=8) / "square" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    error = refused("train", recipe, *OWN)
    assert "own/square/3.png cannot be read" in error
    assert "remove it or repair it" in error


def test_images_that_are_not_square_are_refused(refused, recipe, own_images):
    own_images(size=(8, 12), circle=8, square=8)
    assert "write image_size=8" in refused("train", recipe, *OWN)


def test_a_truncated_data_set_is_refused(refused, recipe, empty_folder):
    path = empty_folder / "data" / "breastmnist" / "breastmnist.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, train_images=np.zeros((40, 28, 28), np.uint8))
    path.write_bytes(path.read_bytes()[:5000])
    error = refused("train", recipe, "data.name=breastmnist", "--data-dir", "data")
    assert "breastmnist.npz cannot be used: it is damaged" in error


def test_a_missing_data_folder_is_refused(refused, recipe):
    error = refused("train", recipe, "data.name=mnist", "--data-dir", "nowhere")
    assert "nowhere is not a folder; give the folder that holds the data sets" in error


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupt training after its last epoch, before the model is saved."""
    monkeypatch.setattr("turnwise.runs.run.save", Mock(side_effect=KeyboardInterrupt))


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "runs/tiny/version_0"),
        (["--version", "a b"], "'runs/tiny/a b'"),
        (["--output", "out"], "out"),
        (["--output", "out", "--data-dir", "."], "out --data-dir ."),
    ],
)
def test_an_interruption_says_how_to_continue(
    turnwise, recipe, interrupted, monkeypatch, words, folder
):
    status, _, error = turnwise("train", recipe, *words)
    assert status == 130
    command = f"turnwise train --resume {folder}"
    assert error.endswith(f"turnwise train: interrupted; continue with: {command}\n")
    monkeypatch.undo()
    monkeypatch.chdir(recipe.parent)
    assert turnwise(*shlex.split(command)[1:])[0] == 0


def test_an_interruption_in_the_first_epoch_leaves_no_files(
    turnwise, recipe, monkeypatch, empty_folder
):
    monkeypatch.setattr("turnwise.runs.train._fit", Mock(side_effect=KeyboardInterrupt))
    assert turnwise("train", recipe) == (130, "", "turnwise train: interrupted\n")
    assert [path.name for path in empty_folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("words", [["test"], ["certify"], ["test-shifted", "--output", "o.csv"]])
def test_an_unfinished_run_is_refused_with_how_to_continue(
    turnwise, refused, recipe, interrupted, words
):
    turnwise("train", recipe, "--output", "out")
    command, *rest = words
    error = refused(command, "out", *rest)
    assert "out has not finished training." in error
    assert error.endswith("Continue it with: turnwise train --resume out\n")


def test_a_terminal_shows_the_run_folder_at_the_start(turnwise, recipe, interrupted, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert turnwise("train", recipe)[2].startswith("the run is in runs/tiny/version_0\n")


def test_a_number_that_another_run_has_taken_is_skipped(
    turnwise, recipe, monkeypatch, empty_folder
):
    """Two runs that start at once may both choose a number before either creates its folder."""
    folders = [Path(f"runs/tiny/version_{number}") for number in range(2)]
    (empty_folder / folders[0]).mkdir(parents=True)
    monkeypatch.setattr("turnwise.runs.run._next_version", Mock(side_effect=folders))
    assert turnwise("train", recipe)[0] == 0
    assert load(empty_folder / folders[1]).classes


def test_a_resumed_run_keeps_its_recipe(refused, recipe, turnwise, empty_folder):
    assert turnwise("train", recipe, "--output", "out")[0] == 0
    before = (empty_folder / "out" / "recipe.yaml").read_text()
    error = refused("train", "--resume", "out", "model.width=32")
    assert "only trainer.* can be changed, got 'model.width=32'" in error
    assert (empty_folder / "out" / "recipe.yaml").read_text() == before


# Recipes by name, and a choice for a given time.

FAST = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "data.fraction=0.1")


def test_a_recipe_is_found_by_name_and_trained_on_other_images(turnwise, own_images, empty_folder):
    own_images(circle=8, square=8)
    settings = ("model.widths=[8, 8, 8, 8]", "optimisation.batch_size=4", *FAST[:2])
    assert turnwise("train", "own_images_cpu", "folder:own", *settings)[0] == 0
    run = empty_folder / "runs" / "own_own_images_cpu" / "version_0"
    stored = yaml.safe_load((run / "recipe.yaml").read_text())
    assert stored["data"]["name"] == f"folder:{empty_folder / 'own'}"
    assert stored["data"]["augment"]["policy"] == "standard"
    assert load(run).classes == ("circle", "square")


def test_a_file_wins_over_a_recipe_of_its_name(turnwise, recipe, empty_folder):
    shipped = empty_folder / "rotmnist_vit"
    shipped.write_bytes(Path(recipe).read_bytes())
    assert turnwise("train", "rotmnist_vit", *FAST[:2])[0] == 0
    assert (empty_folder / "runs" / "rotmnist_vit" / "version_0" / "model").is_dir()


def test_minutes_choose_a_model_and_print_why(turnwise, empty_folder):
    words = ("train", "tiles", "--minutes", "0.1", *FAST, "model.widths=[8, 8, 8, 8]")
    status, printed, _ = turnwise(*words)
    assert status == 0
    assert "120 colour training images of 32 pixels, 10 classes" in printed
    assert "chosen: roto_resnet18, 32 pixels, 1 epochs" in printed
    run = empty_folder / "runs" / "tiles_chosen" / "version_0"
    assert f"the recipe is {run.relative_to(empty_folder) / 'recipe.yaml'}" in printed
    assert load(run).group.name == "D4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiles",), "tiles is a data set; add --minutes 10, or give a recipe or a model before"),
        (("folder:x",), "folder:x is a data set; add --minutes 10"),
        (("table.csv", "seed=1"), "table.csv is a data set; add --minutes 10"),
        (("--minutes", "5"), "give a data set before --minutes"),
        (("vit", "mnist", "--minutes", "5"), "may follow vit, got 'mnist'; the model is chosen"),
        (("tilse", "--minutes", "5"), "unknown data set 'tilse'. Did you mean 'tiles'?"),
        (("tiles", "--minutes", "0"), "minutes = 0 must be above 0"),
        (("tiles", "--minutes", "5", "model.nmae=vit"), "unknown"),
        (("folder:nowhere", "--minutes", "5"), "there is no folder 'nowhere'"),
        (("--resume", "x", "--minutes", "5"), "--minutes starts a new run; leave --resume out"),
    ],
)
def test_wrong_commands_with_minutes_leave_no_files(refused, empty_folder, words, message):
    assert message in refused("train", *words)
    assert not list(empty_folder.iterdir())
