"""Launch the Triton kernels of irreps: custom operators with gradients.

The names say "regular" for features in the regular representation, (token, group, channel).
"""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from turnwise.groups.representations import regular_basis
from turnwise.kernels import irreps as kernels
from turnwise.kernels.device import on_its_device

SIZE, WARPS = 256, 2  # channels and warps of a program: each thread loads four numbers at once
MAX_PARTIAL_SUMS = 4096  # programs that sum the gradients of a norm's weight and bias


@cache
def _constants(group: str, channels: int) -> dict[str, Any]:
    """Return what the kernels are compiled for; rounding errors in Q become 0."""
    basis = regular_basis(group)
    matrix = [[c if abs(c) > 1e-12 else 0.0 for c in row] for row in basis.matrix.tolist()]
    return {
        "Q": tuple(c for row in matrix for c in row),
        "QT": tuple(row[g] for g in range(len(matrix)) for row in matrix),
        "G": len(matrix),
        "N": basis.blocks[0].count,
        "C": channels,
    }


def _channel_constants(group: str, channels: int) -> dict[str, Any]:
    """Return the constants of kernels whose programs handle SIZE channels."""
    return _constants(group, channels) | {"SIZE": SIZE, "num_warps": WARPS}


def _token_constants(group: str, channels: int) -> dict[str, Any]:
    """Return the constants of kernels whose programs handle a whole token."""
    wide = triton.next_power_of_2(channels)
    return _constants(group, channels) | {"WIDE": wide, "num_warps": max(1, wide // 128)}


def _programs(entries: int) -> tuple[int]:
    return (triton.cdiv(entries, SIZE),)


@torch.library.custom_op("turnwise::regular_to_irreps", mutates_args=())
@on_its_device
def regular_to_irreps(
    x: Tensor, group: str, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(token, group, channel) -> 1-D and 2-D irreps, in `dtype` or that of x."""
    dim1, dim2 = _empty_irreps(x, group, dtype)
    if entries := len(x) * x.shape[-1]:
        sizes = _channel_constants(group, x.shape[-1])
        kernels.to_irreps[_programs(entries)](x, dim1, dim2, entries, **sizes)
    return dim1, dim2


@regular_to_irreps.register_fake
def _empty_irreps(x: Tensor, group: str, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Allocate irreps.

    Only counts come from the basis, since a fake tensor cannot be combined with its matrix.  Sizes
    come from `x.shape`, which may be symbolic; `len(x)` would fix them.
    """
    count = regular_basis(group).blocks[0].count
    return (
        x.new_empty((count, x.shape[0], x.shape[-1]), dtype=dtype),
        x.new_empty(((x.shape[1] - count) // 2, x.shape[0], 2, x.shape[-1]), dtype=dtype),
    )


@torch.library.custom_op("turnwise::irreps_to_regular", mutates_args=())
@on_its_device
def irreps_to_regular(
    dim1: Tensor, dim2: Tensor, bias: Tensor | None, residual: Tensor | None, group: str
) -> Tensor:
    """Irreps -> (token, group, channel), plus a bias for all group elements and a residual."""
    x = _empty_regular(dim1, dim2, bias, residual, group)
    if entries := len(x) * x.shape[-1]:
        kernels.from_irreps[_programs(entries)](
            x, dim1, dim2,
            dim1 if bias is None else bias,  # any tensor where there is none
            x if residual is None else residual,
            entries, BIAS=bias is not None, RESIDUAL=residual is not None,
            **_channel_constants(group, x.shape[-1]),
        )  # fmt: skip
    return x


@irreps_to_regular.register_fake
def _empty_regular(
    dim1: Tensor, dim2: Tensor, bias: Tensor | None, residual: Tensor | None, group: str
) -> Tensor:
    if residual is not None:
        return torch.empty_like(residual)
    _, tokens, channels = dim1.shape
    return dim1.new_empty((tokens, len(dim1) + 2 * len(dim2), channels))


@torch.library.custom_op("turnwise::gelu_in_irreps", mutates_args=())
@on_its_device
def gelu_in_irreps(dim1: Tensor, dim2: Tensor, bias: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """Q gelu(Qᵀ x̂ + b), with one bias for all group elements."""
    new = torch.empty_like(dim1), torch.empty_like(dim2)
    if entries := dim1[0].numel():
        sizes = _channel_constants(group, dim1.shape[-1])
        kernels.gelu[_programs(entries)](dim1, dim2, bias, *new, entries, **sizes)
    return new


@torch.library.custom_op("turnwise::gelu_in_irreps_backward", mutates_args=())
@on_its_device
def gelu_in_irreps_backward(
    dim1: Tensor, dim2: Tensor, bias: Tensor, d_dim1: Tensor, d_dim2: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the irreps."""
    new = torch.empty_like(dim1), torch.empty_like(dim2)
    if entries := dim1[0].numel():
        sizes = _channel_constants(group, dim1.shape[-1])
        tensors = dim1, dim2, bias, *new, d_dim1, d_dim2
        kernels.gelu_backward[_programs(entries)](*tensors, entries, **sizes)
    return new


@gelu_in_irreps.register_fake
@gelu_in_irreps_backward.register_fake
def _like_irreps(dim1: Tensor, dim2: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(dim1), torch.empty_like(dim2)


@torch.library.custom_op("turnwise::norm_to_irreps", mutates_args=())
@on_its_device
def norm_to_irreps(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the irreps of the norm in `dtype`, and the mean and scale of each token."""
    results = _empty_normed(x, weight, bias, eps, dtype, group)
    if x.numel():
        sizes = _token_constants(group, x.shape[-1])
        kernels.norm_to_irreps[(len(x),)](x, weight, bias, *results, len(x), eps, **sizes)
    return results


@norm_to_irreps.register_fake
def _empty_normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, scale = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return *_empty_irreps(x, group, dtype), mean, scale


@torch.library.custom_op("turnwise::norm_to_irreps_backward", mutates_args=())
@on_its_device
def norm_to_irreps_backward(
    x: Tensor, weight: Tensor, means: Tensor, scales: Tensor, d_dim1: Tensor, d_dim2: Tensor,
    group: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of x, and those of weight and bias stacked."""
    programs = min(MAX_PARTIAL_SUMS, len(x))
    d_x = torch.empty_like(x)
    partial_sums = x.new_empty((2, programs, x.shape[-1]), dtype=torch.float32)
    if x.numel():
        tensors = x, weight, means, scales, d_dim1, d_dim2, d_x, *partial_sums
        sizes = _token_constants(group, x.shape[-1])
        kernels.norm_to_irreps_backward[(programs,)](*tensors, len(x), programs, **sizes)
    return d_x, partial_sums.sum(dim=1)


@norm_to_irreps_backward.register_fake
def _like_norm(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((2, x.shape[-1]), dtype=torch.float32)


def _save_to_irreps(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.group, _ = inputs
    ctx.dtype = x.dtype


def _to_irreps_backward(ctx: Any, d_dim1: Tensor, d_dim2: Tensor) -> tuple[Tensor, None, None]:
    grads = d_dim1.contiguous(), d_dim2.contiguous()
    return irreps_to_regular(*grads, None, None, ctx.group).to(ctx.dtype), None, None


def _save_from_irreps(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dim1, _, bias, residual, ctx.group = inputs
    ctx.dtypes = dim1.dtype, None if bias is None else bias.dtype
    ctx.has_residual = residual is not None


def _from_irreps_backward(
    ctx: Any, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
    dtype, bias_dtype = ctx.dtypes
    d_dim1, d_dim2 = regular_to_irreps(grad.contiguous(), ctx.group, dtype)
    d_bias = None if bias_dtype is None else _bias_gradient(d_dim1, grad.shape[1]).to(bias_dtype)
    return d_dim1, d_dim2, d_bias, grad if ctx.has_residual else None, None


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _, ctx.group = inputs
    ctx.dtype = bias.dtype
    ctx.save_for_backward(x, weight, *output[2:])


def _norm_backward(
    ctx: Any, d_dim1: Tensor, d_dim2: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
    x, weight, means, scales = ctx.saved_tensors
    grads = d_dim1.contiguous(), d_dim2.contiguous(), ctx.group
    d_x, (d_weight, d_bias) = norm_to_irreps_backward(x, weight, means, scales, *grads)
    return d_x, d_weight.to(weight.dtype), d_bias.to(ctx.dtype), None, None, None


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors)


def _gelu_backward(ctx: Any, d_dim1: Tensor, d_dim2: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    dim1, dim2, bias = ctx.saved_tensors
    grads = d_dim1.contiguous(), d_dim2.contiguous(), ctx.group
    d_dim1, d_dim2 = gelu_in_irreps_backward(dim1, dim2, bias, *grads)
    order = len(dim1) + 2 * len(dim2)
    return d_dim1, d_dim2, _bias_gradient(d_dim1, order).to(bias.dtype), None


def _bias_gradient(d_dim1: Tensor, order: int) -> Tensor:
    """Return √|G| times the sum of the trivial irrep's gradient: every element has this bias."""
    return d_dim1[0].sum(dim=0, dtype=torch.float32) * order**0.5


regular_to_irreps.register_autograd(_to_irreps_backward, setup_context=_save_to_irreps)
irreps_to_regular.register_autograd(_from_irreps_backward, setup_context=_save_from_irreps)
norm_to_irreps.register_autograd(_norm_backward, setup_context=_save_norm)
gelu_in_irreps.register_autograd(_gelu_backward, setup_context=_save_gelu)
