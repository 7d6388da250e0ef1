"""Where the pixels are: the only file that knows both (row, col) and (x, y).

The origin is the centre of the picture and the unit is one pixel; x points right, y points up,
rows run down.  So every symmetry of the square maps pixel centres to pixel centres, for odd and
even sizes.
"""

import torch
from jaxtyping import Float, Float64, Num
from torch import Tensor


def pixel_centres(
    rows: int, cols: int, device: torch.device | None = None
) -> Float64[Tensor, "{rows} {cols} 2"]:
    """The position (x, y) of each pixel."""
    y = (rows - 1) / 2 - torch.arange(rows, dtype=torch.float64, device=device)
    x = torch.arange(cols, dtype=torch.float64, device=device) - (cols - 1) / 2
    return torch.stack([x.expand(rows, cols), y[:, None].expand(rows, cols)], dim=-1)


def relative_offsets(rows: int, cols: int) -> Float64[Tensor, "token source 2"]:
    """q − p for every pair of pixels: where source q stands, seen from token p."""
    centre = pixel_centres(rows, cols).flatten(0, 1)
    return centre[None, :] - centre[:, None]


def offset_to_steps(offset: Num[Tensor, "*many 2"]) -> Num[Tensor, "*many 2"]:
    """The offset (x, y) in steps (row, col): y up is rows down."""
    x, y = offset.unbind(-1)
    return torch.stack([-y, x], dim=-1)


def to_sampling_grid(
    points: Float[Tensor, "*many 2"], rows: int, cols: int
) -> Float[Tensor, "*many 2"]:
    """Positions (x, y) in the coordinates of `torch.nn.functional.grid_sample`.

    With align_corners=False, −1 and 1 are the outer edges of the picture, and its y points down.
    """
    return points * points.new_tensor([2 / cols, -2 / rows])
