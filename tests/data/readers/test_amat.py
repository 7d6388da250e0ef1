"""The original rotated MNIST as text, bare and in its zip."""

import zipfile

import numpy as np
import pytest

from turnwise.data.readers import amat
from turnwise.errors import InputError


@pytest.fixture(autouse=True)
def short_files(monkeypatch):
    monkeypatch.setattr(amat, "ROWS", {amat.TRAIN_VALID: 12, amat.TEST: 5})


@pytest.fixture
def table(rng):
    grey = rng.integers(0, 256, (12, 784)) / 255
    return np.hstack([grey, rng.integers(0, 10, (12, 1))])


def write(path, table):
    np.savetxt(path, table, fmt="%.8g")


def test_values_become_bytes_column_by_column(tmp_path, table):
    write(tmp_path / "x.amat", table)
    images, labels = amat.read_amat(tmp_path / "x.amat", amat.TRAIN_VALID)
    assert images.dtype == np.uint8
    columns = images.transpose(0, 2, 1).reshape(12, -1)
    assert np.array_equal(columns, np.rint(table[:, :-1] * 255))
    assert images[3, 0, 1] == np.rint(table[3, 28] * 255)
    assert labels.tolist() == table[:, -1].tolist()


def test_the_zip_reads_the_same(tmp_path, table):
    write(tmp_path / "x.amat", table)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / "x.amat", f"somewhere/{amat.TRAIN_VALID}")
    bare = amat.read_amat(tmp_path / "x.amat", amat.TRAIN_VALID)
    packed = amat.read_amat(tmp_path / "x.zip", amat.TRAIN_VALID)
    assert all(np.array_equal(a, b) for a, b in zip(bare, packed, strict=True))
    with pytest.raises(InputError, match=r"x\.zip cannot be used: .*_test\.amat is missing in it"):
        amat.read_amat(tmp_path / "x.zip", amat.TEST)


def test_a_truncated_table(tmp_path, table):
    write(tmp_path / "x.amat", table[:-1])
    with pytest.raises(InputError, match="must have 12 lines of 785 numbers, got 11 of 785"):
        amat.read_amat(tmp_path / "x.amat", amat.TRAIN_VALID)
    write(tmp_path / "x.amat", table)
    content = (tmp_path / "x.amat").read_text()
    (tmp_path / "x.amat").write_text(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"x\.amat cannot be used: it is no table of numbers"):
        amat.read_amat(tmp_path / "x.amat", amat.TRAIN_VALID)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 1.5, "grey values must be 0 to 1, got 0 to 1.5"),
        (0, np.nan, "grey values must be 0 to 1"),
        (-1, 2.5, "must be a whole label"),
    ],
)
def test_impossible_values(tmp_path, table, column, value, message):
    table[:, 1] = 0
    table[2, column] = value
    write(tmp_path / "x.amat", table)
    with pytest.raises(InputError, match=rf"x\.amat cannot be used: .*{message}"):
        amat.read_amat(tmp_path / "x.amat", amat.TRAIN_VALID)


def test_not_a_text_and_not_a_zip(tmp_path):
    for name, reason in (("x.amat", "no table of numbers"), ("x.zip", "cannot be read")):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00" * 50)
        with pytest.raises(InputError, match=rf"{name} cannot be used: it (is )?{reason}"):
            amat.read_amat(tmp_path / name, amat.TEST)
