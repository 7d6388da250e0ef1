"""CIFAR-10's binary batches, in the archive and unpacked."""

import io
import tarfile

import numpy as np
import pytest

from turnwise.data.readers.cifar import FOLDER, TEST, TRAIN, read_batches, split_records
from turnwise.errors import InputError

PICTURES = 4


@pytest.fixture
def batches(rng):
    return {name: rng.integers(0, 10, (PICTURES, 3073), np.uint8) for name in (*TRAIN, *TEST)}


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
    assert packed["train"][0].shape == (5 * PICTURES, 32, 32, 3)
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
