"""Positions of pixels; the only module that uses both (row, col) and (x, y).

The origin is the centre of the image and the unit is one pixel; x points right, y points up, rows
run down.  So every symmetry of the square maps pixel centres to pixel centres, for odd and even
sizes.
"""

import torch
from jaxtyping import Float, Float64, Num
from torch import Tensor


def pixel_centres(
    rows: int, cols: int, device: torch.device | None = None
) -> Float64[Tensor, "{rows} {cols} 2"]:
    """Return the position (x, y) of each pixel."""
    y = (rows - 1) / 2 - torch.arange(rows, dtype=torch.float64, device=device)
    x = torch.arange(cols, dtype=torch.float64, device=device) - (cols - 1) / 2
    return torch.stack([x.expand(rows, cols), y[:, None].expand(rows, cols)], dim=-1)


def offset_to_steps(offset: Num[Tensor, "*many 2"]) -> Num[Tensor, "*many 2"]:
    """Convert offsets (x, y) to steps (row, col)."""
    x, y = offset.unbind(-1)
    return torch.stack([-y, x], dim=-1)


def to_sampling_grid(
    points: Float[Tensor, "*many 2"], rows: int, cols: int
) -> Float[Tensor, "*many 2"]:
    """Convert positions (x, y) to the coordinates of `torch.nn.functional.grid_sample`.

    With align_corners=False, −1 and 1 are the outer edges of the image, and its y points down.
    """
    return points * points.new_tensor([2 / cols, -2 / rows])
