"""The irreducible representations of a group, and the basis in which its convolutions fall apart.

Letters:  g, m, u elements;  ρ an irreducible representation (irrep), ρ(g)ρ(m) = ρ(g·m);
          a, b, c rows and columns of its matrices;  W one number, or one matrix, for each element.

A function x on the group has the coefficients  x̂[ρ, a, b] = √(dim / |G|) Σ_m ρ(m)[a, b] x^m.
The convolution y^g = Σ_m W[g⁻¹m] x^m becomes, with m = g·u and ρ(g·u) = ρ(g)ρ(u),

    ŷ[ρ, a, c] = Σ_b Ŵ[ρ, c, b] x̂[ρ, a, b],    Ŵ[ρ] = Σ_u W[u] ρ(u)

so no two irreps mix, and the rows a of one irrep are copies of each other: all meet the same Ŵ[ρ].

Paper:    Serre 1977, "Linear Representations of Finite Groups", §2.4, §5.1, §5.3 and §13.2.
Symbols:  A, B, E as in chemistry: A and B are numbers, B changes sign with the turn r; E are
          planes.  A1, B1 keep, A2, B2 change their sign with the mirror s; E2 turns twice as fast.
Departs:  all is real.  Two complex irreps of C_n that are conjugate are one real plane.
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

    It is of kind "complex" where the plane turns but does not mirror (C_n): then what commutes
    with it is a plane of complex numbers, otherwise the multiples of 1.
    """

    name: str
    kind: str
    matrices: Float64[Tensor, "group dim dim"]  # shared by all who ask: not to be written to

    @property
    def dim(self) -> int:
        return self.matrices.shape[-1]

    @property
    def copies(self) -> int:
        """How often the functions on the group contain it: dim, or dim / 2 of kind complex."""
        return self.dim if self.kind == "real" else self.dim // 2


@dataclass(frozen=True)
class EqualBlocks:
    """All irreps of one size, side by side in the basis, from the row `first` on.

    Its rows are, in this order, (irrep, a, b): `count` irreps, `copies` rows a, `dim` columns b.
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
        """How many entries of Ŵ, counted with their copies, meet an entry of x̂."""
        return self.count * self.copies * self.dim**2


@dataclass(frozen=True, eq=False)
class RegularBasis:
    """An orthogonal matrix whose rows are coefficients of irreps, and where the blocks lie in it.

    The first row is the trivial irrep: 1 / √|G| everywhere.
    """

    matrix: Float64[Tensor, "row group"]  # shared by all who ask: not to be written to
    blocks: tuple[EqualBlocks, ...]


def irreps(group: PlanarGroup | str) -> tuple[Irrep, ...]:
    """Every real irrep of the group once; numbers first, the trivial one before all.

    >>> [irrep.name for irrep in irreps("D4")]
    ['A1', 'A2', 'B1', 'B2', 'E1']
    >>> [(irrep.name, irrep.dim, irrep.kind) for irrep in irreps("C4")]
    [('A', 1, 'real'), ('B', 1, 'real'), ('E1', 2, 'complex')]
    """
    return _irreps(PlanarGroup.named(group))


def regular_basis(group: PlanarGroup | str) -> RegularBasis:
    """The basis of the functions on the group in which every convolution is block-diagonal.

    >>> [(b.count, b.copies, b.dim) for b in regular_basis("D4").blocks]
    [(4, 1, 1), (1, 2, 2)]
    """
    return _regular_basis(PlanarGroup.named(group))


@cache
def _irreps(group: PlanarGroup) -> tuple[Irrep, ...]:
    # kept for later: neither for inference alone, nor on the device that happens to be in use
    with torch.inference_mode(False), torch.device("cpu"):
        return (*_numbers(group), *_planes(group))


def _numbers(group: PlanarGroup) -> tuple[Irrep, ...]:
    """The homomorphisms into {1, −1}: r may change the sign if n is even, and so may s."""
    turn, mirror = group.elements % group.rotations, group.elements // group.rotations
    with_r = {"A": 0 * turn} | ({"B": turn} if group.rotations % 2 == 0 else {})
    with_s = {"1": 0 * mirror, "2": mirror} if group.reflections else {"": 0 * mirror}
    exponents = {r + s: with_r[r] + with_s[s] for r in with_r for s in with_s}
    return tuple(
        Irrep(name, "real", (1.0 - 2.0 * (exponent % 2)).double().view(-1, 1, 1))
        for name, exponent in exponents.items()
    )


def _planes(group: PlanarGroup) -> tuple[Irrep, ...]:
    """E_j(r^k s^m) is the matrix of r^(j·k) s^m; with j beyond n/2 the planes come back."""
    turn, mirror = group.elements % group.rotations, group.elements // group.rotations
    kind = "real" if group.reflections else "complex"
    return tuple(
        Irrep(
            f"E{j}",
            kind,
            group.matrices()[j * turn % group.rotations + group.rotations * mirror],
        )
        for j in range(1, (group.rotations + 1) // 2)
    )


@cache
def _regular_basis(group: PlanarGroup) -> RegularBasis:
    blocks: list[EqualBlocks] = []
    for (dim, copies), alike in groupby(irreps(group), lambda irrep: (irrep.dim, irrep.copies)):
        first = blocks[-1].rows.stop if blocks else 0
        blocks.append(EqualBlocks(first, len(list(alike)), copies, dim))
    with torch.inference_mode(False):
        matrix = torch.cat([_rows(irrep) for irrep in irreps(group)])
    return RegularBasis(matrix, tuple(blocks))


def _rows(irrep: Irrep) -> Float64[Tensor, "row group"]:
    """√(dim / |G|) ρ(m)[a, b] as rows (a, b); of kind complex one a spans what both do."""
    order = len(irrep.matrices)
    coefficients = irrep.matrices[:, : irrep.copies].reshape(order, -1).T
    return coefficients * (irrep.dim / order) ** 0.5
