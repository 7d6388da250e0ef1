"""The kernels of irreps (triton_irreps, triton_norm) as operators of torch; their gradients."""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from turnwise.groups.representations import regular_basis
from turnwise.kernels import irreps as kernels
from turnwise.kernels import irreps as triton_norm
from turnwise.kernels.device import on_its_device

SIZE, WARPS = 256, 2  # channels and warps of a program: four numbers a thread, in one load
SHARES = 4096  # programs that sum the gradients of a norm's weight and bias


@cache
def constants(group: str, width: int) -> dict[str, Any]:
    """What the kernels are compiled for; entries of Q that are not quite 0 are made so."""
    basis = regular_basis(group)
    matrix = [[c if abs(c) > 1e-12 else 0.0 for c in row] for row in basis.matrix.tolist()]
    return {
        "Q": tuple(c for row in matrix for c in row),
        "QT": tuple(row[g] for g in range(len(matrix)) for row in matrix),
        "G": len(matrix),
        "N": basis.blocks[0].count,
        "C": width,
    }


def of_channels(group: str, width: int) -> dict[str, Any]:
    """For kernels that take some channels."""
    return constants(group, width) | {"SIZE": SIZE, "num_warps": WARPS}


def of_tokens(group: str, width: int) -> dict[str, Any]:
    """For kernels that take a token whole."""
    wide = triton.next_power_of_2(width)
    return constants(group, width) | {"WIDE": wide, "num_warps": max(1, wide // 128)}


def programs(entries: int) -> tuple[int]:
    return (triton.cdiv(entries, SIZE),)


@torch.library.custom_op("turnwise::poses_to_irreps", mutates_args=())
@on_its_device
def poses_to_irreps(
    x: Tensor, group: str, kind: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(token, group, channel) -> numbers, planes, in the precision `kind` or that of x."""
    numbers, planes = _empty_rows(x, group, kind)
    if entries := len(x) * x.shape[-1]:
        kernels.to_rows[programs(entries)](
            x, numbers, planes, entries, **of_channels(group, x.shape[-1])
        )
    return numbers, planes


@poses_to_irreps.register_fake
def _empty_rows(x: Tensor, group: str, kind: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Only sizes are asked of the basis: a compiler's tensors cannot meet those of its matrix.

    Sizes of x by its shape, which may be variable, and not by len, which makes it a number.
    """
    numbers = regular_basis(group).blocks[0].count
    planes = (x.shape[1] - numbers) // 2
    return (
        x.new_empty((numbers, x.shape[0], x.shape[-1]), dtype=kind),
        x.new_empty((planes, x.shape[0], 2, x.shape[-1]), dtype=kind),
    )


@torch.library.custom_op("turnwise::irreps_to_poses", mutates_args=())
@on_its_device
def irreps_to_poses(
    numbers: Tensor, planes: Tensor, bias: Tensor | None, stream: Tensor | None, group: str
) -> Tensor:
    """Numbers, planes -> (token, group, channel), and one bias for all poses, onto the stream."""
    x = _empty_poses(numbers, planes, bias, stream, group)
    if entries := len(x) * x.shape[-1]:
        given = x, numbers, planes, numbers if bias is None else bias
        there = {"BIAS": bias is not None, "STREAM": stream is not None}
        sizes = of_channels(group, x.shape[-1])
        start = x if stream is None else stream
        kernels.to_poses[programs(entries)](*given, start, entries, **there, **sizes)
    return x


@irreps_to_poses.register_fake
def _empty_poses(
    numbers: Tensor, planes: Tensor, bias: Tensor | None, stream: Tensor | None, group: str
) -> Tensor:
    if stream is not None:
        return torch.empty_like(stream)
    _, tokens, width = numbers.shape
    return numbers.new_empty((tokens, len(numbers) + 2 * len(planes), width))


@torch.library.custom_op("turnwise::gelu_in_irreps", mutates_args=())
@on_its_device
def gelu_in_irreps(
    numbers: Tensor, planes: Tensor, bias: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Q gelu(Qᵀ x̂ + b), for one bias of all poses."""
    new = torch.empty_like(numbers), torch.empty_like(planes)
    if entries := numbers[0].numel():
        sizes = of_channels(group, numbers.shape[-1])
        kernels.gelu_rows[programs(entries)](numbers, planes, bias, *new, entries, **sizes)
    return new


@torch.library.custom_op("turnwise::gelu_in_irreps_backward", mutates_args=())
@on_its_device
def gelu_in_irreps_backward(
    numbers: Tensor, planes: Tensor, bias: Tensor, d_numbers: Tensor, d_planes: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """The gradients of numbers and planes."""
    new = torch.empty_like(numbers), torch.empty_like(planes)
    if entries := numbers[0].numel():
        sizes = of_channels(group, numbers.shape[-1])
        given = numbers, planes, bias, *new, d_numbers, d_planes
        kernels.gelu_rows_backward[programs(entries)](*given, entries, **sizes)
    return new


@gelu_in_irreps.register_fake
@gelu_in_irreps_backward.register_fake
def _like_rows(numbers: Tensor, planes: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(numbers), torch.empty_like(planes)


@torch.library.custom_op("turnwise::norm_to_irreps", mutates_args=())
@on_its_device
def norm_to_irreps(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kind: torch.dtype, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers and planes of the norm, in the precision `kind`; mean and scale of each token."""
    results = _empty_normed(x, weight, bias, eps, kind, group)
    if x.numel():
        sizes = of_tokens(group, x.shape[-1])
        triton_norm.norm_to_rows[(len(x),)](x, weight, bias, *results, len(x), eps, **sizes)
    return results


@norm_to_irreps.register_fake
def _empty_normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kind: torch.dtype, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, scale = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return *_empty_rows(x, group, kind), mean, scale


@torch.library.custom_op("turnwise::norm_to_irreps_backward", mutates_args=())
@on_its_device
def norm_to_irreps_backward(
    x: Tensor, weight: Tensor, means: Tensor, scales: Tensor, d_numbers: Tensor, d_planes: Tensor,
    group: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of x, and those of weight and bias, one below the other."""
    shares = min(SHARES, len(x))
    d_x = torch.empty_like(x)
    parts = x.new_empty((2, shares, x.shape[-1]), dtype=torch.float32)
    if x.numel():
        given = x, weight, means, scales, d_numbers, d_planes, d_x, *parts, len(x), shares
        sizes = of_tokens(group, x.shape[-1])
        triton_norm.norm_to_rows_backward[(shares,)](*given, **sizes)
    return d_x, parts.sum(dim=1)


@norm_to_irreps_backward.register_fake
def _like_norm(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((2, x.shape[-1]), dtype=torch.float32)


def _remember_group(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.group, _ = inputs
    ctx.kind = x.dtype


def _remember_kinds(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    numbers, _, bias, stream, ctx.group = inputs
    ctx.kinds = numbers.dtype, None if bias is None else bias.dtype
    ctx.onto_stream = stream is not None


def _remember_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors)


def _remember_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _, ctx.group = inputs
    ctx.kind = bias.dtype
    ctx.save_for_backward(x, weight, *output[2:])


def _to_rows_back(ctx: Any, d_numbers: Tensor, d_planes: Tensor) -> tuple[Tensor, None, None]:
    grads = d_numbers.contiguous(), d_planes.contiguous()
    return irreps_to_poses(*grads, None, None, ctx.group).to(ctx.kind), None, None


def _to_poses_back(
    ctx: Any, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
    kind, of_bias = ctx.kinds
    numbers, planes = poses_to_irreps(grad.contiguous(), ctx.group, kind)
    d_bias = None if of_bias is None else _of_bias(numbers, grad.shape[1]).to(of_bias)
    return numbers, planes, d_bias, grad if ctx.onto_stream else None, None


def _norm_back(
    ctx: Any, d_numbers: Tensor, d_planes: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
    x, weight, means, scales = ctx.saved_tensors
    given = d_numbers.contiguous(), d_planes.contiguous(), ctx.group
    d_x, (d_weight, d_bias) = norm_to_irreps_backward(x, weight, means, scales, *given)
    return d_x, d_weight.to(weight.dtype), d_bias.to(ctx.kind), None, None, None


def _gelu_back(
    ctx: Any, d_numbers: Tensor, d_planes: Tensor
) -> tuple[Tensor, Tensor, Tensor, None]:
    numbers, planes, bias = ctx.saved_tensors
    given = d_numbers.contiguous(), d_planes.contiguous(), ctx.group
    d_numbers, d_planes = gelu_in_irreps_backward(numbers, planes, bias, *given)
    poses = len(numbers) + 2 * len(planes)
    return d_numbers, d_planes, _of_bias(d_numbers, poses).to(bias.dtype), None


def _of_bias(d_numbers: Tensor, poses: int) -> Tensor:
    """The bias goes to every pose alike: √|G| times what the trivial irrep's gradient sums to."""
    return d_numbers[0].sum(dim=0, dtype=torch.float32) * poses**0.5


poses_to_irreps.register_autograd(_to_rows_back, setup_context=_remember_group)
irreps_to_poses.register_autograd(_to_poses_back, setup_context=_remember_kinds)
norm_to_irreps.register_autograd(_norm_back, setup_context=_remember_norm)
gelu_in_irreps.register_autograd(_gelu_back, setup_context=_remember_all)
