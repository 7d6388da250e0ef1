"""Neighbourhoods, and the pixels that each token attends to.

A neighbourhood is a list of integer offsets (x, y): a k × k square, which rotations by 90° and
reflections map to itself; the disc within radius k/2, which finer rotations map closer to itself;
or the whole image.  `find_sources` lists the sources of every token: the pixel, its offset, and
whether it is inside the image.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int32, Int64
from torch import Tensor

from turnwise.errors import require, require_known
from turnwise.geometry.grids import offset_to_steps, pixel_centres
from turnwise.groups import PlanarGroup


def square_neighbourhood(window: int) -> Int64[Tensor, "offset 2"]:
    """Return all offsets of a `window` × `window` square, row by row."""
    require(
        window >= 1 and window % 2 == 1,
        f"window = {window} must be odd and positive, so that it has a centre; "
        f"try {' or '.join(str(n) for n in (window - 1, window + 1) if n > 0) or 1}.",
    )
    return rectangle_of_offsets(window, window)


def rectangle_of_offsets(rows: int, cols: int) -> Int64[Tensor, "offset 2"]:
    """Return all offsets of a rectangle with odd sides around the token, row by row."""
    return pixel_centres(rows, cols).flatten(0, 1).long()


def disc_neighbourhood(window: int) -> Int64[Tensor, "offset 2"]:
    """Return the offsets of the square that lie within distance window/2 of the centre."""
    square = square_neighbourhood(window)
    return square[square.square().sum(-1) <= (window / 2) ** 2]


def neighbour_index(
    rows: int, cols: int, offsets: Int64[Tensor, "offset 2"]
) -> tuple[Int64[Tensor, "token offset"], Bool[Tensor, "token offset"]]:
    """Return, for each token and offset, the flat index of the neighbour and whether it exists.

    A neighbour outside the image has index 0 and must be masked: it must not enter the softmax,
    not even as zero.
    """
    row = torch.arange(rows).repeat_interleave(cols)[:, None]
    col = torch.arange(cols).repeat(rows)[:, None]
    down, right = offset_to_steps(offsets).unbind(-1)
    row, col = row + down, col + right
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return torch.where(inside, row * cols + col, 0), inside


SHAPES = {"square": square_neighbourhood, "disc": disc_neighbourhood}


@dataclass(frozen=True)
class Neighbourhood:
    """A `window` × `window` square, or the disc in it; window 0 is the whole image.

    >>> Neighbourhood(5, "disc").offsets(28, 28).shape, Neighbourhood(0).offsets(3, 4).shape
    (torch.Size([21, 2]), torch.Size([35, 2]))
    """

    window: int = 0
    shape: str = "square"

    def __post_init__(self) -> None:
        require_known(self.shape, SHAPES, "shape of a neighbourhood")
        require(
            self.window > 0 or self.shape == "square",
            "the whole image (window = 0) is not a disc; give a window, or shape = 'square'.",
        )
        if self.window:
            square_neighbourhood(self.window)  # rejects even windows

    def offsets(self, rows: int, cols: int) -> Int64[Tensor, "offset 2"]:
        """Return every offset (x, y) between two pixels of a rows × cols image."""
        if self.window:
            return SHAPES[self.shape](self.window)
        return rectangle_of_offsets(2 * rows - 1, 2 * cols - 1)

    def reach(self, rows: int, cols: int) -> int:
        """Return the largest step along one axis."""
        return self.window // 2 if self.window else max(rows, cols) - 1


@dataclass(frozen=True)
class View:
    """An image of rows × cols pixels, whose tokens are the pixels at least `crop` from its border.

    The tokens attend to pixels of the neighbourhood, also to those that are not tokens.
    """

    neighbourhood: Neighbourhood
    rows: int
    cols: int
    crop: int = 0

    def __post_init__(self) -> None:
        require(self.crop >= 0, f"crop = {self.crop} must be 0 or more pixels.")
        require(
            2 * self.crop < min(self.rows, self.cols),
            f"an image of {self.rows} x {self.cols} pixels has none left {self.crop} pixels from "
            "its border.",
        )

    @property
    def token_rows(self) -> int:
        return self.rows - 2 * self.crop

    @property
    def token_cols(self) -> int:
        return self.cols - 2 * self.crop

    def offsets(self) -> Int64[Tensor, "offset 2"]:
        """Return the offsets (x, y) between tokens and sources."""
        return self.neighbourhood.offsets(self.rows, self.cols)


class Sources(NamedTuple):
    """For each token and source: the pixel's flat index, the offset's index, whether it exists.

    `steps` are the offsets in rows and columns.
    """

    pixel: Int64[Tensor, "token source"]
    offset: Int64[Tensor, "token source"]
    inside: Bool[Tensor, "token source"]
    steps: Int32[Tensor, "offset 2"]
    view: View

    def to(self, device: torch.device | str) -> "Sources":
        tables = (self.pixel, self.offset, self.inside, self.steps)
        pixel, offset, inside, steps = (table.to(device) for table in tables)
        return Sources(pixel, offset, inside, steps, self.view)


def find_sources(neighbourhood: Neighbourhood, rows: int, cols: int, crop: int = 0) -> Sources:
    """Return the sources of every token at least `crop` pixels from the border."""
    view = View(neighbourhood, rows, cols, crop)
    if neighbourhood.window:
        pixel, inside = neighbour_index(rows, cols, view.offsets())
        offset = torch.arange(pixel.shape[1]).expand_as(pixel)
    else:
        pixel = torch.arange(rows * cols).expand(rows * cols, rows * cols)
        offset, inside = _offset_index(rows, cols), torch.ones_like(pixel, dtype=torch.bool)
    kept = torch.arange(rows * cols).view(rows, cols)
    kept = kept[crop : rows - crop, crop : cols - crop].flatten()
    steps = offset_to_steps(view.offsets()).int().contiguous()
    return Sources(pixel[kept], offset[kept], inside[kept], steps, view)


def _offset_index(rows: int, cols: int) -> Int64[Tensor, "token source"]:
    """Return the index of q − p in `rectangle_of_offsets`, which is ordered row by row."""
    row = torch.arange(rows).repeat_interleave(cols)
    col = torch.arange(cols).repeat(rows)
    down = row[None, :] - row[:, None] + rows - 1
    right = col[None, :] - col[:, None] + cols - 1
    return down * (2 * cols - 1) + right


def rotated_offsets(
    group: PlanarGroup, offsets: Int64[Tensor, "offset 2"]
) -> Float64[Tensor, "group offset 2"]:
    """Return h⁻¹δ in steps (row, col) for every h: the offset in the frame of a query with h.

    The steps are exact integers for rotations by 90° and reflections, and real numbers otherwise.
    """
    inverses = group.matrices().mT.to(offsets.device)  # orthogonal
    return offset_to_steps(torch.einsum("hij,oj->hoi", inverses, offsets.double()))
