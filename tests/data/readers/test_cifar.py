"""CIFAR-10's binary batches, in the archive and unpacked."""

import io
import tarfile

import numpy as np
import pytest

from turnwise.data.readers.cifar import TEST, TRAIN, read_batches, split_records
from turnwise.errors import InputError

FOLDER = "cifar-10-batches-bin"
COUNT = 4


@pytest.fixture
def batches(rng):
    return {name: rng.integers(0, 10, (COUNT, 3073), np.uint8) for name in (*TRAIN, *TEST)}


def write_archive(path, batches):
    with tarfile.open(path, "w:gz") as archive:
        for name, records in batches.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = records.nbytes
            archive.addfile(member, io.BytesIO(records.tobytes()))


def test_archive_and_folder_are_the_same(tmp_path, batches):
    write_archive(tmp_path / "c.tar.gz", batches)
    (tmp_path / FOLDER).mkdir()
    for name, records in batches.items():
        (tmp_path / FOLDER / name).write_bytes(records.tobytes())
    packed, plain = read_batches(tmp_path / "c.tar.gz"), read_batches(tmp_path / FOLDER)
    for split in ("train", "test"):
        assert all(np.array_equal(a, b) for a, b in zip(packed[split], plain[split], strict=True))
    assert packed["train"][0].shape == (5 * COUNT, 32, 32, 3)
    assert packed["test"][1].tolist() == batches[TEST[0]][:, 0].tolist()


def test_a_record_is_label_then_red_then_rows(tmp_path):
    record = np.zeros(3073, np.uint8)
    record[0], record[1 + 1024 + 2 * 32 + 5] = 7, 99  # green, row 2, col 5
    images, labels = split_records(record.tobytes(), tmp_path)
    assert labels.tolist() == [7]
    assert np.argwhere(images[0]).tolist() == [[2, 5, 1]]


def test_half_a_record(tmp_path, batches):
    (tmp_path / FOLDER).mkdir()
    for name, records in batches.items():
        (tmp_path / FOLDER / name).write_bytes(records.tobytes()[:-5])
    with pytest.raises(InputError, match=r"data_batch_1\.bin cannot be used: .* got 12,287 bytes"):
        read_batches(tmp_path / FOLDER)


def test_a_missing_batch(tmp_path, batches):
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(InputError, match=r"data_batch_1\.bin cannot be read in it"):
        read_batches(tmp_path / FOLDER)
    del batches["test_batch.bin"]
    write_archive(tmp_path / "c.tar.gz", batches)
    with pytest.raises(InputError, match=r"c\.tar\.gz cannot be used: test_batch\.bin is missing"):
        read_batches(tmp_path / "c.tar.gz")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_archive(tmp_path, batches, share):
    write_archive(path := tmp_path / "c.tar.gz", batches)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=r"c\.tar\.gz cannot be used: .*good copy"):
        read_batches(path)


def cifar_parts(folder, rng, encode):
    folder.mkdir()
    first, second, test = (rng.integers(0, 256, (64, 32, 3), np.uint8) for _ in range(3))
    runs = [encode([strip], "WEBP", lossless=True) for strip in (first, second, test)]
    labels = np.array([1, 2], np.uint8)
    np.savez(
        folder / "cifar10_part1.npz",
        train_webp=runs[0][0],
        train_webp_offsets=runs[0][1],
        train_labels=labels,
    )
    np.savez(
        folder / "cifar10_part2.npz",
        train_webp=runs[1][0],
        train_webp_offsets=runs[1][1],
        train_labels=labels + 2,
        test_webp=runs[2][0],
        test_webp_offsets=runs[2][1],
        test_labels=labels + 4,
    )
    return np.concatenate([first, second]).reshape(4, 32, 32, 3)


def test_cifar_from_packed_parts(tmp_path, rng, encode, read):
    images = cifar_parts(tmp_path / "cifar10", rng, encode)
    splits = read("cifar10").splits
    assert np.array_equal(splits["train"].images.permute(0, 2, 3, 1).numpy(), images)
    assert splits["train"].labels.tolist() == [1, 2, 3, 4]
    assert splits["test"].labels.tolist() == [5, 6]


def test_cifar_from_binary_batches(tmp_path, rng, read):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(rng.integers(0, 10, (2, 3073), np.uint8).tobytes())
    source = read("cifar10")
    assert source.splits["train"].images.shape == (10, 3, 32, 32)
    assert "binary" in source.provenance
    (folder / "data_batch_3.bin").write_bytes(np.full(3073, 10, np.uint8).tobytes())
    with pytest.raises(InputError, match=r"labels must be 0 to 9, got .* to 10"):
        read("cifar10")
