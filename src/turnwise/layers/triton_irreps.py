"""Between poses and irreps on CUDA: every number is read once and written once.

A program takes some channels of some tokens, in all poses or in all rows of irreps: |G| vectors,
which it mixes in registers by the matrix of the basis, compiled in.  So the change of basis costs
no more than a copy, and  Q gelu(Qᵀ x̂ + b)  no more than gelu alone.

Letters:  g a pose;  row of Q: first the numbers, then the planes (p, b), b = 0 or 1.
          G how many poses;  N how many numbers;  C channels;  SIZE channels in a program.
Memory:   poses (token, g, C);  numbers (row, token, C);  planes (p, token, b, C): as the products
          with the blocks take and leave them.  An entry e counts (token, channel).
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from turnwise.groups.representations import regular_basis

SIZE, WARPS = 256, 2


@triton.jit
def load_poses(x, e, inside, G: tl.constexpr, C: tl.constexpr):
    """One vector for each pose."""
    first = x + e // C * (G * C) + e % C
    poses = ()
    for g in tl.static_range(G):
        poses = poses + (tl.load(first + g * C, inside).to(tl.float32),)
    return poses


@triton.jit
def store_poses(x, poses, e, inside, G: tl.constexpr, C: tl.constexpr):
    first = x + e // C * (G * C) + e % C
    for g in tl.static_range(G):
        tl.store(first + g * C, poses[g].to(x.dtype.element_ty), inside)


@triton.jit
def load_rows(
    numbers, planes, e, inside, entries, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """One vector for each row of the basis."""
    rows = ()
    for row in tl.static_range(N):
        rows = rows + (tl.load(numbers + row * entries + e, inside).to(tl.float32),)
    first = planes + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        place = first + row // 2 * 2 * entries + row % 2 * C
        rows = rows + (tl.load(place, inside).to(tl.float32),)
    return rows


@triton.jit
def store_rows(
    numbers, planes, rows, e, inside, entries, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    for row in tl.static_range(N):
        tl.store(numbers + row * entries + e, rows[row].to(numbers.dtype.element_ty), inside)
    first = planes + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        place = first + row // 2 * 2 * entries + row % 2 * C
        tl.store(place, rows[N + row].to(planes.dtype.element_ty), inside)


@triton.jit
def mixed(vectors, MATRIX: tl.constexpr, G: tl.constexpr):
    """y[i] = Σ_j MATRIX[i, j] x[j]; what is zero is not even added."""
    result = ()
    for i in tl.static_range(G):
        total = tl.zeros_like(vectors[0])
        for j in tl.static_range(G):
            if MATRIX[i * G + j] != 0.0:
                total += vectors[j] * MATRIX[i * G + j]
        result = result + (total,)
    return result


@triton.jit
def entries_here(entries, SIZE: tl.constexpr):
    """Which entries this program takes, and which of them exist."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return e, e < entries


@triton.jit
def to_rows(
    x, numbers, planes, entries, Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """x̂ = Q x."""
    e, inside = entries_here(entries, SIZE)
    rows = mixed(load_poses(x, e, inside, G, C), Q, G)
    store_rows(numbers, planes, rows, e, inside, entries, G, N, C)


@triton.jit
def to_poses(
    x, numbers, planes, bias, entries, BIAS: tl.constexpr, Q: tl.constexpr, QT: tl.constexpr,
    G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """x = Qᵀ x̂ + b."""
    e, inside = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    if BIAS:
        poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    store_poses(x, poses, e, inside, G, C)


@triton.jit
def added(poses, b, G: tl.constexpr):
    """One vector, to every pose."""
    sums = ()
    for g in tl.static_range(G):
        sums = sums + (poses[g] + b,)
    return sums


@triton.jit
def below(x):
    """Φ(x): how much of a normal distribution lies below x."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit
def gelu_rows(
    numbers, planes, bias, new_numbers, new_planes, entries, Q: tl.constexpr, QT: tl.constexpr,
    G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Q gelu(Qᵀ x̂ + b)."""
    e, inside = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    active = ()
    for g in tl.static_range(G):
        active = active + (poses[g] * below(poses[g]),)
    store_rows(new_numbers, new_planes, mixed(active, Q, G), e, inside, entries, G, N, C)


@triton.jit
def gelu_rows_backward(
    numbers, planes, bias, new_numbers, new_planes, d_numbers, d_planes, entries,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Q (gelu'(Qᵀ x̂ + b) · Qᵀ dŷ), with gelu'(x) = Φ(x) + x φ(x)."""
    e, inside = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    d_poses = mixed(load_rows(d_numbers, d_planes, e, inside, entries, G, N, C), QT, G)
    grads = ()
    for g in tl.static_range(G):
        x = poses[g]
        slope = below(x) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        grads = grads + (d_poses[g] * slope,)
    store_rows(new_numbers, new_planes, mixed(grads, Q, G), e, inside, entries, G, N, C)


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
        "SIZE": SIZE,
        "num_warps": WARPS,
    }


def programs(entries: int) -> tuple[int]:
    return (triton.cdiv(entries, SIZE),)


@torch.library.custom_op("turnwise::poses_to_irreps", mutates_args=())
def poses_to_irreps(x: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """(token, group, channel) -> numbers, planes."""
    numbers, planes = _empty_rows(x, group)
    if entries := len(x) * x.shape[-1]:
        to_rows[programs(entries)](x, numbers, planes, entries, **constants(group, x.shape[-1]))
    return numbers, planes


@poses_to_irreps.register_fake
def _empty_rows(x: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """Only sizes are asked of the basis: a compiler's tensors cannot meet those of its matrix."""
    numbers = regular_basis(group).blocks[0].count
    planes = (x.shape[1] - numbers) // 2
    return (
        x.new_empty((numbers, len(x), x.shape[-1])),
        x.new_empty((planes, len(x), 2, x.shape[-1])),
    )


@torch.library.custom_op("turnwise::irreps_to_poses", mutates_args=())
def irreps_to_poses(numbers: Tensor, planes: Tensor, bias: Tensor | None, group: str) -> Tensor:
    """Numbers, planes -> (token, group, channel), and one bias for all poses."""
    x = _empty_poses(numbers, planes, bias, group)
    if entries := len(x) * x.shape[-1]:
        given = x, numbers, planes, numbers if bias is None else bias, entries
        to_poses[programs(entries)](*given, BIAS=bias is not None, **constants(group, x.shape[-1]))
    return x


@irreps_to_poses.register_fake
def _empty_poses(numbers: Tensor, planes: Tensor, bias: Tensor | None, group: str) -> Tensor:
    _, tokens, width = numbers.shape
    return numbers.new_empty((tokens, len(numbers) + 2 * len(planes), width))


@torch.library.custom_op("turnwise::gelu_in_irreps", mutates_args=())
def gelu_in_irreps(
    numbers: Tensor, planes: Tensor, bias: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Q gelu(Qᵀ x̂ + b), for one bias of all poses."""
    new = torch.empty_like(numbers), torch.empty_like(planes)
    if entries := numbers[0].numel():
        sizes = constants(group, numbers.shape[-1])
        gelu_rows[programs(entries)](numbers, planes, bias, *new, entries, **sizes)
    return new


@torch.library.custom_op("turnwise::gelu_in_irreps_backward", mutates_args=())
def gelu_in_irreps_backward(
    numbers: Tensor, planes: Tensor, bias: Tensor, d_numbers: Tensor, d_planes: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """The gradients of numbers and planes."""
    new = torch.empty_like(numbers), torch.empty_like(planes)
    if entries := numbers[0].numel():
        sizes = constants(group, numbers.shape[-1])
        given = numbers, planes, bias, *new, d_numbers, d_planes
        gelu_rows_backward[programs(entries)](*given, entries, **sizes)
    return new


@gelu_in_irreps.register_fake
@gelu_in_irreps_backward.register_fake
def _like_rows(numbers: Tensor, planes: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(numbers), torch.empty_like(planes)


def _remember_group(ctx: Any, inputs: tuple[Tensor, str], output: Any) -> None:
    ctx.group = inputs[1]


def _remember_bias(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, bias, ctx.group = inputs
    ctx.kind = None if bias is None else bias.dtype


def _remember_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors)


def _to_rows_back(ctx: Any, d_numbers: Tensor, d_planes: Tensor) -> tuple[Tensor, None]:
    return irreps_to_poses(d_numbers.contiguous(), d_planes.contiguous(), None, ctx.group), None


def _to_poses_back(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    numbers, planes = poses_to_irreps(grad.contiguous(), ctx.group)
    d_bias = None if ctx.kind is None else _of_bias(numbers, grad.shape[1]).to(ctx.kind)
    return numbers, planes, d_bias, None


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
irreps_to_poses.register_autograd(_to_poses_back, setup_context=_remember_bias)
gelu_in_irreps.register_autograd(_gelu_back, setup_context=_remember_all)
