"""Tile plans that the symmetries of the image permute, and the stitching of what tiles give.

Along an axis of n pixels, a tile of `side` pixels that starts at s has a partner at n − side − s.
A set of starts that contains every partner is mapped to itself by a reflection of the axis, and it
depends on n alone; so the plan of the rotated image is the rotated plan, for all of D4.  All tiles
have the same size.  Where one tile would have to start between two pixels, there are two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from turnwise.errors import require, require_positive


class Tile(NamedTuple):
    """The first row and column of a tile; both may lie outside an image smaller than a tile."""

    row: int
    col: int


def tile_starts(length: int, side: int, overlap: int = 0) -> tuple[int, ...]:
    """Return symmetric starts of tiles that cover `length` pixels.

    Neighbours share `overlap` pixels or more.  An axis shorter than a tile is centred in it.

    >>> tile_starts(10, 4), tile_starts(11, 4), tile_starts(3, 4)
    ((0, 3, 6), (0, 3, 4, 7), (-1, 0))
    """
    require_positive(length=length, side=side)
    require(0 <= overlap < side, f"overlap = {overlap} must be from 0 to below {side} pixels.")
    span, stride = length - side, side - overlap
    if span <= 0:
        return tuple(sorted({span // 2, span - span // 2}))
    count = -(-span // stride) + 1
    if count % 2 and span % 2:
        count += 1  # no tile can be in the middle
    first = [-(-i * span // (count - 1)) for i in range(count // 2)]  # rounded up: no gap
    middle = [span // 2] if count % 2 else []
    return (*first, *middle, *(span - start for start in reversed(first)))


@dataclass(frozen=True)
class TilePlan:
    """Square tiles that cover an image of rows × cols pixels, in rows of the image.

    >>> plan = TilePlan(10, 8, side=4)
    >>> len(plan), plan.shape, plan[1]
    (6, (3, 2), Tile(row=0, col=4))
    """

    rows: int
    cols: int
    side: int
    overlap: int = 0

    def __post_init__(self) -> None:
        self.row_starts, self.col_starts  # noqa: B018 (they check the numbers)

    @cached_property
    def row_starts(self) -> tuple[int, ...]:
        return tile_starts(self.rows, self.side, self.overlap)

    @cached_property
    def col_starts(self) -> tuple[int, ...]:
        return tile_starts(self.cols, self.side, self.overlap)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of tiles along rows and columns."""
        return len(self.row_starts), len(self.col_starts)

    def __len__(self) -> int:
        return len(self.row_starts) * len(self.col_starts)

    def __getitem__(self, index: int) -> Tile:
        if not 0 <= index < len(self):
            raise IndexError(f"the plan has {len(self)} tiles, and no tile {index}")
        down, across = divmod(index, len(self.col_starts))
        return Tile(self.row_starts[down], self.col_starts[across])

    def __iter__(self) -> Iterator[Tile]:
        return (self[index] for index in range(len(self)))


def blending_window(side: int) -> Float64[Tensor, "{side} {side}"]:
    """Return positive weights for the pixels of a tile, largest in the middle, symmetric under D4.

    The weight falls linearly towards the border, so that seams between overlapping tiles vanish:
    a map is Σ window · tile / Σ window.
    """
    require_positive(side=side)
    ramp = torch.arange(1, side + 1, dtype=torch.float64)
    ramp = torch.minimum(ramp, ramp.flip(0)) / ((side + 1) // 2)
    return ramp[:, None] * ramp


def stitch_tiles(
    plan: TilePlan, values: Float[Tensor, "tile channel"], cells: tuple[int, int]
) -> Float[Tensor, "channel row col"]:
    """Return a map of one vector per tile, on a grid of `cells` that divide the image evenly.

    A cell is the mean of the tiles over it, weighted by the area that they share with it.  Tiles
    whose values are NaN do not count; a cell without any other tile is NaN.
    """
    require_positive(rows=cells[0], cols=cells[1])
    require(
        len(values) == len(plan), f"the plan has {len(plan)} tiles, but {len(values)} have values."
    )
    grid = values.double().T.unflatten(1, plan.shape)
    known = ~grid.isnan().any(dim=0)
    down = shared_lengths(plan.row_starts, plan.side, plan.rows, cells[0])
    across = shared_lengths(plan.col_starts, plan.side, plan.cols, cells[1])
    total = down @ torch.where(known, grid, 0.0) @ across.T
    area = down @ known.double() @ across.T
    return torch.where(area > 0, total / area, torch.nan).to(values.dtype)


def shared_lengths(
    starts: Sequence[int], side: int, length: int, cells: int
) -> Float64[Tensor, "cell tile"]:
    """Return how many pixels each of `cells` equal parts of an axis shares with each tile.

    Computed in units of 1 / cells of a pixel, where all edges are integers, so that reflected axes
    give reflected tables exactly.
    """
    edges = torch.arange(cells + 1) * length
    begin = torch.tensor(starts) * cells
    shared = torch.minimum(edges[1:, None], begin + side * cells) - torch.maximum(
        edges[:-1, None], begin
    )
    return shared.clamp_min(0).double() / cells
