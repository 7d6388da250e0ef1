"""Change images to a size at which a model is exact, without moving their centre.

pad        reflect the image at its borders
crop       drop the same number of pixels at every border
resize     resample, antialiased and bilinear

Padding and cropping keep the centre, so they change a side by an even number of pixels.  All three
commute with the symmetries of the square.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require_known

FITS = ("pad", "crop", "resize")
REACH = 64  # pixels by which a side may change


def fitting_sizes(size: int, mode: str) -> Iterator[int]:
    """Yield the sizes to which images of `size` can be changed, the nearest first.

    >>> list(fitting_sizes(5, "pad")), list(fitting_sizes(5, "crop"))
    ([7, 9, 11, 13], [3, 1])
    """
    require_known(mode, FITS, "fit")
    for change in range(1, REACH + 1):
        if mode == "resize":
            yield from (s for s in (size + change, size - change) if s >= 1)
        elif mode == "pad" and change % 2 == 0 and change // 2 < size:  # else nothing to reflect
            yield size + change
        elif mode == "crop" and change % 2 == 0 and size - change >= 1:
            yield size - change


def fit_square(
    images: Float[Tensor, "batch channel row col"], size: int, mode: str
) -> Float[Tensor, "batch channel size size"]:
    """Return the images with sides of `size` pixels; images of that size are returned as they are.

    Padding and cropping need a side that differs by an even number.
    """
    rows, cols = images.shape[-2:]
    if rows == cols == size:
        return images
    if mode == "resize":
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        fitted = F.interpolate(wide, (size, size), mode="bilinear", antialias=True)
        return fitted.to(images.dtype)
    (top, odd_rows), (left, odd_cols) = divmod(size - rows, 2), divmod(size - cols, 2)
    assert not odd_rows and not odd_cols, "fitting_sizes yields sizes that keep the centre"
    padding = (left, left, top, top)
    return F.pad(images, padding, mode="reflect" if mode == "pad" else "constant")
