"""The kernels of RotoConv (triton_roto) as operators of torch, with their gradients.

A layout says where rows or products are: their tensors are the blocks of `window_basis`, in its
order, or a single one that has the answers themselves, those of a filter bank.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from turnwise.geometry.sizes import Stage, size_after
from turnwise.geometry.window_basis import WindowBasis, window_basis
from turnwise.groups import PlanarGroup
from turnwise.kernels import roto as kernels
from turnwise.kernels.device import on_its_device

SIZE, WARPS = 256, 2  # channels and warps of a program
TENSORS = 5  # that a kernel takes: as many blocks as a group of the grid has, D4
BANK = 0  # a kernel size, for products that are the answers


class Layout(NamedTuple):
    """Of each row or product: its tensor, and its place there (see the tables of triton_roto)."""

    block: tuple[int, ...]
    first: tuple[int, ...]
    step: tuple[int, ...]
    shift: tuple[int, ...]

    def named(self) -> dict[str, tuple[int, ...]]:
        return {"BLOCK": self.block, "FIRST": self.first, "STEP": self.step, "SHIFT": self.shift}


def _layout(places: list[tuple[int, int, int, int]]) -> Layout:
    return Layout(*(tuple(column) for column in zip(*places, strict=True)))


def _of_rows(basis: WindowBasis) -> Layout:
    return _layout([
        (block, b, copies, j)
        for block, (dim, copies) in enumerate(basis.blocks) for b in range(dim)
        for j in range(copies)
    ])  # fmt: skip


def _of_products(basis: WindowBasis) -> Layout:
    return _layout([
        (block, b, dim, a)
        for block, (dim, _) in enumerate(basis.blocks) for a in range(dim) for b in range(dim)
    ])  # fmt: skip


def _numbers(table: Tensor) -> tuple[float, ...]:
    """Entries of an irrep that are not quite 0 are made so."""
    return tuple(x if abs(x) > 1e-12 else 0.0 for x in table.flatten().tolist())


@cache
def _to_rows(group: str, kernel: int) -> dict[str, Any]:
    """What the kernels of windows are compiled for."""
    basis = window_basis(group, kernel)
    return {"TABLE": _numbers(basis.for_window), "K": kernel, **_of_rows(basis).named()}


@cache
def _to_answers(group: str, kernel: int) -> dict[str, Any]:
    """What the kernels of answers are compiled for."""
    order = PlanarGroup.named(group).order
    if kernel == BANK:
        table, layout = torch.eye(order), _layout([(0, 0, order, g) for g in range(order)])
    else:
        basis = window_basis(group, kernel)
        table, layout = basis.answers, _of_products(basis)
    return {"ANSWERS": _numbers(table), "G": order, "MANY": table.shape[1], **layout.named()}


def _programs(entries: int) -> tuple[int]:
    return (triton.cdiv(entries, SIZE),)


def _five(tensors: list[Tensor]) -> list[Tensor]:
    """As many as a kernel takes; those beyond the last are not looked at."""
    return [*tensors, *[tensors[-1]] * (TENSORS - len(tensors))]


def _sizes(size: Sequence[int], stage: Stage) -> tuple[int, int, int, int]:
    """Rows and columns of maps (picture, row, col, C), and of what a stage leaves of them."""
    _, rows, cols, _ = size
    return rows, cols, size_after(rows, stage), size_after(cols, stage)


@torch.library.custom_op("turnwise::windows_to_rows", mutates_args=())
@on_its_device
def windows_to_rows(
    maps: Tensor, group: str, kernel: int, stride: int, padding: int
) -> list[Tensor]:
    """Maps (picture, row, col, C) -> for each block its rows, (b · window, j · C)."""
    rows = _empty_rows(maps, group, kernel, stride, padding)
    sizes, channels = _sizes(maps.shape, Stage(kernel, stride, padding)), maps.shape[3]
    windows = maps.shape[0] * sizes[2] * sizes[3]
    if entries := windows * channels:
        tables = _to_rows(group, kernel) | {"STRIDE": stride, "PADDING": padding}
        kernels.windows_to_rows[_programs(entries)](
            maps, *_five(rows), windows, *sizes, **tables, C=channels, SIZE=SIZE, num_warps=WARPS
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
    """The gradient of maps (picture, row, col, C) of this size, from those of the rows."""
    maps = _empty_maps(rows, size, group, kernel, stride, padding)
    sizes, channels = _sizes(size, Stage(kernel, stride, padding)), size[3]
    windows = size[0] * sizes[2] * sizes[3]
    if maps.numel():
        taps = maps.new_empty((windows, kernel**2, channels))
        shared = {"C": channels, "SIZE": SIZE, "num_warps": WARPS}
        kernels.rows_to_taps[_programs(windows * channels)](
            taps, *_five(rows), windows, **_to_rows(group, kernel), **shared
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


@torch.library.custom_op("turnwise::greatest_answer", mutates_args=())
@on_its_device
def greatest_answer(
    products: list[Tensor], group: str, kernel: int, width: int
) -> tuple[Tensor, Tensor]:
    """Products (b · window, a · O) of each block -> (window, O): max_g y_g, and its g.

    kernel = BANK: they are one tensor (window, g · O) of answers.
    """
    best, which = _empty_answers(products, group, kernel, width)
    if best.numel():
        kernels.greatest_answer[_programs(best.numel())](
            best, which, *_five(products), len(best), **_to_answers(group, kernel),
            C=width, SIZE=SIZE, num_warps=WARPS,
        )  # fmt: skip
    return best, which


@greatest_answer.register_fake
def _empty_answers(
    products: list[Tensor], group: str, kernel: int, width: int
) -> tuple[Tensor, Tensor]:
    """The first block is the trivial irrep, or the bank: it has a row for each window."""
    best = products[0].new_empty((products[0].shape[0], width))
    return best, torch.empty_like(best, dtype=torch.int8)


@torch.library.custom_op("turnwise::greatest_answer_backward", mutates_args=())
@on_its_device
def greatest_answer_backward(
    d_best: Tensor, which: Tensor, group: str, kernel: int
) -> list[Tensor]:
    """The gradients of the products."""
    products = _empty_products(d_best, which, group, kernel)
    if d_best.numel():
        kernels.greatest_answer_backward[_programs(d_best.numel())](
            d_best, which, *_five(products), len(d_best), **_to_answers(group, kernel),
            C=d_best.shape[1], SIZE=SIZE, num_warps=WARPS,
        )  # fmt: skip
    return products


@greatest_answer_backward.register_fake
def _empty_products(d_best: Tensor, which: Tensor, group: str, kernel: int) -> list[Tensor]:
    windows, width = d_best.shape
    if kernel == BANK:
        return [d_best.new_empty((windows, PlanarGroup.named(group).order * width))]
    dims = [dim for dim, _ in window_basis(group, kernel).blocks]
    return [d_best.new_empty((dim * windows, dim * width)) for dim in dims]


def _remember_size(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    maps, *ctx.how = inputs
    ctx.size = list(maps.shape)


def _rows_back(ctx: Any, d_rows: list[Tensor]) -> tuple[Tensor, None, None, None, None]:
    d_maps = rows_to_maps([d.contiguous() for d in d_rows], ctx.size, *ctx.how)
    return d_maps, None, None, None, None


def _remember_winner(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, ctx.group, ctx.kernel, _ = inputs
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _answer_back(ctx: Any, d_best: Tensor, _: Any) -> tuple[list[Tensor], None, None, None]:
    (which,) = ctx.saved_tensors
    made = greatest_answer_backward(d_best.contiguous(), which, ctx.group, ctx.kernel)
    return made, None, None, None


windows_to_rows.register_autograd(_rows_back, setup_context=_remember_size)
greatest_answer.register_autograd(_answer_back, setup_context=_remember_winner)
