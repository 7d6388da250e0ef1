"""MNIST, Fashion-MNIST, the shipped digits and rotated MNIST, from files of every form."""

import gzip
import hashlib
import math
import re
import shutil
import zipfile

import numpy as np
import pytest
import torch

from turnwise.data.readers import mnist
from turnwise.data.readers.mnist import read_idx
from turnwise.data.readers.npz import SHIPPED, read_arrays
from turnwise.errors import InputError

DIGITS = SHIPPED / "digits.npz"


@pytest.mark.parametrize("name", ["mnist", "fashionmnist"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path, write_idx, read, name, packed):
    arrays = write_idx(tmp_path / name, packed=packed)
    source = read(name)
    assert set(source.splits) == {"train", "test"}
    train = source.splits["train"]
    assert np.array_equal(train.images[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert train.labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    assert "idx" in source.provenance


def test_a_single_npz_is_preferred(tmp_path, write_idx, write_npz, read):
    write_idx(tmp_path / "mnist")
    stored = write_npz(tmp_path / "mnist" / "mnist.npz", classes=10)
    assert np.array_equal(read("mnist").splits["test"].images[:, 0].numpy(), stored["test_images"])
    assert "mnist.npz" in read("mnist").provenance


def test_images_and_labels_of_different_length(tmp_path, write_idx, idx_bytes, read):
    write_idx(tmp_path / "mnist")
    labels = gzip.compress(idx_bytes(np.zeros(3, np.uint8)))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(labels)
    with pytest.raises(InputError, match=r"t10k-images.* cannot be used: it has 10 images but 3"):
        read("mnist")


def test_missing_files_are_named(read, tmp_path):
    message = (
        r"mnist is not in .* downloads are off; put train-images-idx3-ubyte\.gz, .* into .*mnist/"
    )
    with pytest.raises(InputError, match=message):
        read("mnist")


def test_original_rotmnist_is_preferred(tmp_path, rng, write_npz, read, monkeypatch):
    monkeypatch.setattr(mnist, "AMAT_ROWS", {mnist.TRAIN_VALID: 12, mnist.TEST: 5})
    write_npz(tmp_path / "rotmnist-generated" / "rotmnist-generated.npz", classes=10)
    assert "not mnist_rotation_new" in read("rotmnist").provenance
    (tmp_path / "rotmnist").mkdir()
    tables = {}
    for name, rows in mnist.AMAT_ROWS.items():
        tables[name] = np.hstack([rng.random((rows, 784)), rng.integers(0, 10, (rows, 1))])
        np.savetxt(tmp_path / "rotmnist" / name, tables[name])
    source = read("rotmnist")
    assert source.provenance.startswith("mnist_rotation_new")
    assert {split: len(part) for split, part in source.splits.items()} == {
        "train": 10,
        "val": 2,
        "test": 5,
    }
    assert source.splits["val"].labels.tolist() == tables[mnist.TRAIN_VALID][10:, -1].tolist()


def test_rotmnist_is_generated_from_mnist_and_cached(tmp_path, write_idx, read, monkeypatch):
    monkeypatch.setattr(mnist, "COUNTS", {"train": 20, "val": 5, "test": 20})
    write_idx(tmp_path / "mnist")
    first = read("rotmnist")
    assert [len(first.splits[s]) for s in ("train", "val", "test")] == [20, 5, 20]
    assert "not mnist_rotation_new" in first.provenance
    cached = tmp_path / "cache" / "rotmnist-generated" / "rotmnist-generated.npz"
    assert cached.is_file()
    shutil.rmtree(tmp_path / "mnist")
    again = read("rotmnist")
    assert torch.equal(again.splits["test"].images, first.splits["test"].images)
    assert torch.equal(again.splits["val"].labels, first.splits["val"].labels)


def test_rotmnist_works_without_a_cache(tmp_path, write_idx, read, monkeypatch):
    monkeypatch.setattr(mnist, "COUNTS", {"train": 20, "val": 5, "test": 20})
    write_idx(tmp_path / "mnist")
    (tmp_path / "cache").touch()
    assert len(read("rotmnist").splits["train"]) == 20


@pytest.fixture
def idx_array(rng):
    return rng.integers(0, 256, (5, 4, 3), np.uint8)


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_idx_files_are_read_as_written(tmp_path, idx_array, idx_bytes, pack):
    (tmp_path / "x").write_bytes(pack(idx_bytes(idx_array)))
    assert np.array_equal(read_idx(tmp_path / "x"), idx_array)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[:-1], r"promises 60 bytes of shape \(5, 4, 3\), 59 follow"),
        (lambda c: c + b"0", "promises 60 bytes .*, more follow"),
        (lambda c: c[:9], "it ends inside its header"),
        (lambda c: c[:3], "does not begin as an idx file"),
        (lambda c: b"\0\0\x0d" + c[3:], "does not begin as an idx file of bytes"),
        (lambda c: b"<html>" + c, "does not begin as an idx file"),
        (lambda c: gzip.compress(c)[:-20], "it cannot be decompressed"),
        (
            lambda c: gzip.compress(c)[:30] + b"xxxx" + gzip.compress(c)[34:],
            "cannot be decompressed",
        ),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path, idx_array, idx_bytes, spoil, message):
    (tmp_path / "x.gz").write_bytes(spoil(idx_bytes(idx_array)))
    with pytest.raises(InputError, match=rf"x\.gz cannot be used: .*{message}.*good copy"):
        read_idx(tmp_path / "x.gz")


@pytest.fixture
def digit_splits(read):
    return read("digits").splits


def contents(images):
    return {image.numpy().tobytes() for image in images}


def test_the_shipped_digits_are_balanced(digit_splits):
    assert {split: len(part) for split, part in digit_splits.items()} == {
        "train": 1500,
        "val": 500,
        "test": 500,
    }
    for part in digit_splits.values():
        assert part.labels.bincount().tolist() == [len(part) // 10] * 10


def test_no_shipped_digit_is_in_two_splits(digit_splits):
    together = [contents(part.images) for part in digit_splits.values()]
    assert sum(map(len, together)) == len(set.union(*together)) == 2500


def test_the_splits_of_the_shipped_digits_never_change(digit_splits, read):
    first, second = digit_splits, read("digits").splits
    assert all(torch.equal(first[s].images, second[s].images) for s in first)
    digest = hashlib.sha256(first["test"].images.numpy().tobytes()).hexdigest()
    assert digest == "153a7b0354bd9e6fabe2ebea5af17fd9b76cd4507cddc483ea15b5ddd28ad4ae"


def test_digits_md_states_the_hash_of_the_shipped_file():
    noted = re.search(r"`([0-9a-f]{64})`", DIGITS.with_suffix(".md").read_text())[1]
    assert noted == hashlib.sha256(DIGITS.read_bytes()).hexdigest()


def test_the_shipped_digits_are_training_images_of_mnist(real_data):
    stored, ours = read_arrays(real_data / "mnist" / "mnist.npz"), read_arrays(DIGITS)
    known = {
        image.tobytes(): label
        for image, label in zip(stored["train_images"], stored["train_labels"], strict=True)
    }
    tests = {image.tobytes() for image in stored["test_images"]}
    for split in ("train", "val", "test"):
        images = [image.tobytes() for image in ours[f"{split}_images"]]
        assert [known.get(image) for image in images] == ours[f"{split}_labels"].tolist()
        assert tests.isdisjoint(images)


@pytest.fixture
def short_tables(monkeypatch):
    monkeypatch.setattr(mnist, "AMAT_ROWS", {mnist.TRAIN_VALID: 12, mnist.TEST: 5})


@pytest.fixture
def table(rng, short_tables):
    grey = rng.integers(0, 256, (12, 784)) / 255
    return np.hstack([grey, rng.integers(0, 10, (12, 1))])


def write_table(path, table):
    np.savetxt(path, table, fmt="%.8g")


def test_amat_values_become_bytes_column_by_column(tmp_path, table):
    write_table(tmp_path / "x.amat", table)
    images, labels = mnist.read_amat(tmp_path / "x.amat", mnist.TRAIN_VALID)
    assert images.dtype == np.uint8
    columns = images.transpose(0, 2, 1).reshape(12, -1)
    assert np.array_equal(columns, np.rint(table[:, :-1] * 255))
    assert images[3, 0, 1] == np.rint(table[3, 28] * 255)
    assert labels.tolist() == table[:, -1].tolist()


def test_a_zipped_amat_file_reads_the_same(tmp_path, table):
    write_table(tmp_path / "x.amat", table)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / "x.amat", f"somewhere/{mnist.TRAIN_VALID}")
    bare = mnist.read_amat(tmp_path / "x.amat", mnist.TRAIN_VALID)
    packed = mnist.read_amat(tmp_path / "x.zip", mnist.TRAIN_VALID)
    assert all(np.array_equal(a, b) for a, b in zip(bare, packed, strict=True))
    with pytest.raises(InputError, match=r"x\.zip cannot be used: .*_test\.amat is missing in it"):
        mnist.read_amat(tmp_path / "x.zip", mnist.TEST)


def test_a_truncated_amat_file_is_refused(tmp_path, table):
    write_table(tmp_path / "x.amat", table[:-1])
    with pytest.raises(InputError, match="must have 12 lines of 785 numbers, got 11 of 785"):
        mnist.read_amat(tmp_path / "x.amat", mnist.TRAIN_VALID)
    write_table(tmp_path / "x.amat", table)
    content = (tmp_path / "x.amat").read_text()
    (tmp_path / "x.amat").write_text(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"x\.amat cannot be used: it is no table of numbers"):
        mnist.read_amat(tmp_path / "x.amat", mnist.TRAIN_VALID)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 1.5, "grey values must be 0 to 1, got 0 to 1.5"),
        (0, np.nan, "grey values must be 0 to 1"),
        (-1, 2.5, "must be a whole label"),
    ],
)
def test_impossible_amat_values_are_refused(tmp_path, table, column, value, message):
    table[:, 1] = 0
    table[2, column] = value
    write_table(tmp_path / "x.amat", table)
    with pytest.raises(InputError, match=rf"x\.amat cannot be used: .*{message}"):
        mnist.read_amat(tmp_path / "x.amat", mnist.TRAIN_VALID)


def test_a_file_that_is_neither_text_nor_zip_is_refused(tmp_path):
    for name, reason in (("x.amat", "no table of numbers"), ("x.zip", "cannot be read")):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00" * 50)
        with pytest.raises(InputError, match=rf"{name} cannot be used: it (is )?{reason}"):
            mnist.read_amat(tmp_path / name, mnist.TEST)


@pytest.mark.parametrize("quarters", range(5))
def test_rotations_by_90_degrees_are_exact_and_counter_clockwise(rng, quarters):
    images = rng.integers(0, 256, (3, 7, 7), np.uint8)
    images[:, [0, -1]] = images[:, :, [0, -1]] = 0  # rounding may push the border outside
    rotated = mnist.rotate(images, np.full(3, quarters * math.pi / 2))
    assert np.array_equal(rotated, np.rot90(images, quarters, axes=(1, 2)))


def test_each_image_has_its_own_angle(rng):
    images = np.pad(rng.integers(0, 256, (2, 5, 5), np.uint8), ((0, 0), (1, 1), (1, 1)))
    rotated = mnist.rotate(images, np.array([0.0, math.pi]))
    assert np.array_equal(rotated[0], images[0])
    assert np.array_equal(rotated[1], images[1, ::-1, ::-1])


def test_rotation_interpolates_between_four_pixels():
    """One pixel of a rotation by 30°: rotate back, and interpolate between four neighbours."""
    image = np.arange(81, dtype=np.uint8).reshape(9, 9)
    angle, row, col = math.pi / 6, 3, 6
    x, y = col - 4, -(row - 4)
    from_x = math.cos(angle) * x + math.sin(angle) * y
    from_y = -math.sin(angle) * x + math.cos(angle) * y
    back_row, back_col = 4 - from_y, 4 + from_x
    top, left = int(back_row), int(back_col)
    down, right = back_row - top, back_col - left
    expected = sum(
        weight * image[r, c]
        for r, c, weight in [
            (top, left, (1 - down) * (1 - right)),
            (top, left + 1, (1 - down) * right),
            (top + 1, left, down * (1 - right)),
            (top + 1, left + 1, down * right),
        ]
    )
    assert mnist.rotate(image[None], np.array([angle]))[0, row, col] == round(expected)


def test_pixels_from_outside_the_image_are_black():
    rotated = mnist.rotate(np.full((1, 28, 28), 255, np.uint8), np.array([math.pi / 4]))
    assert rotated[0, 0, 0] == rotated[0, -1, 0] == 0
    assert rotated[0, 14, 14] == 255


def test_random_rotation_keeps_the_order_and_draws_angles_from_the_seed(rng):
    images = rng.integers(0, 256, (30, 9, 9), np.uint8)
    angles = np.random.default_rng(mnist.TEST_SEED).uniform(0, 2 * math.pi, 30)
    rotated = mnist.rotate_randomly(images)
    for image, angle, result in zip(images, angles, rotated, strict=True):
        assert np.array_equal(mnist.rotate(image[None], np.array([angle]))[0], result)
    assert not np.array_equal(rotated, mnist.rotate_randomly(images, seed=1))
    quarters = np.histogram(angles, bins=4, range=(0, 2 * math.pi))[0]
    assert quarters.min() >= 3, "all around"


def test_rotated_mnist_needs_62000_digits():
    few = np.zeros((10, 28, 28), np.uint8)
    with pytest.raises(InputError, match=r"needs 62,000, got 10; use the whole MNIST"):
        mnist.generate_rotated_mnist(few, np.zeros(10, np.uint8))


def test_generation_reproduces_the_stored_file(real_data):
    """All 48,608,000 pixels and 62,000 labels."""
    digits = read_arrays(real_data / "mnist" / "mnist.npz")
    stored = read_arrays(real_data / "rotmnist-generated" / "rotmnist-generated.npz")
    made = mnist.generate_rotated_mnist(
        np.concatenate([digits["train_images"], digits["test_images"]]),
        np.concatenate([digits["train_labels"], digits["test_labels"]]),
    )
    assert {name: len(array) for name, array in made.items()} == {
        f"{split}_{kind}": count
        for split, count in mnist.COUNTS.items()
        for kind in ("images", "labels")
    }
    differing = {name: int((array != stored[name]).sum()) for name, array in made.items()}
    assert differing == dict.fromkeys(made, 0)
