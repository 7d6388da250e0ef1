"""Own images in .npz files."""

import numpy as np
import pytest
import torch

from turnwise.data.dataset import Target
from turnwise.data.readers.arrays import read_table
from turnwise.data.reading import Reading
from turnwise.errors import InputError

IMAGES = np.arange(4 * 6 * 6 * 3, dtype=np.uint32).astype(np.uint8).reshape(4, 6, 6, 3)


@pytest.fixture
def read(tmp_path):
    def save_and_read(arrays, **settings):
        np.savez(tmp_path / "x.npz", **arrays)
        return read_table(tmp_path / "x.npz", Reading(**settings))

    return save_and_read


def test_all_columns(read):
    arrays = {"images": IMAGES, "labels": np.array([1, 0, 1, 0]), "classes": np.array(["z", "a"])}
    arrays |= {"splits": np.array(["train", "train", "val", "test"]), "groups": np.arange(4)}
    rows = read(arrays)
    assert rows.target == Target("class", ("z", "a"))
    assert rows.examples.labels.tolist() == [1, 0, 1, 0]
    assert torch.equal(rows.examples.images, torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
    assert rows.splits == ("train", "train", "val", "test")
    assert rows.examples.groups == ("0", "1", "2", "3")


def test_splits_apart_and_grey(read):
    arrays = {}
    for split in ("train", "test"):
        arrays |= {f"{split}_images": IMAGES[..., 0], f"{split}_labels": np.array([[0], [1]] * 2)}
    rows = read(arrays)
    assert rows.splits == ("train",) * 4 + ("test",) * 4
    assert rows.examples.images.shape == (8, 1, 6, 6)
    assert rows.target == Target("class", ("0", "1"))


def test_other_targets_and_groups_by_name(read):
    names = np.array(["p1_a", "p1_b", "p2_a", "p2_b"])
    arrays = {"images": IMAGES, "labels": np.array([0.5, 1, 2, 3]), "names": names}
    rows = read(arrays, group_by="^p.")
    assert (rows.target.kind, rows.examples.groups) == ("number", ("p1", "p1", "p2", "p2"))
    arrays["labels"], arrays["classes"] = np.eye(4, 2, dtype=np.int64), np.array(["a", "b"])
    assert read(arrays).target == Target("multilabel", ("a", "b"))


GOOD = {"images": IMAGES, "labels": np.array([1, 0, 1, 0])}


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"images": IMAGES.astype(float)}, {}, "images must be uint8 of shape"),
        ({"images": IMAGES[..., :2]}, {}, "images must have 1 or 3 channels, got 2"),
        ({"labels": np.array([1, 0])}, {}, "must have one entry per image, and has 4 images, 2 la"),
        ({"groups": np.arange(3)}, {}, "has 4 images, 4 labels, 3 groups"),
        ({"labels": np.zeros((4, 2, 2))}, {}, "'labels' must be numbers or texts"),
        ({"classes": np.array(["a"])}, {}, r"labels must be 0 to 0, as there are names"),
        ({"splits": np.array(["train"] * 4)}, {}, "'splits' of .* must hold train, test and"),
        ({"groups": np.zeros(4)}, {}, "'groups' must be a row of texts"),
        ({}, {"group_by": "^p"}, "needs the array 'names' in"),
        ({"train_images": IMAGES}, {}, "has 'train_images' and must have 'test_images', too"),
    ],
)
def test_refused(read, changes, settings, message):
    with pytest.raises(InputError, match=message):
        read(GOOD | changes, **settings)


def test_missing_and_pickled(tmp_path, read):
    with pytest.raises(InputError, match=r"there is no file .*y\.npz; give an \.npz file"):
        read_table(tmp_path / "y.npz", Reading())
    with pytest.raises(InputError, match=r"it is damaged or no plain \.npz file"):
        read({"images": IMAGES, "labels": np.array([{}, 1, 2, 3], dtype=object)})
