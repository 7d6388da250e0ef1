"""Features on the group as their irreps, laid out as the products with their blocks take them.

x̂ = Q x falls into numbers and planes (`groups.representations`).  A linear map multiplies each
irrep by a matrix of its own; what is not linear, gelu(Qᵀ x̂ + b), needs the poses back, and may go
there and back again where it stands.  backend="plain" reads like the formula and is the oracle of
the kernels on CUDA (triton_irrep_launch.py), which read and write every number once.

Letters:  g a pose;  ρ an irrep with rows a and columns b, c;  i, o channels in and out.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.errors import require_known
from turnwise.groups import PlanarGroup
from turnwise.groups.representations import EqualBlocks, regular_basis

BACKENDS = ("auto", "plain", "triton")
HAS_TRITON = find_spec("triton") is not None
SHARES = 16  # in which the tokens are summed for a weight's gradient, to keep a GPU busy


class Irreps(NamedTuple):
    """x̂ of many tokens: a plane is one row a of an irrep of two dimensions."""

    numbers: Float[Tensor, "number token channel"]
    planes: Float[Tensor, "plane token two channel"]


class PoseBasis(NamedTuple):
    """A group by its name, its basis Q where the features are, and the blocks: numbers, planes.

    Q is cast to the features, so it may be more precise.
    """

    group: str
    matrix: Float[Tensor, "row group"]
    blocks: tuple[EqualBlocks, ...]

    @classmethod
    def of(cls, group: PlanarGroup | str, matrix: Float[Tensor, "row group"]) -> "PoseBasis":
        return cls(PlanarGroup.named(group).name, matrix, regular_basis(group).blocks)


def to_irreps(
    x: Float[Tensor, "*many group channel"], basis: PoseBasis, backend: str = "auto"
) -> Irreps:
    """x̂ = Q x."""
    tokens = rounded_by_autocast(x.reshape(-1, *x.shape[-2:]))
    if by_kernel(tokens, backend):
        from turnwise.kernels.irreps_launch import poses_to_irreps

        return Irreps(*poses_to_irreps(tokens.contiguous(), basis.group))
    rows = (basis.matrix.to(tokens.dtype) @ tokens).transpose(0, 1)  # (row, token, channel)
    numbers, planes = rows.tensor_split([basis.blocks[0].count])
    return Irreps(numbers, planes.unflatten(0, (-1, 2)).transpose(1, 2))


def from_irreps(
    irreps: Irreps,
    basis: PoseBasis,
    bias: Float[Tensor, " channel"] | None = None,
    stream: Float[Tensor, "token group channel"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "token group channel"]:
    """x = s + Qᵀ x̂ + b, onto the stream s, with one b for all poses."""
    if by_kernel(irreps.numbers, backend):
        from turnwise.kernels.irreps_launch import irreps_to_poses

        numbers, planes = (part.contiguous() for part in irreps)
        start = None if stream is None else stream.contiguous()
        return irreps_to_poses(numbers, planes, bias, start, basis.group)
    rows = torch.cat([irreps.numbers, irreps.planes.transpose(1, 2).flatten(0, 1)])
    poses = basis.matrix.mT.to(rows.dtype) @ rows.transpose(0, 1)
    poses = poses if bias is None else poses + bias.to(poses.dtype)
    return poses if stream is None else stream + poses


def gelu_of_irreps(
    irreps: Irreps, bias: Float[Tensor, " channel"], basis: PoseBasis, backend: str = "auto"
) -> Irreps:
    """Q gelu(Qᵀ x̂ + b): the poses are seen on the way and not kept."""
    if by_kernel(irreps.numbers, backend):
        from turnwise.kernels.irreps_launch import gelu_in_irreps

        numbers, planes = (part.contiguous() for part in irreps)
        return Irreps(*gelu_in_irreps(numbers, planes, bias, basis.group))
    return to_irreps(F.gelu(from_irreps(irreps, basis, bias, backend="plain")), basis, "plain")


def by_kernel(x: Tensor, backend: str) -> bool:
    """The kernels count in float32: what is more precise is left to the formula."""
    require_known(backend, BACKENDS, "backend")
    able = x.is_cuda and HAS_TRITON and x.dtype != torch.float64
    return backend == "triton" or (backend == "auto" and able)


def multiply_blocks(
    irreps: Irreps, weights: list[Float[Tensor, "_ _ _"]], basis: PoseBasis
) -> Irreps:
    """ŷ[ρ, a, c] = Σ_b Ŵ[ρ, c, b] x̂[ρ, a, b]: one product for all numbers, and one for all planes.

    The rows a of an irrep stand one after the other, as more tokens: all meet the same Ŵ[ρ].
    """
    tokens = irreps.numbers.shape[1]
    numbers = multiply(irreps.numbers, weights[0])
    if len(basis.blocks) == 1:
        return Irreps(numbers, numbers.new_empty((0, tokens, 2, numbers.shape[-1])))
    block, weight = basis.blocks[1], weights[1]
    columns = irreps.planes.reshape(block.count, block.copies * tokens, weight.shape[-1])
    planes = multiply(columns, weight).view(len(irreps.planes), tokens, 2, weight.shape[-2] // 2)
    return Irreps(numbers, planes)


def multiply(
    x: Float[Tensor, "block token block_in"], weight: Float[Tensor, "block block_out block_in"]
) -> Float[Tensor, "block token block_out"]:
    """x weightᵀ for every block, in the precision of autocast."""
    x, weight = rounded_by_autocast(x), rounded_by_autocast(weight)
    return MultiplyBlocks.apply(x, weight) if x.is_cuda else torch.bmm(x, weight.mT)


def rounded_by_autocast(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """As autocast rounds what a matrix product takes: here before it, so that less is written."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


class MultiplyBlocks(torch.autograd.Function):
    """x weightᵀ, whose weight's gradient sums the tokens in shares, side by side.

    The gradient is small and its sum long: in one piece it would leave most of a GPU idle.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        shares = SHARES if x.shape[1] % SHARES == 0 else 1
        left, right = (y.unflatten(1, (shares, -1)).flatten(0, 1) for y in (gradient, x))
        parts = torch.bmm(left.mT, right).unflatten(0, (-1, shares))
        d_weight = parts.sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
        return torch.bmm(gradient, weight), d_weight.to(weight.dtype)
