"""HDF5 files, plain and compressed; h5py missing."""

import gzip
import sys

import numpy as np
import pytest

from turnwise.data.catalogue import entry
from turnwise.data.readers import find_reader
from turnwise.data.readers.pcam import decompress, read_array
from turnwise.data.storage import DataFolders
from turnwise.errors import InputError

h5py = pytest.importorskip("h5py")


@pytest.fixture
def stored(tmp_path, rng):
    array = rng.integers(0, 256, (3, 96, 96, 3), np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = array
    return array


def test_hdf5_files_are_read_as_written(tmp_path, stored):
    assert np.array_equal(read_array(tmp_path / "x.h5", "x"), stored)


def test_a_compressed_file_is_decompressed_once_into_the_cache(tmp_path, stored):
    packed = tmp_path / "x.h5.gz"
    packed.write_bytes(gzip.compress((tmp_path / "x.h5").read_bytes()))
    plain = decompress(packed, tmp_path / "cache")
    assert plain == tmp_path / "cache" / "pcam" / "x.h5"
    assert np.array_equal(read_array(plain, "x"), stored)
    packed.write_bytes(b"")
    assert decompress(packed, tmp_path / "cache") == plain
    assert decompress(plain, tmp_path / "elsewhere") == plain


def test_a_truncated_compressed_file_leaves_nothing(tmp_path, stored):
    packed = tmp_path / "x.h5.gz"
    packed.write_bytes(gzip.compress((tmp_path / "x.h5").read_bytes())[:-50])
    with pytest.raises(InputError, match=r"x\.h5\.gz cannot be used: it cannot be decompressed"):
        decompress(packed, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_damaged_files_and_missing_arrays_are_refused(tmp_path, stored):
    with pytest.raises(InputError, match=r"x\.h5 cannot be used: .* with an array 'y'"):
        read_array(tmp_path / "x.h5", "y")
    content = (tmp_path / "x.h5").read_bytes()
    (tmp_path / "x.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"x\.h5 cannot be used: it is no whole HDF5 file"):
        read_array(tmp_path / "x.h5", "x")


def test_without_h5py_the_error_tells_how_to_install_it(tmp_path, stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"run pip install 'turnwise\[pcam\]'"):
        read_array(tmp_path / "x.h5", "x")


@pytest.mark.parametrize("packed", [False, True])
def test_pcam_is_read_plain_and_compressed(tmp_path, rng, read, packed):
    (tmp_path / "pcam").mkdir()
    labels = {}
    for number, split in enumerate(("train", "valid", "test")):
        stem = tmp_path / "pcam" / f"camelyonpatch_level_2_split_{split}"
        labels[split] = rng.integers(0, 2, (3 + number, 1, 1, 1))
        images = rng.integers(0, 256, (3 + number, 96, 96, 3), np.uint8)
        for part, array in (("x", images), ("y", labels[split])):
            path = stem.with_name(f"{stem.name}_{part}.h5")
            with h5py.File(path, "w") as file:
                file[part] = array
            if packed:
                gz = path.with_name(path.name + ".gz")
                gz.write_bytes(gzip.compress(path.read_bytes(), 1))
                path.unlink()
    # packed files are found one by one, so nothing is downloaded although some could be missing
    folders = DataFolders((tmp_path,), tmp_path / "cache", download=packed)
    splits = find_reader("pcam")(entry("pcam"), folders, None).splits
    assert {split: part.images.shape for split, part in splits.items()} == {
        "train": (3, 3, 96, 96),
        "val": (4, 3, 96, 96),
        "test": (5, 3, 96, 96),
    }
    assert splits["val"].labels.tolist() == labels["valid"].flatten().tolist()


def test_pcam_needs_h5py_before_it_downloads(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"run pip install 'turnwise\[pcam\]'"):
        read("pcam")
