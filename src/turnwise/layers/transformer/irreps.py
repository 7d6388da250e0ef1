"""Features on the group in the basis of irreps, in the layout that products with blocks need.

x̂ = Q x splits into 1-D and 2-D irreps (`groups.representations`).  A linear map multiplies each
irrep by a matrix of its own; a nonlinearity, gelu(Qᵀ x̂ + b), needs the regular basis, which kernels
compute on the fly.  backend="plain" reads like the formula and is the reference for the CUDA
kernels (kernels/irreps.py), which read and write each value once.

Letters:  g a group element;  ρ an irrep with rows a and columns b, c;  i, o channels in and out.
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
SPLITS = 16  # partial sums over the tokens in the gradient of a weight, to keep a GPU busy


class Irreps(NamedTuple):
    """x̂ of many tokens: the 1-D irreps, and the rows a of the 2-D irreps."""

    dim1: Float[Tensor, "irrep token channel"]
    dim2: Float[Tensor, "irrep_row token two channel"]


class IrrepBasis(NamedTuple):
    """A group by name, its basis Q on the device of the features, and the blocks of Q.

    Q is cast to the type of the features, so it may be more precise.
    """

    group: str
    matrix: Float[Tensor, "row group"]
    blocks: tuple[EqualBlocks, ...]

    @classmethod
    def of(cls, group: PlanarGroup | str, matrix: Float[Tensor, "row group"]) -> "IrrepBasis":
        return cls(PlanarGroup.named(group).name, matrix, regular_basis(group).blocks)


def to_irreps(
    x: Float[Tensor, "*many group channel"], basis: IrrepBasis, backend: str = "auto"
) -> Irreps:
    """Return x̂ = Q x."""
    tokens = rounded_by_autocast(x.reshape(-1, *x.shape[-2:]))
    if by_kernel(tokens, backend):
        from turnwise.kernels.irreps_launch import regular_to_irreps

        return Irreps(*regular_to_irreps(tokens.contiguous(), basis.group))
    rows = (basis.matrix.to(tokens.dtype) @ tokens).transpose(0, 1)  # (row, token, channel)
    dim1, dim2 = rows.tensor_split([basis.blocks[0].count])
    return Irreps(dim1, dim2.unflatten(0, (-1, 2)).transpose(1, 2))


def from_irreps(
    irreps: Irreps,
    basis: IrrepBasis,
    bias: Float[Tensor, " channel"] | None = None,
    stream: Float[Tensor, "token group channel"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "token group channel"]:
    """Return x = s + Qᵀ x̂ + b, with the residual stream s and a bias b of all group elements."""
    if by_kernel(irreps.dim1, backend):
        from turnwise.kernels.irreps_launch import irreps_to_regular

        dim1, dim2 = (part.contiguous() for part in irreps)
        start = None if stream is None else stream.contiguous()
        return irreps_to_regular(dim1, dim2, bias, start, basis.group)
    rows = torch.cat([irreps.dim1, irreps.dim2.transpose(1, 2).flatten(0, 1)])
    x = basis.matrix.mT.to(rows.dtype) @ rows.transpose(0, 1)
    x = x if bias is None else x + bias.to(x.dtype)
    return x if stream is None else stream + x


def gelu_of_irreps(
    irreps: Irreps, bias: Float[Tensor, " channel"], basis: IrrepBasis, backend: str = "auto"
) -> Irreps:
    """Return Q gelu(Qᵀ x̂ + b); the kernel does not store the regular basis."""
    if by_kernel(irreps.dim1, backend):
        from turnwise.kernels.irreps_launch import gelu_in_irreps

        dim1, dim2 = (part.contiguous() for part in irreps)
        return Irreps(*gelu_in_irreps(dim1, dim2, bias, basis.group))
    return to_irreps(F.gelu(from_irreps(irreps, basis, bias, backend="plain")), basis, "plain")


def by_kernel(x: Tensor, backend: str) -> bool:
    """Return whether to use the CUDA kernels, which compute in float32 and so not for float64."""
    require_known(backend, BACKENDS, "backend")
    able = x.is_cuda and HAS_TRITON and x.dtype != torch.float64
    return backend == "triton" or (backend == "auto" and able)


def multiply_blocks(
    irreps: Irreps, weights: list[Float[Tensor, "_ _ _"]], basis: IrrepBasis
) -> Irreps:
    """Return ŷ[ρ, a, c] = Σ_b Ŵ[ρ, c, b] x̂[ρ, a, b]: one product for each dimension of irreps.

    All rows a of an irrep are multiplied by the same Ŵ[ρ], so they count as more tokens.
    """
    tokens = irreps.dim1.shape[1]
    dim1 = multiply(irreps.dim1, weights[0])
    if len(basis.blocks) == 1:
        return Irreps(dim1, dim1.new_empty((0, tokens, 2, dim1.shape[-1])))
    block, weight = basis.blocks[1], weights[1]
    columns = irreps.dim2.reshape(block.count, block.copies * tokens, weight.shape[-1])
    dim2 = multiply(columns, weight).view(len(irreps.dim2), tokens, 2, weight.shape[-2] // 2)
    return Irreps(dim1, dim2)


def multiply(
    x: Float[Tensor, "block token block_in"], weight: Float[Tensor, "block block_out block_in"]
) -> Float[Tensor, "block token block_out"]:
    """Return x weightᵀ for every block, in the precision of autocast."""
    x, weight = rounded_by_autocast(x), rounded_by_autocast(weight)
    return MultiplyBlocks.apply(x, weight) if x.is_cuda else torch.bmm(x, weight.mT)


def rounded_by_autocast(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Cast as autocast would at the next matrix product; doing it earlier writes less memory."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


class MultiplyBlocks(torch.autograd.Function):
    """x weightᵀ, with a weight gradient that sums the tokens in parallel splits.

    The gradient is small and its sum long; computed at once it would leave most of a GPU idle.
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
        splits = SPLITS if x.shape[1] % SPLITS == 0 else 1
        left, right = (y.unflatten(1, (splits, -1)).flatten(0, 1) for y in (gradient, x))
        parts = torch.bmm(left.mT, right).unflatten(0, (-1, splits))
        d_weight = parts.sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
        return torch.bmm(gradient, weight), d_weight.to(weight.dtype)
