"""The irreducible representations of a group, and the basis that block-diagonalises convolutions.

Letters:  g, m, u elements;  ρ an irreducible representation (irrep), ρ(g)ρ(m) = ρ(g·m);
          a, b, c rows and columns of its matrices;  W one number, or one matrix, for each element.

A function x on the group has the coefficients  x̂[ρ, a, b] = √(dim / |G|) Σ_m ρ(m)[a, b] x^m.
The convolution y^g = Σ_m W[g⁻¹m] x^m becomes, with m = g·u and ρ(g·u) = ρ(g)ρ(u),

    ŷ[ρ, a, c] = Σ_b Ŵ[ρ, c, b] x̂[ρ, a, b],    Ŵ[ρ] = Σ_u W[u] ρ(u)

so irreps do not mix, and the rows a of one irrep are copies: the same Ŵ[ρ] multiplies all of them.

Paper:    Serre 1977, "Linear Representations of Finite Groups", §2.4, §5.1, §5.3 and §13.2.
Symbols:  A, B, E as in chemistry.  A and B are 1-D; B changes sign under r.  A1 and B1 are fixed by
          s, A2 and B2 change sign.  E_j is 2-D and rotates j times as fast.
Departs:  all irreps are real.  Two conjugate complex irreps of C_n are one real 2-D irrep.
"""

from dataclasses import dataclass
from functools import cache
from itertools import groupby

import torch
from jaxtyping import Float64
from torch import Tensor

from turnwise.groups.finite import PlanarGroup


@dataclass(frozen=True, eq=False)
class Irrep:
    """One irreducible representation over the real numbers: a matrix for every element.

    `kind` is "complex" for the 2-D irreps of C_n, because the matrices that commute with them form
    the complex numbers; otherwise it is "real", and only multiples of 1 commute.
    """

    name: str
    kind: str
    matrices: Float64[Tensor, "group dim dim"]  # cached and shared: do not modify

    @property
    def dim(self) -> int:
        return self.matrices.shape[-1]

    @property
    def copies(self) -> int:
        """The multiplicity in the regular representation: dim, or dim / 2 of kind "complex"."""
        return self.dim if self.kind == "real" else self.dim // 2


@dataclass(frozen=True)
class EqualBlocks:
    """All irreps of one dimension: consecutive rows of the basis, from `first` on.

    The order of the rows is (irrep, a, b), with `count` irreps, `copies` rows a, `dim` columns b.
    """

    first: int
    count: int
    copies: int
    dim: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count * self.copies * self.dim)

    @property
    def multiplications(self) -> int:
        """The number of multiplications in Ŵ x̂."""
        return self.count * self.copies * self.dim**2


@dataclass(frozen=True, eq=False)
class RegularBasis:
    """The orthogonal matrix from functions on the group to coefficients of irreps, and its blocks.

    The first row is the trivial irrep: 1 / √|G| everywhere.
    """

    matrix: Float64[Tensor, "row group"]  # cached and shared: do not modify
    blocks: tuple[EqualBlocks, ...]


def irreps(group: PlanarGroup | str) -> tuple[Irrep, ...]:
    """Return every real irrep of the group: first the trivial one, then 1-D, then 2-D.

    >>> [irrep.name for irrep in irreps("D4")]
    ['A1', 'A2', 'B1', 'B2', 'E1']
    >>> [(irrep.name, irrep.dim, irrep.kind) for irrep in irreps("C4")]
    [('A', 1, 'real'), ('B', 1, 'real'), ('E1', 2, 'complex')]
    """
    return _irreps(PlanarGroup.named(group))


def regular_basis(group: PlanarGroup | str) -> RegularBasis:
    """Return the basis in which every convolution on the group is block-diagonal.

    >>> [(b.count, b.copies, b.dim) for b in regular_basis("D4").blocks]
    [(4, 1, 1), (1, 2, 2)]
    """
    return _regular_basis(PlanarGroup.named(group))


@cache
def _irreps(group: PlanarGroup) -> tuple[Irrep, ...]:
    # cached, so it must be neither an inference tensor nor on the current default device
    with torch.inference_mode(False), torch.device("cpu"):
        return (*_irreps_1d(group), *_irreps_2d(group))


def _irreps_1d(group: PlanarGroup) -> tuple[Irrep, ...]:
    """Return the homomorphisms into {1, −1}; r can change the sign only if n is even."""
    k, m = group.elements % group.rotations, group.elements // group.rotations
    with_r = {"A": 0 * k} | ({"B": k} if group.rotations % 2 == 0 else {})
    with_s = {"1": 0 * m, "2": m} if group.reflections else {"": 0 * m}
    exponents = {r + s: with_r[r] + with_s[s] for r in with_r for s in with_s}
    return tuple(
        Irrep(name, "real", (1.0 - 2.0 * (exponent % 2)).double().view(-1, 1, 1))
        for name, exponent in exponents.items()
    )


def _irreps_2d(group: PlanarGroup) -> tuple[Irrep, ...]:
    """Return E_j(r^k s^m), the matrix of r^(j·k) s^m; beyond j = n/2 they repeat."""
    n, kind = group.rotations, "real" if group.reflections else "complex"
    k, m = group.elements % n, group.elements // n
    return tuple(
        Irrep(f"E{j}", kind, group.matrices()[j * k % n + n * m]) for j in range(1, (n + 1) // 2)
    )


@cache
def _regular_basis(group: PlanarGroup) -> RegularBasis:
    blocks: list[EqualBlocks] = []
    for (dim, copies), equal in groupby(irreps(group), lambda irrep: (irrep.dim, irrep.copies)):
        first = blocks[-1].rows.stop if blocks else 0
        blocks.append(EqualBlocks(first, len(list(equal)), copies, dim))
    with torch.inference_mode(False):
        matrix = torch.cat([_rows(irrep) for irrep in irreps(group)])
    return RegularBasis(matrix, tuple(blocks))


def _rows(irrep: Irrep) -> Float64[Tensor, "row group"]:
    """Return √(dim / |G|) ρ(m)[a, b] as rows (a, b); of kind "complex" one a is enough."""
    order = len(irrep.matrices)
    coefficients = irrep.matrices[:, : irrep.copies].reshape(order, -1).T
    return coefficients * (irrep.dim / order) ** 0.5
