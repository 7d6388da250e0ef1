"""The finite groups of rotations and reflections of the plane.

Conventions, used everywhere and defined only here:
    x points right, y points up; r rotates by 2π/n counter-clockwise; s reflects x -> -x;
    element k + n·m is r^k s^m, so element 0 is the identity; in a·b, b acts first.
"""

import itertools
import math
import re
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from turnwise.errors import InputError, require, require_kind

LARGEST_ROTATIONS = 64  # beyond it tables grow, and pixels cannot distinguish the elements
GRID_GROUPS = ("C1", "C2", "C4", "D1", "D2", "D4")  # every element maps pixels to pixels


@dataclass(frozen=True)
class PlanarGroup:
    """The group C_n (rotations) or D_n (rotations and reflections), as a hashable value.

    Elements are integers from 0 to order − 1; the tables are tensors indexed by them.

    >>> d4 = PlanarGroup.named("p4m")
    >>> d4.name, d4.order, d4.compose(1, 4), d4.invert(1)
    ('D4', 8, 5, 3)
    """

    rotations: int
    reflections: bool = False

    def __post_init__(self) -> None:
        require(
            1 <= self.rotations <= LARGEST_ROTATIONS,
            f"a group has 1 to {LARGEST_ROTATIONS} rotations, got {self.rotations}.",
        )

    @classmethod
    def named(cls, name: "str | PlanarGroup") -> "PlanarGroup":
        """Return the group of this name, in our notation or that of a paper.

        C4 = p4 = R4 has 4 rotations; D4 = p4m = R4M also has 4 reflections; C1 = z2 has only
        translations; D1 = mz2 has one reflection.  A group is returned unchanged.
        """
        if isinstance(name, PlanarGroup):
            return name
        require_kind(name, str, "a group's name")
        aliases = {"z2": "C1", "mz2": "D1", "Z2": "C1", "Z2M": "D1", "pm": "D1"}
        spelled = aliases.get(name, name)
        for pattern in (r"(?P<D>[CD])(?P<n>[1-9]\d*)", r"[pR](?P<n>[1-9]\d*)(?P<D>[mM]?)"):
            match = re.fullmatch(pattern, spelled)
            if match is not None:
                return cls(int(match["n"]), reflections=match["D"] in ("D", "m", "M"))
        raise InputError(
            f"unknown group {name!r}; write C or D and a number: C1, C4, D4, … "
            "(or as in papers: z2, mz2, p4, p4m, p8, R4, R4M)."
        )

    @property
    def name(self) -> str:
        return f"{'D' if self.reflections else 'C'}{self.rotations}"

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names of this group in papers."""
        m = "m" if self.reflections else ""
        short = (f"{m}z2",) if self.rotations == 1 else ()
        return (*short, f"p{self.rotations}{m}", f"R{self.rotations}{m.upper()}")

    @property
    def order(self) -> int:
        return self.rotations * (2 if self.reflections else 1)

    @property
    def elements(self) -> Int64[Tensor, " group"]:
        return torch.arange(self.order)

    def matrices(self) -> Float64[Tensor, "group 2 2"]:
        """Return each element as an orthogonal matrix acting on (x, y).

        Entries that are 0, ±1/2 or ±1 in exact arithmetic are exact, so rotations by 90° and
        reflections transform integer positions without rounding.
        """
        angle = (self.elements % self.rotations).double() * (2 * math.pi / self.rotations)
        sign = 1.0 - 2.0 * (self.elements // self.rotations)
        cos, sin = _snap(angle.cos()), _snap(angle.sin())
        return torch.stack([cos * sign, -sin, sin * sign, cos], dim=-1).view(-1, 2, 2)

    def product(self) -> Int64[Tensor, "group group"]:
        """Return the table [a, b] -> a·b, computed by multiplying the matrices."""
        return _product_table(self).clone().to(_device_in_use())

    def inverse(self) -> Int64[Tensor, " group"]:
        """Return the table a -> a⁻¹, on the CPU: the position of the identity in each row."""
        return (_product_table(self) == 0).long().argmax(dim=1)

    def relative(self) -> Int64[Tensor, "group group"]:
        """Return the table [g, h] -> g⁻¹·h: the element h relative to g."""
        return _product_table(self)[self.inverse()].to(_device_in_use())

    def compose(self, a: int, b: int) -> int:
        """Return a·b: first b acts, then a."""
        return int(_product_table(self)[a, b])

    def invert(self, a: int) -> int:
        """Return a⁻¹."""
        return int(self.inverse()[a])

    def subgroups(self) -> tuple[frozenset[int], ...]:
        """Return every subgroup as a set of elements, smallest first."""
        return _subgroups(self)

    def quarter_rotations(self, g: int) -> int | None:
        """Return the rotation of g in units of 90°, or None if it does not preserve the grid."""
        self._require_element(g)
        quarters, rest = divmod(4 * (g % self.rotations), self.rotations)
        return quarters if rest == 0 else None

    def is_reflection(self, g: int) -> bool:
        """Return whether g contains the reflection s."""
        self._require_element(g)
        return g >= self.rotations

    def _require_element(self, g: int) -> None:
        require(0 <= g < self.order, f"{self.name} has elements 0 to {self.order - 1}, got {g}.")

    def grid_elements(self) -> tuple[int, ...]:
        """Return the elements that map the pixel grid of a square image to itself."""
        return tuple(g for g in range(self.order) if self.quarter_rotations(g) is not None)

    def exact_subgroup(self) -> "PlanarGroup":
        """Return the subgroup of the elements that map the pixel grid to itself."""
        return PlanarGroup(math.gcd(self.rotations, 4), self.reflections)

    def __str__(self) -> str:
        return self.name


def _snap(values: Float64[Tensor, " *shape"]) -> Float64[Tensor, " *shape"]:
    """Round values to the multiple of 1/2 from which they differ by rounding error."""
    nearest = (2 * values).round() / 2
    return torch.where((values - nearest).abs() < 1e-12, nearest, values)


def _device_in_use() -> torch.device:
    """Return torch's default device: the CPU, or that of `with torch.device(…)`."""
    return torch.empty(0).device


@cache
def _product_table(group: PlanarGroup) -> Int64[Tensor, "group group"]:
    # cached, so it must be neither an inference tensor nor on the current default device
    with torch.inference_mode(False), torch.device("cpu"):
        matrices = group.matrices()
        products = matrices[:, None] @ matrices[None, :]  # (a, b, 2, 2)
        distance = (products[:, :, None] - matrices).abs().amax(dim=(-2, -1))
        error, table = distance.min(dim=-1)
    assert error.max() < 1e-9, "the matrices are not closed under multiplication"
    return table


@cache
def _subgroups(group: PlanarGroup) -> tuple[frozenset[int], ...]:
    # any subgroup of a cyclic or dihedral group has two generators
    pairs = itertools.combinations_with_replacement(range(group.order), 2)
    found = {_generated(group, pair) for pair in pairs}
    return tuple(sorted(found, key=lambda members: (len(members), sorted(members))))


def _generated(group: PlanarGroup, generators: tuple[int, ...]) -> frozenset[int]:
    table = _product_table(group).tolist()
    members, fresh = {0}, {0}
    while fresh:
        fresh = {table[a][b] for a in fresh for b in generators} - members
        members |= fresh
    return frozenset(members)


def require_grid_group(group: PlanarGroup) -> None:
    """Raise unless every element of the group maps pixels to pixels."""
    require(
        len(group.grid_elements()) == group.order,
        f"{group.name} does not map pixels to pixels; use {', '.join(GRID_GROUPS[:-1])} "
        f"or {GRID_GROUPS[-1]}.",
    )
