"""Examples stored as a run of encoded files end to end, cut at given offsets.

Each encoded file is one picture, or a one-column strip of square pictures (CIFAR-10 lies in WebP
strips of 500).

Arrays from .npz files, checked before use: nothing is unpickled, nothing is believed.

A file holds `train_images`, `train_labels`, `val_…`, `test_…`; pictures are (n, rows, cols) or
(n, rows, cols, 3) bytes, or lie packed in `train_jpeg` or `train_webp` (see `packed`).
"""

import io
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

from turnwise.data.dataset import Examples
from turnwise.errors import InputError

_FORMATS = ("JPEG", "WEBP", "PNG")


def _decode(blob: bytes, number: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(blob), formats=_FORMATS) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"encoded picture {number} is damaged ({error})") from None
    rows, cols = pixels.shape[:2]
    if rows % cols:
        raise ValueError(f"encoded picture {number} of {rows}×{cols} pixels is no strip of squares")
    return pixels.reshape(rows // cols, cols, cols, 3)


def unpack(blob: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.uint8]:
    """All pictures of the run, (n, side, side, 3); damage raises ValueError with the reason."""
    if blob.dtype != np.uint8 or blob.ndim != 1:
        raise ValueError(f"a run must be a row of uint8, got {blob.dtype} of {blob.shape}")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            f"offsets must be a row of integers, got {offsets.dtype} of {offsets.shape}"
        )
    cuts = [int(offset) for offset in offsets]
    if cuts[0] != 0 or cuts[-1] != len(blob) or any(a >= b for a, b in pairwise(cuts)):
        raise ValueError(f"offsets must ascend from 0 to the length of the run, {len(blob)}")
    pictures = [
        _decode(blob[start:end].tobytes(), number)
        for number, (start, end) in enumerate(pairwise(cuts))
    ]
    sides = {picture.shape[1] for picture in pictures}
    if len(sides) > 1:
        raise ValueError(f"pictures must have one size, got {min(sides)} to {max(sides)} pixels")
    return np.concatenate(pictures)


Arrays = dict[str, NDArray[Any]]
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    SyntaxError,
    MemoryError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def damaged(path: Path, why: object) -> InputError:
    """The one message for a file whose content is not what its name promises."""
    return InputError(f"{path} cannot be used: {why}; replace it by a good copy.")


def read_arrays(path: Path, wanted: Iterable[str] | None = None) -> Arrays:
    """The arrays of an .npz file called `wanted` (those that exist; None: all)."""
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array and not an .npz file")
            names = file.files if wanted is None else [n for n in wanted if n in file.files]
            return {name: file[name] for name in names}
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(path, f"it is damaged or no plain .npz file ({reason})") from None


def need(arrays: Arrays, name: str, path: Path) -> NDArray[Any]:
    """One array, or an error that names the file and what it does hold."""
    if name not in arrays:
        held = ", ".join(sorted(arrays)) or "none of those needed"
        raise damaged(path, f"the array {name!r} is missing (found: {held})")
    return arrays[name]


def to_examples(
    images: NDArray[Any], labels: NDArray[Any], path: Path, classes: int, channels: int
) -> Examples:
    """Check one split as read from `path`, and make it `Examples`."""
    shape = "(n, rows, cols)" if channels == 1 else f"(n, rows, cols, {channels})"
    if channels == 1 and images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    good_shape = (
        images.ndim == 3 if channels == 1 else images.ndim == 4 and images.shape[3] == channels
    )
    if images.dtype != np.uint8 or not good_shape or 0 in images.shape:
        raise damaged(
            path, f"pictures must be uint8 of shape {shape}, got {images.dtype} of {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.ndim == 0 or labels.size != len(labels):
        raise damaged(
            path, f"labels must be one integer each, got {labels.dtype} of {labels.shape}"
        )
    if len(images) != len(labels):
        raise damaged(path, f"it has {len(images)} pictures but {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise damaged(
            path, f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}"
        )
    pixels = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    pixels = pixels.unsqueeze(1) if channels == 1 else pixels.permute(0, 3, 1, 2).contiguous()
    return Examples(pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64)))


def split_arrays(arrays: Arrays, split: str, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Examples and labels of one split, unpacked where they are packed."""
    labels = need(arrays, f"{split}_labels", path)
    for kind in ("jpeg", "webp"):
        if (key := f"{split}_{kind}") in arrays:
            offsets = need(arrays, f"{key}_offsets", path)
            try:
                return unpack(arrays[key], offsets), labels
            except ValueError as error:
                raise damaged(path, f"{key}: {error}") from None
    return need(arrays, f"{split}_images", path), labels


def read_splits(
    path: Path, splits: Sequence[str], classes: int, channels: int
) -> dict[str, Examples]:
    """The named splits of one .npz file."""
    endings = ("images", "labels", "jpeg", "jpeg_offsets", "webp", "webp_offsets")
    arrays = read_arrays(path, [f"{split}_{ending}" for split in splits for ending in endings])
    return {
        split: to_examples(*split_arrays(arrays, split, path), path, classes, channels)
        for split in splits
    }
