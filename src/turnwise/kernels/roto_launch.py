"""Launch the Triton kernels of RotoConv2d: custom operators with gradients.

A layout says where rows or products are in memory: the tensors are the blocks of `window_basis`, in
its order, or one tensor that holds the responses themselves (the output of a filter bank).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from turnwise.geometry.sizes import Stage, size_after
from turnwise.geometry.windows import window_basis
from turnwise.groups import PlanarGroup
from turnwise.kernels import roto as kernels
from turnwise.kernels.device import on_its_device

SIZE, WARPS = 256, 2  # channels and warps of a program
TENSORS = 5  # arguments of a kernel: as many as the blocks of D4, the largest group of the grid
BANK = 0  # in place of a kernel size: the products are the responses


def _layout(entries: list[tuple[int, int, int, int]]) -> dict[str, tuple[int, ...]]:
    """Return the tables of the kernels from (block, first, step, shift) of each row or product."""
    return dict(zip(("BLOCK", "FIRST", "STEP", "SHIFT"), zip(*entries, strict=True), strict=True))


def _constants(table: Tensor) -> tuple[float, ...]:
    """Return the entries of a table; rounding errors become 0."""
    return tuple(x if abs(x) > 1e-12 else 0.0 for x in table.flatten().tolist())


@cache
def _row_constants(group: str, kernel: int) -> dict[str, Any]:
    """Return what the kernels of windows are compiled for."""
    basis = window_basis(group, kernel)
    layout = _layout([
        (block, b, copies, j)
        for block, (dim, copies) in enumerate(basis.blocks) for b in range(dim)
        for j in range(copies)
    ])  # fmt: skip
    return {"TABLE": _constants(basis.for_window), "K": kernel, **layout}


@cache
def _response_constants(group: str, kernel: int) -> dict[str, Any]:
    """Return what the kernels of responses are compiled for."""
    order = PlanarGroup.named(group).order
    if kernel == BANK:
        table, layout = torch.eye(order), _layout([(0, 0, order, g) for g in range(order)])
    else:
        basis = window_basis(group, kernel)
        table = basis.responses
        layout = _layout([
            (block, b, dim, a)
            for block, (dim, _) in enumerate(basis.blocks) for a in range(dim) for b in range(dim)
        ])  # fmt: skip
    return {"TABLE": _constants(table), "G": order, "COUNT": table.shape[1], **layout}


def _programs(entries: int) -> tuple[int]:
    return (triton.cdiv(entries, SIZE),)


def _pad(tensors: list[Tensor]) -> list[Tensor]:
    """Repeat the last tensor, as many as a kernel takes; the kernel ignores the repetitions."""
    return [*tensors, *[tensors[-1]] * (TENSORS - len(tensors))]


def _sizes(size: Sequence[int], stage: Stage) -> tuple[int, int, int, int]:
    """Return the rows and columns of maps (batch, row, col, C) before and after a stage."""
    _, rows, cols, _ = size
    return rows, cols, size_after(rows, stage), size_after(cols, stage)


@torch.library.custom_op("turnwise::windows_to_rows", mutates_args=())
@on_its_device
def windows_to_rows(
    maps: Tensor, group: str, kernel: int, stride: int, padding: int
) -> list[Tensor]:
    """Maps (batch, row, col, C) -> the rows of each block, (b · window, j · C)."""
    rows = _empty_rows(maps, group, kernel, stride, padding)
    sizes, channels = _sizes(maps.shape, Stage(kernel, stride, padding)), maps.shape[3]
    windows = maps.shape[0] * sizes[2] * sizes[3]
    if entries := windows * channels:
        constants = _row_constants(group, kernel) | {"STRIDE": stride, "PADDING": padding}
        kernels.windows_to_rows[_programs(entries)](
            maps, *_pad(rows), windows, *sizes, **constants, C=channels, SIZE=SIZE, num_warps=WARPS
        )
    return rows


@windows_to_rows.register_fake
def _empty_rows(maps: Tensor, group: str, kernel: int, stride: int, padding: int) -> list[Tensor]:
    *_, newrows, newcols = _sizes(maps.shape, Stage(kernel, stride, padding))
    windows, blocks = maps.shape[0] * newrows * newcols, window_basis(group, kernel).blocks
    return [maps.new_empty((dim * windows, copies * maps.shape[3])) for dim, copies in blocks]


@torch.library.custom_op("turnwise::rows_to_maps", mutates_args=())
@on_its_device
def rows_to_maps(
    rows: list[Tensor], size: list[int], group: str, kernel: int, stride: int, padding: int
) -> Tensor:
    """Return the gradient of maps (batch, row, col, C) of this size from those of the rows."""
    maps = _empty_maps(rows, size, group, kernel, stride, padding)
    sizes, channels = _sizes(size, Stage(kernel, stride, padding)), size[3]
    windows = size[0] * sizes[2] * sizes[3]
    if maps.numel():
        taps = maps.new_empty((windows, kernel**2, channels))
        shared = {"C": channels, "SIZE": SIZE, "num_warps": WARPS}
        kernels.rows_to_taps[_programs(windows * channels)](
            taps, *_pad(rows), windows, **_row_constants(group, kernel), **shared
        )
        kernels.fold[_programs(maps.numel())](
            taps, maps, maps[..., 0].numel(), *sizes, K=kernel, STRIDE=stride,
            PADDING=padding, **shared,
        )  # fmt: skip
    return maps


@rows_to_maps.register_fake
def _empty_maps(
    rows: list[Tensor], size: list[int], group: str, kernel: int, stride: int, padding: int
) -> Tensor:
    return rows[0].new_empty(size)


@torch.library.custom_op("turnwise::max_response", mutates_args=())
@on_its_device
def max_response(
    products: list[Tensor], group: str, kernel: int, out_channels: int
) -> tuple[Tensor, Tensor]:
    """Products (b · window, a · O) of each block -> (window, O): max_g y_g, and its g.

    With kernel = BANK the products are one tensor (window, g · O) of responses.
    """
    best, which = _empty_responses(products, group, kernel, out_channels)
    if best.numel():
        kernels.max_response[_programs(best.numel())](
            best, which, *_pad(products), len(best), **_response_constants(group, kernel),
            C=out_channels, SIZE=SIZE, num_warps=WARPS,
        )  # fmt: skip
    return best, which


@max_response.register_fake
def _empty_responses(
    products: list[Tensor], group: str, kernel: int, out_channels: int
) -> tuple[Tensor, Tensor]:
    """The first block is the trivial irrep, or the bank: it has one row for each window."""
    best = products[0].new_empty((products[0].shape[0], out_channels))
    return best, torch.empty_like(best, dtype=torch.int8)


@torch.library.custom_op("turnwise::max_response_backward", mutates_args=())
@on_its_device
def max_response_backward(d_best: Tensor, which: Tensor, group: str, kernel: int) -> list[Tensor]:
    """Return the gradients of the products."""
    products = _empty_products(d_best, which, group, kernel)
    if d_best.numel():
        kernels.max_response_backward[_programs(d_best.numel())](
            d_best, which, *_pad(products), len(d_best), **_response_constants(group, kernel),
            C=d_best.shape[1], SIZE=SIZE, num_warps=WARPS,
        )  # fmt: skip
    return products


@max_response_backward.register_fake
def _empty_products(d_best: Tensor, which: Tensor, group: str, kernel: int) -> list[Tensor]:
    windows, channels = d_best.shape
    if kernel == BANK:
        return [d_best.new_empty((windows, PlanarGroup.named(group).order * channels))]
    dims = [dim for dim, _ in window_basis(group, kernel).blocks]
    return [d_best.new_empty((dim * windows, dim * channels)) for dim in dims]


def _save_size(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    maps, *ctx.arguments = inputs
    ctx.size = list(maps.shape)


def _rows_backward(ctx: Any, d_rows: list[Tensor]) -> tuple[Tensor, None, None, None, None]:
    d_maps = rows_to_maps([d.contiguous() for d in d_rows], ctx.size, *ctx.arguments)
    return d_maps, None, None, None, None


def _save_winner(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, ctx.group, ctx.kernel, _ = inputs
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _max_backward(ctx: Any, d_best: Tensor, _: Any) -> tuple[list[Tensor], None, None, None]:
    (which,) = ctx.saved_tensors
    d_products = max_response_backward(d_best.contiguous(), which, ctx.group, ctx.kernel)
    return d_products, None, None, None


windows_to_rows.register_autograd(_rows_backward, setup_context=_save_size)
max_response.register_autograd(_max_backward, setup_context=_save_winner)
