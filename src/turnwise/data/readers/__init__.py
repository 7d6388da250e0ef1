"""Readers of the data sets in the catalogue, registered by name.

To support another format, add a module to this package with a function decorated by
`@reader("name")`, and write the name into the catalogue.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.catalogue import Entry
from turnwise.data.dataset import Examples
from turnwise.data.storage import DataFolders
from turnwise.errors import InputError, require_known


@dataclass(frozen=True, eq=False)
class Source:
    """The splits as stored; `val` is missing if it has to be held out from train."""

    splits: dict[str, Examples]
    provenance: str


# A reader takes the entry, the folders to search, and the requested image size, which selects the
# file of a set that is published in several sizes.
Reader = Callable[[Entry, DataFolders, int | None], Source]
_READERS: dict[str, Reader] = {}


def reader(name: str) -> Callable[[Reader], Reader]:
    """Register a function as the reader called `name`."""

    def register(function: Reader) -> Reader:
        assert name not in _READERS, f"there are two readers called {name!r}"
        _READERS[name] = function
        return function

    return register


def all_readers() -> dict[str, Reader]:
    """Import every module of this package, and return all registered readers."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(_READERS)


def find_reader(name: str) -> Reader:
    """Return the reader called `name`."""
    readers = all_readers()
    require_known(name, readers, "reader")
    return readers[name]


def damaged(path: Path, reason: object) -> InputError:
    """Return the error for a file whose content is not what its name says."""
    return InputError(f"{path} cannot be used: {reason}; replace it by a good copy.")


def to_examples(
    images: NDArray[Any], labels: NDArray[Any], path: Path, classes: int, channels: int
) -> Examples:
    """Check one split that was read from `path`, and convert it to `Examples`.

    Images have shape (n, rows, cols), or (n, rows, cols, channels).
    """
    shape = "(n, rows, cols)" if channels == 1 else f"(n, rows, cols, {channels})"
    if channels == 1 and images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    good_shape = (
        images.ndim == 3 if channels == 1 else images.ndim == 4 and images.shape[3] == channels
    )
    if images.dtype != np.uint8 or not good_shape or 0 in images.shape:
        raise damaged(
            path, f"images must be uint8 of shape {shape}, got {images.dtype} of {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.ndim == 0 or labels.size != len(labels):
        raise damaged(
            path, f"labels must be one integer each, got {labels.dtype} of {labels.shape}"
        )
    if len(images) != len(labels):
        raise damaged(path, f"it has {len(images)} images but {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise damaged(
            path, f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}"
        )
    pixels = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    pixels = pixels.unsqueeze(1) if channels == 1 else pixels.permute(0, 3, 1, 2).contiguous()
    return Examples(pixels, torch.from_numpy(labels.reshape(-1).astype(np.int64)))


def to_pixels(images: NDArray[Any], path: Path) -> UInt8[Tensor, "image channel row col"]:
    """Check and convert images of shape (n, rows, cols), or with 1 or 3 channels in the end."""
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        raise damaged(
            path,
            "images must be uint8 of shape (n, rows, cols) or (n, rows, cols, 3), got "
            f"{images.dtype} of {images.shape}",
        )
    if images.shape[3] not in (1, 3):
        raise damaged(path, f"images must have 1 or 3 channels, got {images.shape[3]}")
    pixels = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    return pixels.permute(0, 3, 1, 2).contiguous()
