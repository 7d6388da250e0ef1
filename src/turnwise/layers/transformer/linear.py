"""The linear map on the group, in the basis of group elements or of irreps.

Letters:  g, m, u group elements;  ρ an irrep with rows a and columns b, c;  i, o channels.
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
from turnwise.layers.expansion import CachedExpansion
from turnwise.layers.tables import remakes_tables
from turnwise.layers.transformer.irreps import (
    IrrepBasis,
    Irreps,
    from_irreps,
    multiply_blocks,
    to_irreps,
)

BASES = ("regular", "irreps")
MAX_TERMS = 16  # longer sums are matrix products also in a compiled graph


def along_group(
    matrix: Float[Tensor, "row group"], x: Float[Tensor, "*many group channel"]
) -> Float[Tensor, "*many row channel"]:
    """Return y^a = Σ_g matrix[a, g] x^g, in the precision of x.

    A compiler fuses a short sum with the elementwise operations around it, but not a matrix
    product; in eager mode the sum would write and read all its terms.
    """
    if torch.compiler.is_compiling() and matrix.shape[-1] <= MAX_TERMS:
        return SumAlongGroup.apply(matrix, x)
    return matrix.to(x.dtype) @ x


def sum_along_group(
    matrix: Float[Tensor, "row group"], x: Float[Tensor, "*many group channel"]
) -> Float[Tensor, "*many row channel"]:
    """Compute `along_group` term by term, which compiles to one elementwise kernel."""
    terms = [matrix[:, g, None] * x[..., g, None, :] for g in range(matrix.shape[-1])]
    total = sum(terms[1:], start=terms[0])
    # torch 2.11 compiles a Function that ends in a cast to the same type without its gradient
    return total if total.dtype == x.dtype else total.to(x.dtype)


class SumAlongGroup(torch.autograd.Function):
    """`sum_along_group` with a gradient that is one such sum; torch's own would be |G| of them."""

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
    """[(g, o), (m, i)] -> W[g⁻¹m, o, i], with the gradient dW[u] = Σ_g d[g, g·u] as a gather.

    torch's own gradient scatters with atomic additions, in any order.
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
        order = len(product)
        blocks = gradient.unflatten(1, (order, -1)).unflatten(0, (order, -1))  # (g, o, m, i)
        terms = [blocks[g].index_select(1, product[g]) for g in range(order)]  # (o, u, i)
        return sum(terms[1:], start=terms[0]).transpose(0, 1), None, None


@remakes_tables
class GroupLinear(nn.Module):
    """Equivariant linear map of features with a group axis: y^g = Σ_m W[g⁻¹m] x^m + b.

    Both bases have the same parameters and outputs. "regular" expands W to one matrix of
    |G|·out_features × |G|·in_features. "irreps" multiplies x̂ by the blocks Ŵ, which takes 5.33
    times fewer multiplications for D4, plus two changes of basis.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_features: channels of each group element of the input.
        out_features: channels of each group element of the output.
        bias: whether to add a learned bias, the same for every group element.
        basis: "regular" or "irreps".

    Shape:
        - Input: (*, |G|, in_features), for example tokens (batch, token, |G|, channel).
        - Output: (*, |G|, out_features).

    Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks", equation 11.
    Symbols:  x is their f, W their ψ;  the group has no translations here: tokens do not mix.

    >>> GroupLinear("D4", 16, 32)(torch.randn(2, 49, 8, 16)).shape
    torch.Size([2, 49, 8, 32])
    """

    weight: Float[Tensor, "group out_features in_features"]
    bias: Float[Tensor, " out_features"] | None
    sources: Tensor
    product: Tensor
    basis_matrix: Tensor
    coefficients: Tensor
    coefficients_single: Tensor

    def __init__(
        self,
        group: PlanarGroup | str,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        basis: str = "regular",
    ) -> None:
        super().__init__()
        require_positive(in_features=in_features, out_features=out_features)
        require_known(basis, BASES, "basis")
        self.group, self.basis = PlanarGroup.named(group), basis
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(self.group.order, out_features, in_features))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_features)) if bias else None)
        self._matrix, self._blocks = CachedExpansion[Tensor](), CachedExpansion[list[Tensor]]()
        self._register_tables()
        self.reset_parameters()

    def _register_tables(self) -> None:
        """Register tables in float64, so that a layer cast from float32 to double is exact.

        The coefficients are kept in float32, too, which compiled kernels read for every weight.
        """
        basis = regular_basis(self.group)
        self.group_name, self.blocks = self.group.name, basis.blocks
        tables = {
            "sources": _sources(self.group, self.out_features),
            "product": self.group.product(),
            "basis_matrix": basis.matrix.clone(),
            "coefficients": _coefficients(self.group),
            "coefficients_single": _coefficients(self.group).float(),
        }
        for name, table in tables.items():
            self.register_buffer(name, table.to(self.weight.device), persistent=False)

    def reset_parameters(self) -> None:
        """Initialise Xavier-uniform for the expanded matrix, with a bias of 0."""
        fans = self.group.order * (self.in_features + self.out_features)
        nn.init.uniform_(self.weight, -math.sqrt(6 / fans), math.sqrt(6 / fans))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "*many group in_features"]
    ) -> Float[Tensor, "*many group out_features"]:
        if x.shape[-2:] != (self.group.order, self.in_features):
            raise InputError(
                f"expected {self.group.order} group elements of {self.in_features} channels, "
                f"got {x.shape[-2]} of {x.shape[-1]}."
            )
        if self.basis == "irreps":
            y = self.leave_irreps(to_irreps(x, self.irrep_basis()))
            return y.view(*x.shape[:-1], self.out_features)
        bias = None if self.bias is None else self.bias.repeat(self.group.order)
        y = F.linear(x.flatten(-2), self.expanded_weight(), bias)
        return y.unflatten(-1, (self.group.order, self.out_features))

    def expanded_weight(self) -> Float[Tensor, "all_out all_in"]:
        """Return the matrix [(g, o), (m, i)] -> W[g⁻¹m, o, i]."""
        return self._matrix(
            self.weight, lambda weight: ExpandWeight.apply(weight, self.sources, self.product)
        )

    def irrep_basis(self) -> IrrepBasis:
        """Return Q, on the device of the weights."""
        return IrrepBasis(self.group_name, self.basis_matrix, self.blocks)

    def forward_in_irreps(self, irreps: Irreps) -> Irreps:
        """Return Ŵ x̂ without the bias, which has a component in the trivial irrep alone."""
        return multiply_blocks(irreps, self.irrep_weights(), self.irrep_basis())

    def leave_irreps(
        self,
        irreps: Irreps,
        stream: Float[Tensor, "token group out_features"] | None = None,
        factor: Float[Tensor, " out_features"] | None = None,
    ) -> Float[Tensor, "token group out_features"]:
        """Return s + f · (Qᵀ Ŵ x̂ + b), with an optional residual stream s and factors f.

        The factors multiply the weights, which are fewer than the features.
        """
        basis, weights, bias = self.irrep_basis(), self.irrep_weights(), self.bias
        if factor is not None:
            scaled = zip(self.blocks, weights, strict=True)
            weights = [weight * factor.repeat(block.dim)[:, None] for block, weight in scaled]
            bias = None if bias is None else bias * factor
        return from_irreps(multiply_blocks(irreps, weights, basis), basis, bias, stream)

    def irrep_weights(self) -> list[Float[Tensor, "count block_out block_in"]]:
        """Return Ŵ[ρ] = Σ_u ρ(u) ⊗ W[u], one tensor for each dimension of irreps."""
        return self._blocks(self.weight, self._block_weights)

    def _block_weights(self, weight: Tensor) -> list[Float[Tensor, "count block_out block_in"]]:
        # sums in float32 also under autocast: Ŵ is rounded once, in the product with x̂
        double = weight.dtype == torch.float64
        coefficients = self.coefficients if double else self.coefficients_single
        with torch.autocast(weight.device.type, enabled=False):
            entries = along_group(coefficients, weight.flatten(1))
        split = entries.split([block.count * block.dim**2 for block in self.blocks])
        channels = (self.out_features, self.in_features)
        return [
            part.view(block.count, block.dim, block.dim, *channels)  # (ρ, c, b, o, i)
            .transpose(2, 3)
            .reshape(block.count, block.dim * self.out_features, block.dim * self.in_features)
            for part, block in zip(split, self.blocks, strict=True)
        ]

    def multiplications(self) -> dict[str, int]:
        """Return the number of multiplications by weights per token, for each basis.

        The changes of basis, at most |G|² terms per channel, are not counted.
        """
        blocks = {
            "regular": self.group.order**2,
            "irreps": sum(block.multiplications for block in self.blocks),
        }
        return {basis: n * self.in_features * self.out_features for basis, n in blocks.items()}

    def extra_repr(self) -> str:
        return (
            f"{self.group}, {self.in_features}, {self.out_features}"
            f"{', bias=False' if self.bias is None else ''}, basis={self.basis}"
        )


def _sources(group: PlanarGroup, out_features: int) -> Tensor:
    """Return the table [(g, o), m] -> row (g⁻¹m, o) of W, whose rows are (u, o)."""
    first = group.relative()[:, None, :] * out_features
    return (first + torch.arange(out_features)[:, None]).flatten(0, 1)


def _coefficients(group: PlanarGroup) -> Float[Tensor, "entry group"]:
    """Return the table [(ρ, c, b), u] -> ρ(u)[c, b]."""
    return torch.cat([irrep.matrices.flatten(1).T for irrep in irreps(group)])


def in_irreps(linear: nn.Module) -> bool:
    """Return whether this is a `GroupLinear`, not a subclass, in the basis of irreps."""
    return type(linear) is GroupLinear and linear.basis == "irreps"
