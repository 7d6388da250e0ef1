"""A run on upright digits is tested on turned ones, and never on what it was trained on."""

import gzip
import shutil
import struct

import numpy as np
import pytest
import torch

from turnwise.data import load_dataset
from turnwise.errors import InputError
from turnwise.evaluation import evaluate_run, read_evaluation
from turnwise.evaluation.elsewhere import evaluate_elsewhere, result_folder
from turnwise.evaluation.rotations import predict_probabilities
from turnwise.models import load
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

RECIPE = {
    "model": {"name": "vit", "group": "C4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
    "data": {"name": "mnist"},
    "optimisation": {"batch_size": 50, "learning_rate": 0.01},
    "trainer": {"max_epochs": 12, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A little MNIST: digit d is a stroke in row 2 d + 4, so that a turned one is another thing."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / "mnist").mkdir()
    for stem, count in (("train", 400), ("t10k", 80)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels.astype(int) + 4, 6:24] = 255
        write_idx(folder / "mnist" / f"{stem}-images-idx3-ubyte.gz", images)
        write_idx(folder / "mnist" / f"{stem}-labels-idx1-ubyte.gz", labels)
    return folder


@pytest.fixture(scope="module")
def trained(data_dir, tmp_path_factory):
    return train(make_recipe(RECIPE), tmp_path_factory.mktemp("run") / "run", data_dir=data_dir)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_upright_and_turned(run, data_dir):
    upright = evaluate_run(run, data_dir=data_dir)
    turned = evaluate_elsewhere(run, "mnist_rotated", data_dir=data_dir)
    accuracy = [result["scores"]["accuracy"]["value"] for result in (upright, turned)]
    assert accuracy[0] > 0.6 > accuracy[1] + 0.2, "a plain model has learned what is upright"
    assert (turned["data"], turned["trained_on"]) == ("mnist_rotated", "mnist")
    assert turned["provenance"].startswith("original pictures and labels, from the idx files; test")


def test_definition(run, data_dir):
    dataset = load_dataset("mnist_rotated", data_dir=data_dir)
    answers = predict_probabilities(load(run), dataset.test).argmax(dim=1)
    wanted = (answers == dataset.test.labels).double().mean()
    found = evaluate_elsewhere(run, "mnist_rotated", data_dir=data_dir)
    assert found["scores"]["accuracy"]["value"] == pytest.approx(float(wanted))


def test_what_is_kept_is_kept_apart_and_counted(run, data_dir):
    for times in (1, 2):
        result = evaluate_elsewhere(run, "mnist_rotated", data_dir=data_dir)
        assert result["times_examined"] == times
    kept = read_evaluation(result_folder(run, "mnist_rotated"))
    assert kept is not None and kept["scores"] == result["scores"]
    assert kept["times_examined"] == 2
    assert read_evaluation(run) is None, "its own test split was not looked at"


def test_pictures_that_may_have_been_trained_on_are_refused(run, data_dir):
    folder = data_dir / "rotmnist-generated"
    mnist = load_dataset("mnist", data_dir=data_dir)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = mnist.train.images[:30, 0].numpy()
        arrays[f"{split}_labels"] = mnist.train.labels[:30].numpy()
    folder.mkdir(exist_ok=True)
    np.savez(folder / "rotmnist-generated.npz", **arrays)
    with pytest.raises(InputError, match="pictures of rotmnist are not those of mnist, which"):
        evaluate_elsewhere(run, "rotmnist", data_dir=data_dir)
    assert not result_folder(run, "rotmnist").exists()


def test_its_own_test_pictures_are_refused(run, data_dir):
    """They would be looked at again without being counted."""
    with pytest.raises(InputError, match=r"mnist has the test pictures of .* leave --data out"):
        evaluate_elsewhere(run, "mnist", data_dir=data_dir)


def test_folders_of_one_name_do_not_meet(tmp_path):
    places = [result_folder("run", f"folder:{tmp_path / path}") for path in ("a/x", "b/x", "a_x")]
    assert len({str(place) for place in places}) == 3
    assert all(place.parent.name == "elsewhere" for place in places)


def test_other_classes_are_refused(run, data_dir):
    shutil.copytree(data_dir / "mnist", data_dir / "fashionmnist", dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"fashionmnist has the classes T-shirt/top, .* of mnist,"):
        evaluate_elsewhere(run, "fashionmnist", data_dir=data_dir)


def test_another_part_of_the_training_pictures_is_refused(run, data_dir):
    """The recipe of a run is part of the run: changed afterwards, its pictures are others."""
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("fraction: 1.0", "fraction: 0.5"))
    with pytest.raises(InputError, match="training pictures of mnist_rotated are not those"):
        evaluate_elsewhere(run, "mnist_rotated", data_dir=data_dir)


@pytest.mark.parametrize("content", ["", "{}", '{"data": {"name": "mnist"}}'])
def test_a_run_that_does_not_know_its_data(run, data_dir, content):
    (run / "environment.json").write_text(content)
    with pytest.raises(InputError, match="does not tell the run's data set"):
        evaluate_elsewhere(run, "mnist_rotated", data_dir=data_dir)


def test_names_that_lead_elsewhere_are_no_names(run):
    with pytest.raises(InputError, match="Did you mean 'mnist_rotated'"):
        result_folder(run, "mnist_rotate")
    with pytest.raises(InputError, match="unknown data set"):
        result_folder(run, "..")
    assert result_folder(run, "folder:../x").parent == run / "elsewhere"


def test_control_the_little_digits_do_turn(data_dir):
    dataset = load_dataset("mnist_rotated", data_dir=data_dir)
    upright = load_dataset("mnist", data_dir=data_dir)
    assert (dataset.test.images != upright.test.images).flatten(1).any(dim=1).all()
    assert torch.equal(dataset.val.images, upright.val.images)
