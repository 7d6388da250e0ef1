"""All square windows of a map, at a stride."""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def windows_of(
    maps: Float[Tensor, "map dim row col"], side: int, stride: int
) -> Float[Tensor, "map dim newrow newcol side side"]:
    """The side × side windows whose first pixels are 0, stride, 2 stride, … along both axes.

    Views by `Tensor.unfold` where that is best.  Where there is a way back, `F.unfold` is faster on
    it; but on a GPU it goes through the maps one by one.  Compiled, both ways back add where others
    add, too, which torch's compiler gets wrong on a CPU (2.13): in tiles that it transposes, it
    counts a step twice, and writes past the end.  So there the windows are put together of slices.
    """
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        rows_cut = _slices_along(maps, 2, side, stride)  # (map, dim, newrow, side, col)
        return _slices_along(rows_cut, 4, side, stride).transpose(3, 4)
    if maps.is_cuda or not maps.requires_grad:
        return maps.unfold(2, side, stride).unfold(3, side, stride)
    rows, cols = ((length - side) // stride + 1 for length in maps.shape[2:])
    columns = F.unfold(maps, side, stride=stride)
    return columns.unflatten(1, (maps.shape[1], side, side)).unflatten(4, (rows, cols)).permute(
        0, 1, 4, 5, 2, 3
    )  # fmt: skip


def _slices_along(x: Float[Tensor, "..."], dim: int, side: int, stride: int) -> Tensor:
    """The windows along one axis, (…, window, side, …), with nothing on the way back but sums.

    The piece from p to p + stride of all windows is a slice of x: they follow one another.
    """
    count = (x.shape[dim] - side) // stride + 1
    pieces = []
    for start in range(0, side, stride):
        width = min(stride, side - start)
        piece = x.narrow(dim, start, (count - 1) * stride + width)
        piece = F.pad(piece, [0, 0] * (x.ndim - 1 - dim) + [0, stride - width])
        pieces.append(piece.unflatten(dim, (count, stride)).narrow(dim + 1, 0, width))
    return torch.cat(pieces, dim=dim + 1)


def tiles_of(
    maps: Float[Tensor, "map row col dim"], side: int, stride: int
) -> Float[Tensor, "map newrow newcol side side dim"]:
    """`windows_of` maps whose channels come last, where windows are large and few.

    One copy, and on the way back a sum of a few large pieces.
    """
    if torch.compiler.is_compiling():
        rows_cut = _slices_along(maps, 1, side, stride)  # (map, newrow, side, col, dim)
        return _slices_along(rows_cut, 3, side, stride).transpose(2, 3)
    tiles: Tensor = _Cut.apply(maps, side, stride)
    return tiles


class _Cut(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, side: int, stride: int) -> Tensor:
        views = maps.unfold(1, side, stride).unfold(2, side, stride)
        return views.permute(0, 1, 2, 4, 5, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        maps, ctx.side, ctx.stride = inputs
        ctx.rows, ctx.cols = maps.shape[1:3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        return _Laid.apply(gradient, ctx.rows, ctx.cols, ctx.stride), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *fixed: None):  # type: ignore[no-untyped-def]
        return _Cut.apply(tangent, ctx.side, ctx.stride)


class _Laid(torch.autograd.Function):
    """Every tile where it was cut, and their sum where they lie upon each other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tiles: Tensor, rows: int, cols: int, stride: int) -> Tensor:
        many, down, across, side, _, dim = tiles.shape
        maps = tiles.new_zeros(many, rows, cols, dim)
        for row, col in product(range(down), range(across)):
            top, left = row * stride, col * stride
            maps[:, top : top + side, left : left + side] += tiles[:, row, col]
        return maps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int, int], output: Tensor) -> None:
        tiles, ctx.rows, ctx.cols, ctx.stride = inputs
        ctx.side = tiles.shape[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        return _Cut.apply(gradient, ctx.side, ctx.stride), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *fixed: None):  # type: ignore[no-untyped-def]
        return _Laid.apply(tangent, ctx.rows, ctx.cols, ctx.stride)
