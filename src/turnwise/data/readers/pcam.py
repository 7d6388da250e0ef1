"""PatchCamelyon's HDF5 files, plain or compressed by gzip.  Only this module imports h5py."""

import gzip
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from turnwise.data.catalogue import Entry
from turnwise.data.dataset import SPLITS
from turnwise.data.limits import copy_limited
from turnwise.data.readers import Source, damaged, reader, to_examples
from turnwise.data.storage import CACHE_HINT, DataFolders, find_or_download
from turnwise.errors import InputError
from turnwise.files import fill_atomic


def import_h5py() -> ModuleType:
    """Import h5py; the error for a missing one says how to install it."""
    try:
        import h5py
    except ImportError:
        raise InputError(
            "pcam is stored as HDF5, which needs h5py; run pip install 'turnwise[pcam]'."
        ) from None
    return cast(ModuleType, h5py)


def read_array(path: Path, key: str) -> NDArray[Any]:
    """Read the array called `key` from an HDF5 file."""
    h5py = import_h5py()
    try:
        with h5py.File(path, "r") as file:
            return np.asarray(file[key][()])
    except (OSError, KeyError, ValueError, RuntimeError, AttributeError) as error:
        raise damaged(path, f"it is no whole HDF5 file with an array {key!r} ({error})") from None


def decompress(path: Path, cache: Path) -> Path:
    """Decompress an .h5.gz into the cache, once; return the path of the .h5."""
    if path.suffix != ".gz":
        return path
    target = cache / "pcam" / path.stem

    def fill(temporary: Path) -> None:
        with gzip.open(path) as packed, temporary.open("wb") as plain:
            try:
                copy_limited(packed, plain, path)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise damaged(path, f"it cannot be decompressed ({error})") from None

    if not target.exists():
        fill_atomic(target, fill, CACHE_HINT)
    return target


@reader("pcam")
def _read_pcam(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    import_h5py()  # before 8 GB are downloaded
    paths = folders.find(*entry.files[0]) or [
        decompress(path, folders.cache)
        for path in find_or_download(entry.name, entry.downloads, folders)
    ]
    splits = {}
    for split, images, labels in zip(SPLITS, paths[::2], paths[1::2], strict=True):
        arrays = read_array(images, "x"), read_array(labels, "y")
        splits[split] = to_examples(*arrays, images, len(entry.classes), entry.channels)
    return Source(splits, "original images and labels, from the HDF5 files")
