"""Pictures stored as a run of encoded files end to end, cut at given offsets.

Each encoded file is one picture, or a one-column strip of square pictures (CIFAR-10 lies in WebP
strips of 500).
"""

import io
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
