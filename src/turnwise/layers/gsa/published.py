"""What the published group self-attention computes, choice by choice, and what is right.

A `Convention` is passed to the layers.  `EXACT` is ours; `GSA_2021` and `GEVIT_2023` reproduce the
published programs, faults included, so that their weights give their outputs.  docs/papers/gsa.md
measures the cost of each fault.  A table of relations T is equivariant if and only if
T(Rh, Rg, Rm) = T(h, g, m) for every R in the group.

Letters:  v, g, m number the elements as the published programs do; h numbers them as we do.  They
          encode M_v δ, we encode h⁻¹δ, so their v is our h where M_v = h⁻¹.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from turnwise.geometry.grids import offset_to_steps
from turnwise.geometry.neighbourhoods import Neighbourhood, rotated_offsets
from turnwise.groups import PlanarGroup

Table = Int64[Tensor, "out query key"]
Coordinates = Float[Tensor, "group offset 2"]


def key_seen_from_output(group: PlanarGroup) -> Table:
    """Return T(h, g, m) = h⁻¹m, the orientation of the key relative to that of the output."""
    return group.relative()[:, None, :].expand(-1, group.order, -1)


def query_between_output_and_key(group: PlanarGroup) -> Table:
    """Return T(h, g, m) = h⁻¹g·m⁻¹g, the formula of GE-ViT for any group."""
    relative, product = group.relative(), group.product()
    return product[relative[:, :, None], relative.T[None, :, :]]


def logarithmic_steps(
    group: PlanarGroup, neighbourhood: Neighbourhood, rows: int, cols: int
) -> Coordinates:
    """Return ±log₂(1 + |step|) of h⁻¹δ: fine at small offsets, independent of the window.

    Paper:    Liu et al. 2022, "Swin Transformer V2" (log-spaced relative coordinates).
    """
    steps = rotated_offsets(group, neighbourhood.offsets(rows, cols))
    return steps.sign() * (1 + steps.abs()).log2()


@dataclass(frozen=True)
class Convention:
    """How a family of layers implements the formulas; the defaults are right."""

    table: Callable[[PlanarGroup], Table] = key_seen_from_output
    coordinates: Callable[[PlanarGroup, Neighbourhood, int, int], Coordinates] = logarithmic_steps
    encoder_eps: float = 1e-5  # published: 1e-12, which keeps only the sign of an offset
    random_biases: bool = True  # published: zero, part of the same fault
    scale_by_input: bool = False  # published: √(input channels), 1 in the first layer of MNIST
    sums: bool = False  # published: sums over queries and pixels; the first loss is huge
    norm_over_image: bool = False  # published: one mean and variance for the sample
    norm_eps: float = 1e-5
    crop_before: bool = True  # published: attention is computed, then cropped
    even_pools: bool = False  # published: 2×2 pools drop the last row and column of odd sizes


EXACT = Convention()
EXACT_GE_VIT = replace(EXACT, table=query_between_output_and_key)

Matrices = Float64[Tensor, "group 2 2"]


def matrices_of_2021(group: PlanarGroup) -> Matrices:
    """Return M_(θ,±) of GSA-Nets on (row, col): reflect the column, then rotate by θ."""
    rotations, signs = _rotations_and_signs(group)
    return rotations @ torch.diag_embed(torch.stack([torch.ones_like(signs), signs], dim=-1))


def matrices_of_2023(group: PlanarGroup) -> Matrices:
    """Return M_(θ,±) of GE-ViT on (row, col): rotate by −θ, then reflect the column."""
    rotations, signs = _rotations_and_signs(group)
    return torch.diag_embed(torch.stack([torch.ones_like(signs), signs], dim=-1)) @ rotations.mT


def _rotations_and_signs(group: PlanarGroup) -> tuple[Matrices, Float64[Tensor, " group"]]:
    angle = (group.elements % group.rotations).double() * (2 * math.pi / group.rotations)
    cos, sin = angle.cos(), angle.sin()
    rotations = torch.stack([cos, -sin, sin, cos], dim=-1).view(-1, 2, 2)
    return rotations, 1.0 - 2.0 * (group.elements // group.rotations).double()


def their_numbers(group: PlanarGroup, matrices: Matrices) -> Int64[Tensor, " group"]:
    """Return for each of our elements h the number v with M_v = h⁻¹."""
    rows_and_cols = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)  # (x, y) -> steps
    ours = rows_and_cols @ group.matrices().mT @ rows_and_cols.T
    distance = (ours[:, None] - matrices[None]).abs().amax(dim=(-2, -1))
    return distance.argmin(dim=1)


def _in_our_order(group: PlanarGroup, matrices: Matrices, table: Table) -> Table:
    numbers = their_numbers(group, matrices)
    return table[numbers][:, numbers][:, :, numbers]


def table_of_2021(group: PlanarGroup) -> Table:
    """Return the table of GSA-Nets, m + v − g for rotations; it is wrong for every group."""
    v, g, m = torch.meshgrid(group.elements, group.elements, group.elements, indexing="ij")
    table = (m + v - g) % group.order
    if group.reflections:
        table = _reflected_relation(group, _acted_on(group, v, g), m)
    return _in_our_order(group, matrices_of_2021(group), table)


def _acted_on(group: PlanarGroup, v: Tensor, g: Tensor) -> Tensor:
    """Let v act on g: a reflection swaps the halves, then they rotate in opposite senses."""
    n = group.rotations
    swapped = (g + n * (v // n)) % group.order
    rotation = (g % n + torch.where(swapped < n, v % n, -(v % n))) % n
    return rotation + n * (swapped // n)


def _reflected_relation(group: PlanarGroup, g: Tensor, m: Tensor) -> Tensor:
    """Return m relative to g = (k, ±): (a − k, +) or (a + k, −), from the other half if −."""
    n = group.rotations
    m = (m + n * (g // n)) % group.order
    rotation = (m % n - torch.where(m < n, g % n, -(g % n))) % n
    return rotation + n * (m // n)


def table_of_2023(group: PlanarGroup) -> Table:
    """Return the table of GE-ViT: right for rotations and for one reflection, else wrong."""
    v, g, m = torch.meshgrid(group.elements, group.elements, group.elements, indexing="ij")
    table = (2 * g - m - v) % group.order
    if group.reflections:
        table = (m + v) % 2 if group.order == 2 else _reflected_values(group, v, g, m)
    return _in_our_order(group, matrices_of_2023(group), table)


def _reflected_values(group: PlanarGroup, v: Tensor, g: Tensor, m: Tensor) -> Tensor:
    """As in 2021, but every reflection adds |G|/2 to the value instead of swapping halves."""
    n = group.rotations
    row = (g % n + torch.where(g < n, v % n, -(v % n))) % n + n * (g // n)
    rotation = (m % n - torch.where(m < n, row % n, -(row % n))) % n
    return (rotation + n * (m // n) + n * (row // n) + n * (v // n)) % group.order


def coordinates_of_2021(
    group: PlanarGroup, neighbourhood: Neighbourhood, rows: int, cols: int
) -> Coordinates:
    """Return h⁻¹δ as GSA-Nets computes it: reflect the columns of the window, then rotate."""
    number, reach = _numbered_steps(neighbourhood, rows, cols)
    rotations, signs = _rotations_and_signs(group)
    col = torch.where(signs[:, None] > 0, number[:, 1], 2 * reach - number[:, 1])
    row = number[:, 0].expand_as(col)
    rotated = _rotated(rotations, _half_windows(row, reach), _half_windows(col, reach))
    return rotated[their_numbers(group, matrices_of_2021(group))]


def coordinates_of_2023(
    group: PlanarGroup, neighbourhood: Neighbourhood, rows: int, cols: int
) -> Coordinates:
    """Return h⁻¹δ as GE-ViT computes it: rotate the window back, then negate the columns."""
    number, reach = _numbered_steps(neighbourhood, rows, cols)
    rotations, signs = _rotations_and_signs(group)
    row, col = (_half_windows(number[:, axis], reach).expand(group.order, -1) for axis in (0, 1))
    rotated = _rotated(rotations.mT, row, col)
    rotated[..., 1] *= signs[:, None].float()
    return rotated[their_numbers(group, matrices_of_2023(group))]


def _numbered_steps(
    neighbourhood: Neighbourhood, rows: int, cols: int
) -> tuple[Int64[Tensor, "offset 2"], int]:
    """Return the steps (row, col) from the upper left of the window, and half its side."""
    reach = max(1, neighbourhood.reach(rows, cols))
    return offset_to_steps(neighbourhood.offsets(rows, cols)) + reach, reach


def _half_windows(number: Int64[Tensor, "*many"], reach: int) -> Float32[Tensor, "*many"]:
    """Scale to −1 … 1 in float32, as published, where −u and u differ in the last digit.

    The difference matters: at 45° a 0 on the diagonal may become 6e-8, and the encoder's norm with
    its epsilon of 1e-12 amplifies it to order 1.
    """
    return number.float() / reach - 1


def _rotated(
    rotations: Matrices, row: Float32[Tensor, "group offset"], col: Float32[Tensor, "group offset"]
) -> Coordinates:
    """Rotate the coordinates of each element, product by product in float32."""
    entry = rotations.float()[:, None]  # (group, 1, 2, 2)
    return entry[..., 0] * row[..., None] + entry[..., 1] * col[..., None]


GSA_2021 = Convention(
    table=table_of_2021,
    coordinates=coordinates_of_2021,
    encoder_eps=1e-12,
    random_biases=False,
    scale_by_input=True,
    sums=True,
    norm_over_image=True,
    norm_eps=1e-12,
    crop_before=False,
    even_pools=True,
)
GEVIT_2023 = Convention(
    **{**vars(GSA_2021), "table": table_of_2023, "coordinates": coordinates_of_2023}
)
