"""Images with masks from files: what is read, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data.catalogue import entry
from turnwise.data.load import load_dataset
from turnwise.errors import InputError

ROWS = [("a", "train", "x"), ("b", "train", "y"), ("c", "validation", "x"), ("d", "test", "x")]


@pytest.fixture
def folder(tmp_path):
    """Return a data folder with four images of 260 × 280 pixels, grey and in colour."""
    home, random = tmp_path / "nuclei", np.random.default_rng(0)
    for part in ("images", "labels"):
        (home / part).mkdir(parents=True)
    for number, (name, _, _) in enumerate(ROWS):
        shape = (260, 280, 3) if number % 2 else (260, 280)
        image = random.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(image).save(home / "images" / f"{name}.png")
        labels = random.integers(0, 400, (260, 280)).astype(np.uint16)
        Image.fromarray(labels).save(home / "labels" / f"{name}.png")
    lines = ["file,split,kind", *(f"{name}.png,{split},{kind}" for name, split, kind in ROWS)]
    (home / "split.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_central_squares_are_read(folder):
    data = load_dataset("nuclei", data_dir=folder, download=False)
    assert data.target.kind == "instances" and data.target.has_masks
    assert data.classes == ("background", "inside", "border")
    assert [len(part) for part in (data.train, data.val, data.test)] == [2, 1, 1]
    assert data.train.names == ("x/a.png", "y/b.png")
    labels = np.asarray(Image.open(folder / "nuclei/labels/b.png"))[2:258, 12:268]
    assert data.train.targets.dtype == torch.int16
    assert np.array_equal(data.train.targets[1].numpy(), labels)
    image = np.asarray(Image.open(folder / "nuclei/images/b.png"))[2:258, 12:268]
    assert np.array_equal(data.train.images[1].permute(1, 2, 0).numpy(), image)
    assert torch.equal(data.val.images[0, 0], data.val.images[0, 2]), "grey is repeated"


def test_half_the_training_images_at_half_the_size(folder):
    data = load_dataset("nuclei", data_dir=folder, download=False, fraction=0.5, image_size=128)
    assert data.train.images.shape == (1, 3, 128, 128)
    assert data.train.targets.shape == (1, 128, 128)


def test_missing_files_and_wrong_tables_are_refused(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    with pytest.raises(InputError, match=r"nuclei is not in .*; put split.csv into"):
        load_dataset("nuclei", data_dir=tmp_path / "nuclei/images", download=False)
    table = folder / "nuclei/split.csv"
    for text, words in (
        ("file,split\na.png,train\n", "must have the columns file, kind, split"),
        ("file,split,kind\na.png,extra,x\n", "has the split 'extra'; write train"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=words):
            load_dataset("nuclei", data_dir=folder, download=False)


def test_a_mask_of_another_size_or_with_colour_is_refused(folder):
    path = folder / "nuclei/labels/c.png"
    Image.fromarray(np.zeros((256, 280), np.uint16)).save(path)
    with pytest.raises(InputError, match=r"has \(256, 280\) pixels and its image \(260, 280\)"):
        load_dataset("nuclei", data_dir=folder, download=False)
    Image.fromarray(np.zeros((260, 280, 3), np.uint8)).save(path)
    with pytest.raises(
        InputError, match="a mask has one whole number per pixel, and this one has colours"
    ):
        load_dataset("nuclei", data_dir=folder, download=False)


def test_the_catalogue_describes_it():
    found = entry("nuclei")
    assert (found.target, found.licence, found.channels) == ("instances", "CC0", 3)
