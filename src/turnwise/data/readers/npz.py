"""Data sets in .npz files: MedMNIST, DermaMNIST-C, and sets packed into one file.

A file holds `train_images`, `train_labels`, `val_…` and `test_…`.  Images are (n, rows, cols) or
(n, rows, cols, 3) bytes.  Encoded images are stored as `train_jpeg` or `train_webp`: the encoded
files end to end, with the offsets between them in `train_jpeg_offsets`.  Each encoded file is one
image, or a one-column strip of square images (CIFAR-10 is stored in WebP strips of 500).

Nothing is unpickled, and every array is checked before use.
"""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from turnwise.data.catalogue import Entry
from turnwise.data.dataset import SPLITS, Examples, concatenate
from turnwise.data.limits import require_small_unpacked
from turnwise.data.readers import Source, damaged, reader, to_examples
from turnwise.data.storage import DataFolders, find_or_download, where_to_put
from turnwise.errors import InputError

Arrays = dict[str, NDArray[Any]]
SHIPPED = Path(__file__).parent  # digits.npz, tiles.npz; see digits.md, tiles.md and tools/
_FORMATS = ("JPEG", "WEBP", "PNG")
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    SyntaxError,
    MemoryError,
    RuntimeError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def _decode(blob: bytes, number: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(blob), formats=_FORMATS) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"encoded image {number} is damaged ({error})") from None
    rows, cols = pixels.shape[:2]
    if rows % cols:
        raise ValueError(f"encoded image {number} of {rows}×{cols} pixels is no strip of squares")
    return pixels.reshape(rows // cols, cols, cols, 3)


def decode_images(blob: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.uint8]:
    """Decode files stored end to end into (n, side, side, 3); raise ValueError for damage."""
    if blob.dtype != np.uint8 or blob.ndim != 1:
        raise ValueError(f"encoded images must be a row of uint8, got {blob.dtype} of {blob.shape}")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            f"offsets must be a row of integers, got {offsets.dtype} of {offsets.shape}"
        )
    cuts = [int(offset) for offset in offsets]
    if cuts[0] != 0 or cuts[-1] != len(blob) or any(a >= b for a, b in pairwise(cuts)):
        raise ValueError(f"offsets must ascend from 0 to the number of bytes, {len(blob)}")
    images = [
        _decode(blob[start:end].tobytes(), number)
        for number, (start, end) in enumerate(pairwise(cuts))
    ]
    sides = {image.shape[1] for image in images}
    if len(sides) > 1:
        raise ValueError(f"images must have one size, got {min(sides)} to {max(sides)} pixels")
    return np.concatenate(images)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """Read those of the arrays `names` that an .npz file holds; None reads all."""
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array and not an .npz file")
            found = file.files if names is None else [n for n in names if n in file.files]
            assert file.zip is not None, "the file is open"
            sizes = {info.filename: info.file_size for info in file.zip.infolist()}
            require_small_unpacked(path, sum(sizes.get(f"{name}.npy", 0) for name in found))
            return {name: file[name] for name in found}
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(path, f"it is damaged or no plain .npz file ({reason})") from None


def require_array(arrays: Arrays, name: str, path: Path) -> NDArray[Any]:
    """Return one array; the error for a missing one lists the arrays of the file."""
    if name not in arrays:
        held = ", ".join(sorted(arrays)) or "none of those needed"
        raise damaged(path, f"the array {name!r} is missing (found: {held})")
    return arrays[name]


def _split_arrays(arrays: Arrays, split: str, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images and labels of one split, decoded if they are encoded."""
    labels = require_array(arrays, f"{split}_labels", path)
    for kind in ("jpeg", "webp"):
        if (key := f"{split}_{kind}") in arrays:
            offsets = require_array(arrays, f"{key}_offsets", path)
            try:
                return decode_images(arrays[key], offsets), labels
            except ValueError as error:
                raise damaged(path, f"{key}: {error}") from None
    return require_array(arrays, f"{split}_images", path), labels


def read_splits(path: Path, entry: Entry, splits: Sequence[str] = SPLITS) -> dict[str, Examples]:
    """Read the named splits from one .npz file."""
    endings = ("images", "labels", "jpeg", "jpeg_offsets", "webp", "webp_offsets")
    arrays = read_arrays(path, [f"{split}_{ending}" for split in splits for ending in endings])
    return {
        split: to_examples(
            *_split_arrays(arrays, split, path), path, len(entry.classes), entry.channels
        )
        for split in splits
    }


def _missing(entry: Entry, folders: DataFolders, file: str) -> InputError:
    notes = f" ({entry.notes})" if entry.notes else ""
    return InputError(
        f"{entry.name} is not in {folders} and cannot be downloaded; "
        f"{where_to_put([file], folders.cache)}{notes}."
    )


@reader("npz")
def _read_npz(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    (file,) = entry.files[0]
    found = folders.find(file)
    if found is None:
        raise _missing(entry, folders, file)
    return Source(read_splits(found[0], entry), f"{entry.title}; from {found[0].name}")


@reader("shipped")
def _read_shipped(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    """Read a file that ships with turnwise."""
    return Source(read_splits(SHIPPED / f"{entry.name}.npz", entry), entry.title)


def sizes_to_try(requested: int | None, published: tuple[int, ...]) -> tuple[int, ...]:
    """Return the published sizes that can be used: the requested one, or else larger ones first.

    >>> sizes_to_try(None, (28, 64)), sizes_to_try(64, (28, 64)), sizes_to_try(40, (28, 64))
    ((28,), (64,), (64, 28))
    """
    if requested is None:
        return published[:1]
    if requested in published:
        return (requested,)
    smaller = [size for size in published if size < requested]
    return (*(size for size in published if size > requested), *reversed(smaller))


@reader("medmnist")
def _read_medmnist(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    sizes = sizes_to_try(image_size, entry.image_sizes)
    reconstructed = entry.options.get("reconstructed", {})
    for size in sizes:
        official = [download.file for download in entry.downloads_of(size)]
        if found := folders.find(*official):
            break
        if size in reconstructed and (found := folders.find(reconstructed[size])):
            note = f"reconstructed from HAM10000, not the official file; from {found[0].name}"
            return Source(read_splits(found[0], entry), note)
    else:
        found = find_or_download(entry.name, entry.downloads_of(sizes[0]), folders)
    return Source(read_splits(found[0], entry), f"official MedMNIST file, from {found[0].name}")


@reader("dermamnist_c")
def _read_dermamnist_c(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    sizes = sizes_to_try(image_size, entry.image_sizes)
    files = [entry.options["reconstructed"][size] for size in sizes]
    found = next(filter(None, map(folders.find, files)), None)
    if found is None:
        raise _missing(entry, folders, files[0])
    path, keys = found[0], [f"{split}_dermamnist_c_split" for split in SPLITS]
    stored = read_splits(path, entry)
    arrays = read_arrays(path, keys)
    parts = [require_array(arrays, key, path).reshape(-1) for key in keys]
    target = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    together = concatenate([stored[split] for split in SPLITS])
    if len(target) != len(together) or set(target.unique().tolist()) != {0, 1, 2}:
        raise damaged(path, f"the arrays {', '.join(keys)} must hold 0, 1 or 2 for every image")
    splits = {split: together.take((target == i).nonzero()[:, 0]) for i, split in enumerate(SPLITS)}
    return Source(splits, f"reconstructed from HAM10000, DermaMNIST-C split; from {path.name}")
