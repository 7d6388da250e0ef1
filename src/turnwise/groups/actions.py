"""How a group element moves things: points, pictures, and fields on the group.

Letters:  g acts;  h is the element a feature carries.
A picture transforms as (g f)(x) = f(g⁻¹x), a field as (g F)(h, x) = F(g⁻¹h, g⁻¹x), a regular
vector as (g v)(h) = v(g⁻¹h).  All actions of this file permute entries and round nothing; an
element that does not map pixels to pixels is refused here and interpolated in `geometry.warps`.
"""

import torch
from jaxtyping import Shaped
from torch import Tensor

from turnwise.errors import InputError, require
from turnwise.groups.finite import GRID_GROUPS, PlanarGroup


def act_on_points(
    group: PlanarGroup | str, g: int, points: Shaped[Tensor, "*many 2"]
) -> Shaped[Tensor, "*many 2"]:
    """g·x for points x in the plane; in whole numbers if g is a quarter turn or a mirror of one."""
    group, kind = PlanarGroup.named(group), points.dtype
    whole = not (kind.is_floating_point or kind.is_complex)
    require(
        not whole or (kind.is_signed and group.quarter_rotations(g) is not None),
        f"element {g} of {group.name} does not map points in {kind} to such points; "
        "give points.double().",
    )
    return points @ group.matrices()[g].to(points).T


def act_on_image(
    group: PlanarGroup | str, g: int, image: Shaped[Tensor, "*many row col"]
) -> Shaped[Tensor, "*many newrow newcol"]:
    """(g f)(x) = f(g⁻¹x), over the last two axes; a quarter turn swaps rows and cols."""
    return _move_grid(group, g, image, row=-2, col=-1)


def act_on_field(
    group: PlanarGroup | str, g: int, field: Shaped[Tensor, "batch group row col channel"]
) -> Shaped[Tensor, "batch group newrow newcol channel"]:
    """(g F)(h, x) = F(g⁻¹h, g⁻¹x) for fields on the group."""
    return _move_grid(group, g, act_on_regular(group, g, field), row=-3, col=-2)


def act_on_regular(
    group: PlanarGroup | str, g: int, vector: Shaped[Tensor, "batch group *rest"]
) -> Shaped[Tensor, "batch group *rest"]:
    """(g v)(h) = v(g⁻¹h) for functions on the group alone."""
    group = PlanarGroup.named(group)
    require(
        vector.shape[1] == group.order,
        f"axis 1 must have {group.order} entries, one for each element of {group.name}, "
        f"got shape {tuple(vector.shape)}.",
    )
    return vector[:, group.product()[group.invert(g)].to(vector.device)]


def leave_fixed(group: PlanarGroup | str, g: int, x: Tensor) -> Tensor:
    """The action on the output of an invariant function."""
    return x


def _move_grid(group: PlanarGroup | str, g: int, x: Tensor, row: int, col: int) -> Tensor:
    """r^k s^m on two axes: s mirrors x, which runs along the columns; then r turns."""
    group = PlanarGroup.named(group)
    quarters = group.quarter_rotations(g)
    if quarters is None:
        degrees = 360 * (g % group.rotations) / group.rotations
        raise InputError(
            f"{group.name} does not map pixels to pixels (element {g} turns by {degrees:g}°); "
            f"use {', '.join(GRID_GROUPS[:-1])} or {GRID_GROUPS[-1]}."
        )
    mirrored = torch.flip(x, (col,)) if group.is_reflection(g) else x
    return torch.rot90(mirrored, quarters, (row, col))
