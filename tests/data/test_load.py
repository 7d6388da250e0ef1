"""`load_dataset` from name to splits: arguments, disjointness, provenance, and the real files."""

import time

import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.splits import find_duplicates
from turnwise.errors import InputError

SPLITS = ("train", "val", "test")


def same(first, second):
    pairs = ((getattr(first, s), getattr(second, s)) for s in SPLITS)
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in pairs
    )


@pytest.fixture
def little_mnist(tmp_path, write_idx):
    write_idx(tmp_path / "data" / "mnist", train=50)
    return tmp_path / "data"


def test_validation_is_cut_from_train_by_the_seed(little_mnist):
    first = load_dataset("mnist", data_dir=little_mnist)
    assert [len(getattr(first, s)) for s in SPLITS] == [45, 5, 10]
    assert same(first, load_dataset("mnist", data_dir=little_mnist))
    other = load_dataset("mnist", data_dir=little_mnist, seed=1)
    assert not torch.equal(first.val.images, other.val.images)
    assert torch.equal(first.test.images, other.test.images)
    together = torch.cat([first.train.images, first.val.images])
    assert len(find_duplicates(together)) == 50
    assert "5 of train held out for validation by seed 0" in first.provenance


@pytest.mark.parametrize("name", ["mnist", "fashionmnist"])
def test_rotated_sets_differ_only_in_their_test_images(tmp_path, write_idx, name):
    folder = tmp_path / "data"
    write_idx(folder / name, train=50)
    upright = load_dataset(name, data_dir=folder)
    rotated = load_dataset(f"{name}_rotated", data_dir=folder)
    assert rotated.digests()["train"] == upright.digests()["train"]
    assert rotated.digests()["val"] == upright.digests()["val"]
    assert torch.equal(rotated.test.labels, upright.test.labels)
    assert not torch.equal(rotated.test.images, upright.test.images)
    assert rotated.classes == upright.classes
    assert same(rotated, load_dataset(f"{name}_rotated", data_dir=folder))
    assert "test images generated here" in rotated.provenance


def test_val_fraction(little_mnist):
    assert len(load_dataset("mnist", data_dir=little_mnist, val_fraction=0.4).val) == 20


def test_a_fraction_of_train_alone():
    whole, part = load_dataset("digits"), load_dataset("digits", fraction=0.1)
    assert part.train.labels.bincount().tolist() == [15] * 10
    assert len(find_duplicates(torch.cat([whole.train.images, part.train.images]))) == 1500
    assert part.digests()["train"] != whole.digests()["train"]
    assert {s: part.digests()[s] for s in ("val", "test")} == {
        s: whole.digests()[s] for s in ("val", "test")
    }
    assert part.provenance == whole.provenance + (
        "; 150 of 1,500 training images, drawn by seed 10"
    )
    assert same(part, load_dataset("digits", fraction=0.1, seed=5)), "the same in every training"
    assert same(whole, load_dataset("digits", fraction=1.0))


def test_val_fraction_is_refused_where_validation_is_fixed():
    with pytest.raises(InputError, match=r"val_fraction = 0\.1 does not apply to digits, whose"):
        load_dataset("digits", val_fraction=0.1)


def test_the_variable_is_searched_after_the_argument(little_mnist, monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_DATA", str(little_mnist))
    assert len(load_dataset("mnist").train) == 45
    (tmp_path / "empty").mkdir()
    assert len(load_dataset("mnist", data_dir=tmp_path / "empty").train) == 45


def test_provenance_reports_size_and_crop(little_mnist):
    data = load_dataset("mnist", data_dir=little_mnist, image_size=10, channels=3, crop=20)
    assert (data.channels, data.image_size, data.test.images.shape[2:]) == (3, 10, (10, 10))
    assert data.provenance.endswith("central 20 pixels; resampled from 20 pixels")


def test_pixels_stay_without_options(little_mnist):
    plain = load_dataset("mnist", data_dir=little_mnist)
    given = load_dataset("mnist", data_dir=little_mnist, image_size=28, channels=1)
    assert same(plain, given)
    assert plain.provenance == given.provenance and "resampled" not in given.provenance


def test_nothing_is_downloaded_when_forbidden():
    with pytest.raises(InputError, match=r"mnist is not in .*cache and downloads are off; put"):
        load_dataset("mnist", download=False)


def test_rectangles_are_refused_and_squared_on_demand(tmp_path, write_npz):
    write_npz(tmp_path / "breastmnist.npz", shape=(28, 30))
    with pytest.raises(InputError, match=r"28×30 pixels, which are not square.*image_size=28"):
        load_dataset("breastmnist", data_dir=tmp_path)
    assert load_dataset("breastmnist", data_dir=tmp_path, image_size=28).image_size == 28


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_size": 0}, "image_size = 0 must be at least 1"),
        ({"channels": 4}, "channels = 4 is not possible"),
        ({"crop": 29}, "crop = 29 is larger than the images"),
        ({"seed": -1}, "seed = -1 must not be negative"),
        ({"fraction": 0.0}, "fraction = 0.0 must be above 0 and at most 1"),
        ({"fraction": 1.1}, "fraction = 1.1 must be above 0 and at most 1"),
        ({"data_dir": "/nowhere"}, "data_dir = /nowhere is not a folder"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        load_dataset("digits", **arguments)


def test_an_unknown_name():
    with pytest.raises(InputError, match="Did you mean 'digits'"):
        load_dataset("digit")


def test_own_images(tmp_path, write_folder):
    own = write_folder(tmp_path / "own", {"a": 5, "b": 5})
    data = load_dataset(f"folder:{own}", image_size=6)
    assert (data.name, data.classes, data.image_size) == (f"folder:{own}", ("a", "b"), 6)
    assert len(load_dataset(f"folder:{own}", fraction=0.5).train) < len(data.train)
    with pytest.raises(InputError, match=r"crop = 5 does not apply to folder:.*image_size=5"):
        load_dataset(f"folder:{own}", crop=5)


REAL = {
    "mnist": (55_000, 5_000, 10_000, 1, 28),
    "fashionmnist": (55_000, 5_000, 10_000, 1, 28),
    "rotmnist": (10_000, 2_000, 50_000, 1, 28),
    "mnist_rotated": (55_000, 5_000, 10_000, 1, 28),
    "fashionmnist_rotated": (55_000, 5_000, 10_000, 1, 28),
    "dermamnist": (7_007, 1_003, 2_005, 3, 28),
    "dermamnist_c": (8_215, 573, 1_227, 3, 28),
    "breastmnist": (546, 78, 156, 1, 28),
    "eurosat": (2_800, 400, 800, 3, 64),
    "first_radio_galaxies": (1_758, 200, 200, 1, 300),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(real_data, name):
    data = load_dataset(name, data_dir=real_data, download=False)
    counts = [len(getattr(data, split)) for split in SPLITS]
    assert (*counts, data.channels, data.image_size) == REAL[name]
    for split in SPLITS:
        assert set(getattr(data, split).labels.tolist()) == set(range(len(data.classes)))


def test_real_class_counts(real_data):
    mnist = load_dataset("mnist", data_dir=real_data, download=False)
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.test.labels.bincount().tolist() == counts
    derma = load_dataset("dermamnist", data_dir=real_data, download=False)
    assert derma.train.labels.bincount().tolist() == [228, 359, 769, 80, 779, 4693, 99]
    mean = derma.train.images.double().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(
        mean, torch.tensor([0.7630, 0.5381, 0.5615], dtype=torch.float64), atol=1e-4, rtol=0
    )


def test_radio_galaxies_keep_their_light_in_the_crop(real_data):
    arguments = {"data_dir": real_data, "download": False}
    whole = load_dataset("first_radio_galaxies", **arguments).test.images.double()
    crop = load_dataset("first_radio_galaxies", crop=150, **arguments).test.images.double()
    light = (crop.sum(dim=(1, 2, 3)) / whole.sum(dim=(1, 2, 3)).clamp(min=1)).median()
    assert light > 0.95


def test_digits_load_at_once():
    load_dataset("digits")
    start = time.process_time()
    load_dataset("digits")
    assert time.process_time() - start < 2
