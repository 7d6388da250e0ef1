"""Small files in every format that is read, and no look outside: own cache, no TURNWISE_DATA."""

import gzip
import io
import struct

import numpy as np
import pytest
from PIL import Image

from turnwise.data.catalogue import entry
from turnwise.data.readers import find_reader
from turnwise.data.storage import DataFolders


@pytest.fixture(autouse=True)
def nothing_from_outside(request, monkeypatch, tmp_path):
    if "real_data" in request.fixturenames:
        request.getfixturevalue("real_data")  # may itself read TURNWISE_DATA
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _idx_bytes(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def idx_bytes():
    return _idx_bytes


@pytest.fixture
def write_idx(rng):
    """Four idx files of a little MNIST below `folder`; returns the arrays."""

    def write(folder, train=40, test=10, packed=True):
        folder.mkdir(parents=True)
        arrays = {}
        for stem, count in (("train", train), ("t10k", test)):
            arrays[f"{stem}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
            arrays[f"{stem}-labels-idx1-ubyte"] = rng.integers(0, 10, count, np.uint8)
        for name, array in arrays.items():
            content = _idx_bytes(array)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)
        return arrays

    return write


@pytest.fixture
def encode():
    """Images, encoded one by one and laid end to end: the run and its offsets."""

    def run(images, kind="JPEG", **options):
        blobs = []
        for image in images:
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, kind, **options)
            blobs.append(stream.getvalue())
        offsets = np.cumsum([0, *map(len, blobs)])
        return np.frombuffer(b"".join(blobs), np.uint8), offsets

    return run


@pytest.fixture
def write_npz(rng):
    """A set with train, val and test in one .npz file; keyword arguments replace arrays."""

    def write(path, classes=2, shape=(28, 28), counts=(6, 4, 4), **changes):
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for split, count in zip(("train", "val", "test"), counts, strict=True):
            arrays[f"{split}_images"] = rng.integers(0, 256, (count, *shape), np.uint8)
            arrays[f"{split}_labels"] = rng.integers(0, classes, (count, 1)).astype(np.uint8)
        arrays |= changes
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        return arrays

    return write


@pytest.fixture
def read(tmp_path):
    """Read a data set of the catalogue from `tmp_path`, without downloads."""
    folders = DataFolders((tmp_path, tmp_path / "cache"), tmp_path / "cache", download=False)
    return lambda name, image_size=None: find_reader(entry(name).reader)(
        entry(name), folders, image_size
    )


@pytest.fixture
def write_folder(rng):
    """Random images below `folder/<class>/`: `counts` maps a class to its number of images."""

    def write(folder, counts, size=(12, 12), colour=False, suffix=".png"):
        for name, count in counts.items():
            (folder / name).mkdir(parents=True)
            for number in range(count):
                shape = (*size, 3) if colour else size
                pixels = rng.integers(0, 256, shape, np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number:03}{suffix}")
        return folder

    return write
