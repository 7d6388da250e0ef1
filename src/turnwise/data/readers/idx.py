"""The idx format of MNIST: two zeros, a type, the number of axes, their lengths, the values."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnwise.data.readers.arrays import damaged

_GZIP = b"\x1f\x8b"
_UINT8 = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of bytes in an idx file, compressed by gzip or not."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from None
    if (
        len(content) < 4
        or content[:2] != b"\0\0"
        or content[2] != _UINT8
        or content[3] not in (1, 3)
    ):
        raise damaged(path, "it does not begin as an idx file of bytes does")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise damaged(path, "it ends inside its header")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise damaged(
            path,
            f"its header promises {math.prod(shape):,} bytes of shape {shape}, "
            f"{len(content) - start:,} follow",
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
