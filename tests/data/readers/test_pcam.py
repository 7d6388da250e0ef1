"""HDF5 files, plain and compressed; h5py missing."""

import gzip
import sys

import numpy as np
import pytest

from turnwise.data.readers.pcam import read_array, unpacked
from turnwise.errors import InputError

h5py = pytest.importorskip("h5py")


@pytest.fixture
def stored(tmp_path, rng):
    array = rng.integers(0, 256, (3, 96, 96, 3), np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = array
    return array


def test_what_was_written_is_read(tmp_path, stored):
    assert np.array_equal(read_array(tmp_path / "x.h5", "x"), stored)


def test_a_compressed_file_is_unpacked_once_into_the_cache(tmp_path, stored):
    packed = tmp_path / "x.h5.gz"
    packed.write_bytes(gzip.compress((tmp_path / "x.h5").read_bytes()))
    plain = unpacked(packed, tmp_path / "cache")
    assert plain == tmp_path / "cache" / "pcam" / "x.h5"
    assert np.array_equal(read_array(plain, "x"), stored)
    packed.write_bytes(b"")
    assert unpacked(packed, tmp_path / "cache") == plain
    assert unpacked(plain, tmp_path / "elsewhere") == plain


def test_a_truncated_compressed_file_leaves_nothing(tmp_path, stored):
    packed = tmp_path / "x.h5.gz"
    packed.write_bytes(gzip.compress((tmp_path / "x.h5").read_bytes())[:-50])
    with pytest.raises(InputError, match=r"x\.h5\.gz cannot be used: it cannot be unpacked"):
        unpacked(packed, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_damage_and_missing_arrays(tmp_path, stored):
    with pytest.raises(InputError, match=r"x\.h5 cannot be used: .* with an array 'y'"):
        read_array(tmp_path / "x.h5", "y")
    content = (tmp_path / "x.h5").read_bytes()
    (tmp_path / "x.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"x\.h5 cannot be used: it is no whole HDF5 file"):
        read_array(tmp_path / "x.h5", "x")


def test_without_h5py_the_cure_is_named(tmp_path, stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"run pip install 'turnwise\[pcam\]'"):
        read_array(tmp_path / "x.h5", "x")
