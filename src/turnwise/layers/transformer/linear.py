"""The linear map on the group, in the basis of the elements and in that of irreps.

Letters:  g, m, u elements;  ρ an irrep with rows a and columns b, c;  i, o channels in and out.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.groups.representations import irreps, regular_basis
from turnwise.layers.tables import remakes_tables
from turnwise.layers.transformer.irreps import (
    Irreps,
    PoseBasis,
    from_irreps,
    multiply_blocks,
    to_irreps,
)

BASES = ("regular", "irreps")
LARGEST_SUM = 16  # terms; longer sums are matrix products also in a compiled graph


def along_group(
    matrix: Float[Tensor, "row group"], x: Float[Tensor, "*many group channel"]
) -> Float[Tensor, "*many row channel"]:
    """y^a = Σ_g matrix[a, g] x^g, in the precision of x.

    A compiler fuses a short sum with the elementwise work before and after it, but not a product
    of matrices; without a compiler the sum would write and read all its terms.
    """
    if torch.compiler.is_compiling() and matrix.shape[-1] <= LARGEST_SUM:
        return SumAlongGroup.apply(matrix, x)
    return matrix.to(x.dtype) @ x


def sum_along_group(
    matrix: Float[Tensor, "row group"], x: Float[Tensor, "*many group channel"]
) -> Float[Tensor, "*many row channel"]:
    """`along_group`, term by term: a compiler makes one elementwise kernel of it, no reduction."""
    terms = [matrix[:, g, None] * x[..., g, None, :] for g in range(matrix.shape[-1])]
    total = sum(terms[1:], start=terms[0])
    # torch 2.11 compiles a Function that ends in a cast to the same type without its gradient
    return total if total.dtype == x.dtype else total.to(x.dtype)


class SumAlongGroup(torch.autograd.Function):
    """`sum_along_group`, whose gradient is such a sum again; torch's own would be |G| of them."""

    @staticmethod
    def forward(matrix: Tensor, x: Tensor) -> Tensor:
        return sum_along_group(matrix, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (matrix,) = ctx.saved_tensors
        return None, SumAlongGroup.apply(matrix.mT, gradient)


class ExpandWeight(torch.autograd.Function):
    """[(g, o), (m, i)] -> W[g⁻¹m, o, i], whose gradient, dW[u] = Σ_g d[g, g·u], only reads.

    torch's own adds to places named by an index, in any order and with atomic additions.
    """

    generate_vmap_rule = True  # torch.func: gradients of each sample, ensembles

    @staticmethod
    def forward(weight: Tensor, sources: Tensor, product: Tensor) -> Tensor:
        return weight.flatten(0, 1)[sources].flatten(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (product,) = ctx.saved_tensors
        poses = len(product)
        blocks = gradient.unflatten(1, (poses, -1)).unflatten(0, (poses, -1))  # (g, o, m, i)
        terms = [blocks[g].index_select(1, product[g]) for g in range(poses)]  # (o, u, i)
        return sum(terms[1:], start=terms[0]).transpose(0, 1), None, None


@remakes_tables
class GroupLinear(nn.Module):
    """y^g = Σ_m W[g⁻¹m] x^m + b: what g hears from m depends on where m stands, seen from g.

    Both bases have the same weights and give the same numbers:
    "regular" expands W to one matrix of |G|·out_width x |G|·in_width;
    "irreps"  multiplies x̂ by the blocks Ŵ, which takes 5.33 times fewer products for D4, and pays
              with two changes of the basis, x to x̂ and ŷ to y (`layers.irrep_blocks`).

    Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks", equation 11.
    Symbols:  x is their f, W their ψ;  the group has no translations here: tokens do not mix.
    """

    weight: Float[Tensor, "group out_width in_width"]
    bias: Float[Tensor, " out_width"] | None
    sources: Tensor
    product: Tensor
    basis_matrix: Tensor
    coefficients: Tensor
    coefficients_single: Tensor

    def __init__(
        self,
        group: PlanarGroup | str,
        in_width: int,
        out_width: int,
        *,
        bias: bool = True,
        basis: str = "regular",
    ) -> None:
        super().__init__()
        require_positive(in_width=in_width, out_width=out_width)
        require_known(basis, BASES, "basis")
        self.group, self.basis = PlanarGroup.named(group), basis
        self.in_width, self.out_width = in_width, out_width
        self.weight = nn.Parameter(torch.empty(self.group.order, out_width, in_width))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_width)) if bias else None)
        self._register_tables()
        self.reset_parameters()

    def _register_tables(self) -> None:
        """Kept in float64, so that a layer made in float32 and then made double is exact.

        The coefficients in float32, too: a compiled kernel reads them for every weight it makes.
        """
        basis = regular_basis(self.group)
        self.group_name, self.blocks = self.group.name, basis.blocks
        tables = {
            "sources": _sources(self.group, self.out_width),
            "product": self.group.product(),
            "basis_matrix": basis.matrix.clone(),
            "coefficients": _coefficients(self.group),
            "coefficients_single": _coefficients(self.group).float(),
        }
        for name, table in tables.items():
            self.register_buffer(name, table.to(self.weight.device), persistent=False)

    def reset_parameters(self) -> None:
        """Xavier-uniform for the expanded matrix; no bias."""
        fans = self.group.order * (self.in_width + self.out_width)
        nn.init.uniform_(self.weight, -math.sqrt(6 / fans), math.sqrt(6 / fans))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "*many group in_width"]
    ) -> Float[Tensor, "*many group out_width"]:
        if x.shape[-2:] != (self.group.order, self.in_width):
            raise InputError(
                f"the layer takes {self.group.order} poses of {self.in_width} channels, "
                f"got {x.shape[-2]} of {x.shape[-1]}."
            )
        if self.basis == "irreps":
            y = self.leave_irreps(to_irreps(x, self.pose_basis()))
            return y.view(*x.shape[:-1], self.out_width)
        bias = None if self.bias is None else self.bias.repeat(self.group.order)
        y = F.linear(x.flatten(-2), self.expanded_weight(), bias)
        return y.unflatten(-1, (self.group.order, self.out_width))

    def expanded_weight(self) -> Float[Tensor, "all_out all_in"]:
        """[(g, o), (m, i)] -> W[g⁻¹m, o, i]."""
        return ExpandWeight.apply(self.weight, self.sources, self.product)

    def pose_basis(self) -> PoseBasis:
        """Q, where the weights are."""
        return PoseBasis(self.group_name, self.basis_matrix, self.blocks)

    def forward_in_irreps(self, irreps: Irreps) -> Irreps:
        """Ŵ x̂, without the bias: that is the same in every pose, so in the trivial irrep alone."""
        return multiply_blocks(irreps, self.irrep_weights(), self.pose_basis())

    def leave_irreps(
        self,
        irreps: Irreps,
        stream: Float[Tensor, "token group out_width"] | None = None,
        factor: Float[Tensor, " out_width"] | None = None,
    ) -> Float[Tensor, "token group out_width"]:
        """s + f · (Qᵀ Ŵ x̂ + b), onto the stream s and by the factors f where there are any.

        The weights are multiplied by the factors, for they are fewer than the tokens' channels.
        """
        basis, weights, bias = self.pose_basis(), self.irrep_weights(), self.bias
        if factor is not None:
            scaled = zip(self.blocks, weights, strict=True)
            weights = [weight * factor.repeat(block.dim)[:, None] for block, weight in scaled]
            bias = None if bias is None else bias * factor
        return from_irreps(multiply_blocks(irreps, weights, basis), basis, bias, stream)

    def irrep_weights(self) -> list[Float[Tensor, "count block_out block_in"]]:
        """Ŵ[ρ] = Σ_u ρ(u) ⊗ W[u], one tensor for each size of irreps."""
        # under autocast too the sums are in float32: Ŵ is rounded once, where it meets x̂
        double = self.weight.dtype == torch.float64
        coefficients = self.coefficients if double else self.coefficients_single
        with torch.autocast(self.weight.device.type, enabled=False):
            entries = along_group(coefficients, self.weight.flatten(1))
        split = entries.split([block.count * block.dim**2 for block in self.blocks])
        channels = (self.out_width, self.in_width)
        return [
            part.view(block.count, block.dim, block.dim, *channels)  # (ρ, c, b, o, i)
            .transpose(2, 3)
            .reshape(block.count, block.dim * self.out_width, block.dim * self.in_width)
            for part, block in zip(split, self.blocks, strict=True)
        ]

    def multiplications(self) -> dict[str, int]:
        """How many products of a weight and a feature each basis takes for a token.

        The sums to and from irreps, at most |G|² terms for a channel, are not counted.
        """
        blocks = {
            "regular": self.group.order**2,
            "irreps": sum(block.multiplications for block in self.blocks),
        }
        return {basis: n * self.in_width * self.out_width for basis, n in blocks.items()}

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.group}, {self.in_width} -> {self.out_width}, {bias=}, basis={self.basis}"


def _sources(group: PlanarGroup, out_width: int) -> Tensor:
    """[(g, o), m] -> where in the rows (u, o) of W the row of g⁻¹m and o stands."""
    first = group.relative()[:, None, :] * out_width
    return (first + torch.arange(out_width)[:, None]).flatten(0, 1)


def _coefficients(group: PlanarGroup) -> Float[Tensor, "entry group"]:
    """[(ρ, c, b), u] -> ρ(u)[c, b]."""
    return torch.cat([irrep.matrices.flatten(1).T for irrep in irreps(group)])


def in_irreps(linear: nn.Module) -> bool:
    """Whether this is a map of ours, and no other kind, that works in irreps."""
    return type(linear) is GroupLinear and linear.basis == "irreps"
