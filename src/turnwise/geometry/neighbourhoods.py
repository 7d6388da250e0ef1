"""Which offsets a token may look at: a square or a disc around it, and what is no longer picture.

A neighbourhood is a list of integer offsets (x, y).  The square is the k×k window of the papers,
closed under quarter turns and mirrors; the disc is the part of it within radius k/2, which finer
rotations map closer to itself.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from turnwise.checks import require
from turnwise.geometry.grids import offset_to_steps, pixel_centres
from turnwise.groups import PlanarGroup, act_on_points


def square_neighbourhood(window: int) -> Int64[Tensor, "offset 2"]:
    """All offsets of a `window` × `window` square, row by row."""
    require(
        window >= 1 and window % 2 == 1,
        f"window = {window} must be odd and positive, so that it has a centre; "
        f"try {' or '.join(str(n) for n in (window - 1, window + 1) if n > 0) or 1}.",
    )
    return rectangle_of_offsets(window, window)


def rectangle_of_offsets(rows: int, cols: int) -> Int64[Tensor, "offset 2"]:
    """All offsets of a rectangle of odd sides around the token, row by row."""
    return pixel_centres(rows, cols).flatten(0, 1).long()


def disc_neighbourhood(window: int) -> Int64[Tensor, "offset 2"]:
    """The offsets of the square that lie within distance window/2 of the centre."""
    square = square_neighbourhood(window)
    return square[square.square().sum(-1) <= (window / 2) ** 2]


def is_closed(group: PlanarGroup, offsets: Int64[Tensor, "offset 2"]) -> bool:
    """Whether every element of the group maps the neighbourhood onto itself."""
    given = {tuple(offset) for offset in offsets.tolist()}
    moved = [act_on_points(group, g, offsets.double()) for g in range(group.order)]
    return all({tuple(point) for point in points.tolist()} == given for points in moved)


def neighbour_index(
    rows: int, cols: int, offsets: Int64[Tensor, "offset 2"]
) -> tuple[Int64[Tensor, "token offset"], Bool[Tensor, "token offset"]]:
    """For each token and offset: the neighbour's flat index, and whether it is in the picture.

    A neighbour outside has index 0 and must be masked: it may not enter the softmax, not even
    as zero.
    """
    row = torch.arange(rows).repeat_interleave(cols)[:, None]
    col = torch.arange(cols).repeat(rows)[:, None]
    down, right = offset_to_steps(offsets).unbind(-1)
    row, col = row + down, col + right
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return torch.where(inside, row * cols + col, 0), inside
