"""The pixels of a square window, in the basis in which all turns of the window share their work.

A filter w answers to the window x, turned by g, with  y_g = ⟨w, g·x⟩  over the k² taps.  The group
permutes the taps; in a basis of irreps (ρ, copy j, row b) of that permutation,

    y_g = Σ_ρ Σ_ab ρ(g)[a, b] P[ρ, a, b],    P[ρ, a, b] = Σ_j ŵ[ρ, j, a] x̂[ρ, j, b]

so |G| answers cost dim² products of length `copies` for each irrep: 1.5 k² multiplications for C4
and D4 instead of 4 k² and 8 k², and k² for the groups whose irreps are all numbers.

Paper:    Serre 1977, "Linear Representations of Finite Groups", §2.7 (projections on copies).
Departs:  rows are left unnormalised, as 0 and ±1: exact in every precision.  What they lack is in
          the rows for the filter, divided by how many taps they see, a power of two.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from turnwise.errors import require_positive
from turnwise.groups import PlanarGroup, act_on_image, require_grid_group
from turnwise.groups.representations import Irrep, irreps

SMALLEST = 1e-9  # of what is left of a row: below it the row is a combination of earlier ones


@dataclass(frozen=True, eq=False)
class WindowBasis:
    """Tables that are shared by all who ask: not to be written to.

    `blocks` are (dim, copies), one for each irrep that the window contains, the trivial one first;
    the rows of a block are (b, j), and its products in `answers` are (a, b).
    """

    for_window: Float64[Tensor, "tap tap"]  # x̂ = for_window · x
    for_filter: Float64[Tensor, "tap tap"]  # ŵ = for_filter · w
    answers: Float64[Tensor, "group product"]  # y = answers · P
    blocks: tuple[tuple[int, int], ...]

    @property
    def multiplications(self) -> int:
        """For all answers to one window, where the plain convolution has k²."""
        return sum(dim**2 * copies for dim, copies in self.blocks)


def window_basis(group: PlanarGroup | str, kernel: int) -> WindowBasis:
    """The basis for windows of kernel × kernel taps, under a group of the grid.

    >>> window_basis("D4", 4).blocks, window_basis("D4", 4).multiplications / 16
    (((1, 3), (1, 1), (1, 1), (1, 3), (2, 4)), 1.5)
    """
    group = PlanarGroup.named(group)
    require_positive(kernel=kernel)
    require_grid_group(group)
    return _window_basis(group, kernel)


@cache
def _window_basis(group: PlanarGroup, kernel: int) -> WindowBasis:
    # kept for later: neither for inference alone, nor on the device that happens to be in use
    with torch.inference_mode(False), torch.device("cpu"):
        taps = torch.eye(kernel**2, dtype=torch.float64).unflatten(1, (kernel, kernel))
        moved = torch.stack([act_on_image(group, g, taps) for g in range(group.order)])
        found = [(irrep, _rows(irrep, moved.flatten(2).mT)) for irrep in irreps(group)]
        present = [(irrep, rows) for irrep, rows in found if rows.numel()]
        rows = torch.cat([rows.flatten(0, 1) for _, rows in present])
        return WindowBasis(
            for_window=rows,
            for_filter=rows / rows.square().sum(dim=1, keepdim=True),
            answers=torch.cat([irrep.matrices.flatten(1) for irrep, _ in present], dim=1),
            blocks=tuple((irrep.dim, rows.shape[1]) for irrep, rows in present),
        )


def _rows(
    irrep: Irrep, moves: Float64[Tensor, "group tap tap"]
) -> Float64[Tensor, "dim copies tap"]:
    """Vectors v_b, one set for each copy, with  g·v_b = Σ_a ρ(g)[a, b] v_a.

    E_b = dim/|G| Σ_g ρ(g)[b, 0] g  makes v_b of any v_0 in the image of E_0.
    """
    weight = irrep.matrices[:, :, 0] * (irrep.dim / len(moves))
    project = torch.einsum("gb,gxy->bxy", weight, moves)
    copies, seen = list[Tensor](), moves.new_zeros(0, moves.shape[-1])
    for candidate in project[0].T:
        rest = candidate - seen.T @ (seen @ candidate)
        if rest.norm() > SMALLEST:
            copy = project @ (rest / rest.norm())  # (b, tap)
            seen = torch.cat([seen, copy])
            copies.append((copy / copy.abs().max()).round())
    return torch.stack(copies, dim=1) if copies else moves.new_zeros(irrep.dim, 0, moves.shape[-1])


def mix(
    matrix: Float[Tensor, "new old"], values: Float[Tensor, "old many more"]
) -> Float[Tensor, "new many more"]:
    """One product for all that hangs on the first axis."""
    return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])


def multiply_block(
    windows: Float[Tensor, "rows window in_width"],
    weight: Float[Tensor, "rows in_width width"],
    dim: int,
    copies: int,
) -> list[Float[Tensor, "dim window width"]]:
    """P[a, b] = Σ_j ŵ[j, a] x̂[j, b] over the channels, too; one matrix product for each a."""
    count = windows.shape[1]
    x = windows.unflatten(0, (dim, copies)).transpose(1, 2).flatten(2).flatten(0, 1)  # (b·window,)
    w = weight.unflatten(0, (dim, copies)).flatten(1, 2)  # (a, j·i, o)
    return [(x @ w[a]).unflatten(0, (dim, count)) for a in range(dim)]
