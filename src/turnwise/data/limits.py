"""How far a compressed file may unpack, and how large an image may be, before it is refused.

Two megabytes of gzip can hold six gigabytes of zeros.  Real images unpack to 2 to 20 times their
size.  TURNWISE_MAX_UNPACKED (bytes) and TURNWISE_MAX_PIXELS (per image) raise the limits.
"""

import os
import sys
from io import BufferedIOBase
from pathlib import Path

from PIL import Image

from turnwise.errors import InputError, require

UNPACKED_VARIABLE, PIXELS_VARIABLE = "TURNWISE_MAX_UNPACKED", "TURNWISE_MAX_PIXELS"
ALWAYS_ALLOWED = 2**28  # bytes
MAX_RATIO = 100
MAX_SIDE = 65_535  # pixels, as in JPEG
BLOCK = 2**20


def require_small_unpacked(path: Path, unpacked: int) -> None:
    """Raise if `unpacked` bytes are too many for the compressed file at `path`."""
    most = _from_environment(UNPACKED_VARIABLE)
    limit = most or max(ALWAYS_ALLOWED, MAX_RATIO * path.stat().st_size)
    if unpacked > limit:
        raise InputError(
            f"{path} unpacks to more than {limit:,} bytes and is not read, because small files can "
            f"unpack to fill the memory; set {UNPACKED_VARIABLE} to allow more bytes."
        )


def copy_limited(packed: BufferedIOBase, plain: BufferedIOBase, path: Path) -> None:
    """Copy what a compressed file unpacks to, and raise once it is too much."""
    size = 0
    while block := packed.read(BLOCK):
        size += len(block)
        require_small_unpacked(path, size)
        plain.write(block)


def require_small_image(path: Path | str, image: Image.Image) -> None:
    """Raise for an image with too many pixels, before they are decoded."""
    most = _from_environment(PIXELS_VARIABLE) or Image.MAX_IMAGE_PIXELS or sys.maxsize
    cols, rows = image.size
    require(
        rows * cols <= most,
        f"{path} has more than {most:,} pixels and is not opened ({rows:,} × {cols:,}), because "
        f"small files can unpack to fill the memory; make it smaller or set {PIXELS_VARIABLE}.",
    )
    require(
        max(rows, cols) <= MAX_SIDE,
        f"{path} has {rows:,} × {cols:,} pixels; an image has at most {MAX_SIDE:,} a side.",
    )


def _from_environment(variable: str) -> int:
    text = os.environ.get(variable, "")
    require(
        not text or (text.isdecimal() and len(text) < 19),
        f"{variable} = {text[:40]} must be a whole number.",
    )
    return int(text or 0)
