"""PatchCamelyon's HDF5 files, plain or compressed by gzip.  Only here is h5py imported."""

import gzip
import shutil
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from turnwise.data.readers.arrays import damaged
from turnwise.data.storage import ANOTHER_CACHE
from turnwise.errors import InputError
from turnwise.files import fill_atomic

SPLITS = {"train": "train", "val": "valid", "test": "test"}


def file_name(split: str, part: str) -> str:
    """The published name; `part` is "x" for pictures and "y" for labels.

    >>> file_name("val", "y")
    'pcam/camelyonpatch_level_2_split_valid_y.h5'
    """
    return f"pcam/camelyonpatch_level_2_split_{SPLITS[split]}_{part}.h5"


def unpacked(path: Path, cache: Path) -> Path:
    """The .h5 of an .h5.gz, unpacked once into the cache; an .h5 is returned as it is."""
    if path.suffix != ".gz":
        return path
    target = cache / "pcam" / path.stem

    def unpack(temporary: Path) -> None:
        with gzip.open(path) as packed, temporary.open("wb") as plain:
            try:
                shutil.copyfileobj(packed, plain, 1 << 20)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise damaged(path, f"it cannot be unpacked ({error})") from None

    if not target.exists():
        fill_atomic(target, unpack, ANOTHER_CACHE)
    return target


def import_h5py() -> ModuleType:
    """The module h5py, or how to get it; asked before 8 GB are downloaded."""
    try:
        import h5py
    except ImportError:
        raise InputError(
            "pcam is stored as HDF5, which needs h5py; run pip install 'turnwise[pcam]'."
        ) from None
    return cast(ModuleType, h5py)


def read_array(path: Path, key: str) -> NDArray[Any]:
    """The array called `key` in an HDF5 file."""
    h5py = import_h5py()
    try:
        with h5py.File(path, "r") as file:
            return np.asarray(file[key][()])
    except (OSError, KeyError, ValueError, RuntimeError, AttributeError) as error:
        raise damaged(path, f"it is no whole HDF5 file with an array {key!r} ({error})") from None
