"""Files of arrays: read, checked, and never unpickled."""

import numpy as np
import pytest
import torch

from turnwise.data.readers.arrays import read_arrays, read_splits, to_examples
from turnwise.errors import InputError

SPLITS = ("train", "val", "test")


def test_grey_pictures_get_a_channel(tmp_path, write_npz):
    stored = write_npz(tmp_path / "s.npz")
    parts = read_splits(tmp_path / "s.npz", SPLITS, classes=2, channels=1)
    assert parts["val"].images.shape == (4, 1, 28, 28)
    assert np.array_equal(parts["train"].images[:, 0].numpy(), stored["train_images"])
    assert parts["test"].labels.tolist() == stored["test_labels"][:, 0].tolist()


def test_colour_moves_to_the_front(tmp_path, write_npz):
    stored = write_npz(tmp_path / "s.npz", shape=(5, 6, 3))
    images = read_splits(tmp_path / "s.npz", SPLITS, classes=2, channels=3)["train"].images
    assert images.is_contiguous()
    assert np.array_equal(images[2, :, 4, 1].numpy(), stored["train_images"][2, 4, 1])


def test_packed_pictures(tmp_path, rng, encode):
    pictures = rng.integers(0, 256, (3, 8, 8, 3), np.uint8)
    run, offsets = encode(pictures, "WEBP", lossless=True)
    np.savez(tmp_path / "s.npz", train_webp=run, train_webp_offsets=offsets, train_labels=[0, 1, 1])
    part = read_splits(tmp_path / "s.npz", ("train",), classes=2, channels=3)["train"]
    assert torch.equal(part.images.permute(0, 2, 3, 1), torch.from_numpy(pictures))
    run = run.copy()
    run[:12] = 0
    np.savez(tmp_path / "s.npz", train_webp=run, train_webp_offsets=offsets, train_labels=[0, 1, 1])
    with pytest.raises(InputError, match=r"s\.npz cannot be used: train_webp: encoded picture 0"):
        read_splits(tmp_path / "s.npz", ("train",), classes=2, channels=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_images": None}, r"the array 'val_images' is missing \(found: test_images"),
        ({"test_labels": None}, "the array 'test_labels' is missing"),
        ({"val_images": np.zeros((4, 28, 28))}, "must be uint8 of shape .*, got float64"),
        ({"val_images": np.zeros((4, 28), np.uint8)}, r"got uint8 of \(4, 28\)"),
        ({"val_images": np.zeros((4, 28, 28, 3), np.uint8)}, r"got uint8 of \(4, 28, 28, 3\)"),
        ({"val_images": np.zeros((0, 28, 28), np.uint8)}, r"got uint8 of \(0, 28, 28\)"),
        ({"val_labels": np.zeros(4)}, "labels must be one integer each, got float64"),
        ({"val_labels": np.zeros((4, 2), int)}, r"one integer each, got int64 of \(4, 2\)"),
        ({"val_labels": np.array(1)}, r"one integer each, got int64 of \(\)"),
        ({"val_labels": np.zeros(5, int)}, "it has 4 pictures but 5 labels"),
        ({"val_labels": np.array([0, 1, 2, 0])}, "labels must be 0 to 1, got 0 to 2"),
        ({"val_labels": np.array([0, -1, 1, 0])}, "labels must be 0 to 1, got -1 to 1"),
    ],
)
def test_wrong_arrays(tmp_path, write_npz, changes, message):
    write_npz(tmp_path / "s.npz", **changes)
    with pytest.raises(InputError, match=rf"s\.npz cannot be used: .*{message}.*good copy"):
        read_splits(tmp_path / "s.npz", SPLITS, classes=2, channels=1)


def test_pickled_objects_are_refused(tmp_path, write_npz):
    write_npz(tmp_path / "s.npz", val_labels=np.array([{}, 1, 2, 3], dtype=object))
    with pytest.raises(
        InputError, match=r"s\.npz cannot be used: .*Object arrays cannot be loaded"
    ):
        read_splits(tmp_path / "s.npz", SPLITS, classes=2, channels=1)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file(tmp_path, write_npz, share):
    write_npz(path := tmp_path / "s.npz")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"s\.npz cannot be used: it is damaged"):
        read_splits(path, SPLITS, classes=2, channels=1)


def test_flipped_bytes_are_noticed(tmp_path, write_npz):
    write_npz(path := tmp_path / "s.npz")
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"s\.npz cannot be used: it is damaged .*CRC"):
        read_splits(path, SPLITS, classes=2, channels=1)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "s.npz").write_text("<html>404</html>")
    with pytest.raises(InputError, match="damaged or no plain"):
        read_arrays(tmp_path / "s.npz")
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="single array"):
        read_arrays(tmp_path / "t.npz")


def test_only_the_wanted_arrays_are_read(tmp_path, write_npz):
    write_npz(tmp_path / "s.npz", extra=np.array([{}], dtype=object))
    assert set(read_arrays(tmp_path / "s.npz", ["val_labels", "nothing"])) == {"val_labels"}


def test_a_last_axis_of_one_is_grey(tmp_path):
    images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1)
    part = to_examples(images, np.array([0, 1]), tmp_path, classes=2, channels=1)
    assert part.images.flatten().tolist() == list(range(8))
