"""A run on upright digits is tested on rotated ones, and never on what it was trained on."""

import gzip
import shutil
import struct

import numpy as np
import pytest
import torch

from turnwise.data import load_dataset
from turnwise.errors import InputError
from turnwise.evaluation import evaluate_run
from turnwise.inference import Predictor
from turnwise.runs import Run
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
    """A small MNIST: digit d is a stroke in row 2 d + 4, which a rotation makes another digit."""
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
    return Run(shutil.copytree(trained.path, tmp_path / "run"))


def accuracy(result):
    return result["scores"]["accuracy"]["value"]


def test_a_plain_model_is_worse_on_rotated_images(run, data_dir):
    upright = evaluate_run(run, data_dir=data_dir)
    rotated = evaluate_run(run, "mnist_rotated", data_dir=data_dir)
    assert accuracy(upright) > 0.6 > accuracy(rotated) + 0.2
    assert (rotated["data"], rotated["trained_on"]) == ("mnist_rotated", "mnist")
    assert rotated["provenance"].startswith("original images and labels, from the idx files; test")


def test_the_accuracy_is_that_of_the_other_test_split(run, data_dir):
    test = load_dataset("mnist_rotated", data_dir=data_dir).test
    predicted = Predictor(run.model()).probabilities(test.images).argmax(dim=1)
    expected = (predicted == test.labels).double().mean()
    found = evaluate_run(run, "mnist_rotated", data_dir=data_dir)
    assert accuracy(found) == pytest.approx(float(expected))


def test_each_data_set_has_its_own_evaluation_and_count(run, data_dir):
    for times in (1, 2):
        result = evaluate_run(run, "mnist_rotated", data_dir=data_dir)
        assert result["times_evaluated"] == times
    stored = run.evaluation("mnist_rotated")
    assert stored is not None and stored["scores"] == result["scores"]
    assert run.times_evaluated("mnist_rotated") == 2
    assert run.evaluation() is None, "its own test split was not used"


def test_images_that_may_have_been_trained_on_are_refused(run, data_dir):
    folder = data_dir / "rotmnist-generated"
    mnist = load_dataset("mnist", data_dir=data_dir)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = mnist.train.images[:30, 0].numpy()
        arrays[f"{split}_labels"] = mnist.train.labels[:30].numpy()
    folder.mkdir(exist_ok=True)
    np.savez(folder / "rotmnist-generated.npz", **arrays)
    with pytest.raises(InputError, match="images of rotmnist are not those of mnist, which"):
        evaluate_run(run, "rotmnist", data_dir=data_dir)
    assert not run.evaluation_file("rotmnist").parent.exists()


def test_its_own_test_images_are_refused(run, data_dir):
    """They would be used again without being counted."""
    with pytest.raises(InputError, match=r"mnist has the test images of .* leave the data set out"):
        evaluate_run(run, "mnist", data_dir=data_dir)


def test_other_classes_are_refused(run, data_dir):
    shutil.copytree(data_dir / "mnist", data_dir / "fashionmnist", dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"fashionmnist has the classes T-shirt/top, .* of mnist,"):
        evaluate_run(run, "fashionmnist", data_dir=data_dir)


def test_another_part_of_the_training_images_is_refused(run, data_dir):
    """The recipe was changed after training, and now selects other images."""
    text = run.recipe_file.read_text()
    run.recipe_file.write_text(text.replace("fraction: 1.0", "fraction: 0.5"))
    with pytest.raises(InputError, match="training images of mnist_rotated are not those"):
        evaluate_run(run, "mnist_rotated", data_dir=data_dir)


@pytest.mark.parametrize("data", [{}, {"name": "mnist"}])
def test_a_run_whose_data_set_is_not_described(run, data_dir, data):
    run.write_environment({"data": data})
    with pytest.raises(InputError, match="does not describe the run's data set"):
        evaluate_run(run, "mnist_rotated", data_dir=data_dir)


def test_control_the_small_digits_are_rotated(data_dir):
    dataset = load_dataset("mnist_rotated", data_dir=data_dir)
    upright = load_dataset("mnist", data_dir=data_dir)
    assert (dataset.test.images != upright.test.images).flatten(1).any(dim=1).all()
    assert torch.equal(dataset.val.images, upright.val.images)
