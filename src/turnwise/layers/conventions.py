"""What the published group self-attention did, choice by choice, and what is right.

A `Convention` is handed to the layers; `EXACT` is ours, `GSA_2021` and `GEVIT_2023` reproduce the
published programs, faults included, so that their weights give their outputs.  docs/gsa.md measures
what each fault costs.  A table of relations T is equivariant if and only if
T(Rh, Rg, Rm) = T(h, g, m) for every R in the group.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.geometry.sources import Neighbourhood, turned_offsets
from turnwise.groups import PlanarGroup

Table = Int64[Tensor, "out query key"]
Coordinates = Float[Tensor, "group offset 2"]


def key_seen_from_output(group: PlanarGroup) -> Table:
    """T(h, g, m) = h⁻¹m: the key's pose, seen from the output's."""
    return group.relative()[:, None, :].expand(-1, group.order, -1)


def query_between_output_and_key(group: PlanarGroup) -> Table:
    """T(h, g, m) = h⁻¹g·m⁻¹g: the formula of GE-ViT, by the product table of any group."""
    relative, product = group.relative(), group.product()
    return product[relative[:, :, None], relative.T[None, :, :]]


def logarithmic_steps(
    group: PlanarGroup, neighbourhood: Neighbourhood, rows: int, cols: int
) -> Coordinates:
    """±log₂(1 + |step|) of h⁻¹δ: fine near by, coarse far off, the same in every window.

    Paper:    Liu et al. 2022, "Swin Transformer V2" (log-spaced relative coordinates).
    """
    steps = turned_offsets(group, neighbourhood.offsets(rows, cols))
    return steps.sign() * (1 + steps.abs()).log2()


@dataclass(frozen=True)
class Convention:
    """How a family of layers reads the formulas; the defaults are what is right."""

    table: Callable[[PlanarGroup], Table] = key_seen_from_output
    coordinates: Callable[[PlanarGroup, Neighbourhood, int, int], Coordinates] = logarithmic_steps
    encoder_eps: float = 1e-5  # published: 1e-12, which leaves of an offset only its sign
    random_biases: bool = True  # published: zero, the other half of the same fault
    scale_by_input: bool = False  # published: √(input channels), 1 in the first layer of MNIST
    sums: bool = False  # published: sums over queries and pixels; the first loss is huge
    norm_over_picture: bool = False  # published: one mean and spread for the whole sample
    norm_eps: float = 1e-5
    crop_before: bool = True  # published: attention is computed where it is then cut away
    even_pools: bool = False  # published: 2×2 pools drop the last row and column of odd sizes


EXACT = Convention()
EXACT_GE_VIT = replace(EXACT, table=query_between_output_and_key)
