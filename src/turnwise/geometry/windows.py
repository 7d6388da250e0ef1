"""Square windows of maps, and a basis of irreps in which all rotated responses share work.

A filter w has the response  y_g = ⟨w, g·x⟩  to the window x rotated by g, over k² taps.  The group
permutes the taps.  In a basis of irreps (ρ, copy j, row b) of that permutation,

    y_g = Σ_ρ Σ_ab ρ(g)[a, b] P[ρ, a, b],    P[ρ, a, b] = Σ_j ŵ[ρ, j, a] x̂[ρ, j, b]

so |G| responses cost dim² products of length `copies` for each irrep: 1.5 k² multiplications for
D4 instead of 8 k², for C4 instead of 4 k²; and k² for groups whose irreps are all 1-D.

Paper:    Serre 1977, "Linear Representations of Finite Groups", §2.7 (projections on copies).
Departs:  rows are not normalised: their entries are 0 and ±1, exact in every precision.  The rows
          for the filter are divided by the number of taps in the row, a power of two.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from turnwise.errors import require_positive
from turnwise.groups import PlanarGroup, act_on_image, require_grid_group
from turnwise.groups.representations import Irrep, irreps

MIN_NORM = 1e-9  # a row of the basis with a smaller remainder is a combination of earlier rows


def windows_of(
    maps: Float[Tensor, "map dim row col"], side: int, stride: int
) -> Float[Tensor, "map dim newrow newcol side side"]:
    """Return the side × side windows that start at 0, stride, 2 stride, … along both axes.

    They are views made by `Tensor.unfold`, except in two cases.  On a CPU the backward pass of
    `F.unfold` is faster (on a GPU it handles one map at a time).  Under torch.compile both backward
    passes are overlapping sums, which torch 2.13 compiles wrongly for CPUs: in transposed tiles it
    counts a step twice and writes out of bounds.  So the windows are concatenated from slices.
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
    """Return the windows along one axis, (…, window, side, …); the backward pass is a plain sum.

    The pixels p to p + stride of all windows are one slice of x, because they are consecutive.
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
    """Return `windows_of` maps whose channels are last; fast for few large windows.

    The forward pass makes one copy; the backward pass sums a few large pieces.
    """
    if torch.compiler.is_compiling():
        rows_cut = _slices_along(maps, 1, side, stride)  # (map, newrow, side, col, dim)
        return _slices_along(rows_cut, 3, side, stride).transpose(2, 3)
    tiles: Tensor = _Tiles.apply(maps, side, stride)
    return tiles


class _Tiles(torch.autograd.Function):
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
        return _AddTiles.apply(gradient, ctx.rows, ctx.cols, ctx.stride), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *fixed: None):  # type: ignore[no-untyped-def]
        return _Tiles.apply(tangent, ctx.side, ctx.stride)


class _AddTiles(torch.autograd.Function):
    """The adjoint of `_Tiles`: add each tile at its position in the maps."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tiles: Tensor, rows: int, cols: int, stride: int) -> Tensor:
        count, down, across, side, _, dim = tiles.shape
        maps = tiles.new_zeros(count, rows, cols, dim)
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
        return _Tiles.apply(gradient, ctx.side, ctx.stride), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *fixed: None):  # type: ignore[no-untyped-def]
        return _AddTiles.apply(tangent, ctx.rows, ctx.cols, ctx.stride)


@dataclass(frozen=True, eq=False)
class WindowBasis:
    """The tables of a window; cached and shared: do not modify.

    `blocks` are (dim, copies), one for each irrep that the window contains, the trivial one first.
    The rows of a block are ordered (b, j), and its products in `responses` (a, b).
    """

    for_window: Float64[Tensor, "tap tap"]  # x̂ = for_window · x
    for_filter: Float64[Tensor, "tap tap"]  # ŵ = for_filter · w
    responses: Float64[Tensor, "group product"]  # y = responses · P
    blocks: tuple[tuple[int, int], ...]

    @property
    def multiplications(self) -> int:
        """The number of multiplications for all responses; a plain convolution has k² for one."""
        return sum(dim**2 * copies for dim, copies in self.blocks)


def window_basis(group: PlanarGroup | str, kernel: int) -> WindowBasis:
    """Return the basis for windows of kernel × kernel taps, under a group of the grid.

    >>> window_basis("D4", 4).blocks, window_basis("D4", 4).multiplications / 16
    (((1, 3), (1, 1), (1, 1), (1, 3), (2, 4)), 1.5)
    """
    group = PlanarGroup.named(group)
    require_positive(kernel=kernel)
    require_grid_group(group)
    return _window_basis(group, kernel)


@cache
def _window_basis(group: PlanarGroup, kernel: int) -> WindowBasis:
    # cached, so it must be neither an inference tensor nor on the current default device
    with torch.inference_mode(False), torch.device("cpu"):
        taps = torch.eye(kernel**2, dtype=torch.float64).unflatten(1, (kernel, kernel))
        rotated = torch.stack([act_on_image(group, g, taps) for g in range(group.order)])
        found = [(irrep, _rows(irrep, rotated.flatten(2).mT)) for irrep in irreps(group)]
        present = [(irrep, rows) for irrep, rows in found if rows.numel()]
        rows = torch.cat([rows.flatten(0, 1) for _, rows in present])
        return WindowBasis(
            for_window=rows,
            for_filter=rows / rows.square().sum(dim=1, keepdim=True),
            responses=torch.cat([irrep.matrices.flatten(1) for irrep, _ in present], dim=1),
            blocks=tuple((irrep.dim, rows.shape[1]) for irrep, rows in present),
        )


def _rows(
    irrep: Irrep, permutations: Float64[Tensor, "group tap tap"]
) -> Float64[Tensor, "dim copies tap"]:
    """Return vectors v_b, one set for each copy, with  g·v_b = Σ_a ρ(g)[a, b] v_a.

    E_b = dim/|G| Σ_g ρ(g)[b, 0] g  maps any v_0 in the image of E_0 to v_b.
    """
    weight = irrep.matrices[:, :, 0] * (irrep.dim / len(permutations))
    project = torch.einsum("gb,gxy->bxy", weight, permutations)
    copies, seen = list[Tensor](), permutations.new_zeros(0, permutations.shape[-1])
    for candidate in project[0].T:
        rest = candidate - seen.T @ (seen @ candidate)
        if rest.norm() > MIN_NORM:
            copy = project @ (rest / rest.norm())  # (b, tap)
            seen = torch.cat([seen, copy])
            copies.append((copy / copy.abs().max()).round())
    taps = permutations.shape[-1]
    return torch.stack(copies, dim=1) if copies else permutations.new_zeros(irrep.dim, 0, taps)


def mix(
    matrix: Float[Tensor, "new old"], values: Float[Tensor, "old many more"]
) -> Float[Tensor, "new many more"]:
    """Multiply the first axis of `values` by a matrix."""
    return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])


def multiply_block(
    windows: Float[Tensor, "rows window in_width"],
    weight: Float[Tensor, "rows in_width width"],
    dim: int,
    copies: int,
) -> list[Float[Tensor, "dim window width"]]:
    """P[a, b] = Σ_j ŵ[j, a] x̂[j, b], summed over the channels: one matrix product for each a."""
    count = windows.shape[1]
    x = windows.unflatten(0, (dim, copies)).transpose(1, 2).flatten(2).flatten(0, 1)  # (b·window,)
    w = weight.unflatten(0, (dim, copies)).flatten(1, 2)  # (a, j·i, o)
    return [(x @ w[a]).unflatten(0, (dim, count)) for a in range(dim)]
