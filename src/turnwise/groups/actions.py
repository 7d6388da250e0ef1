"""The actions of a group on points, images, and features with a group axis.

Letters:  g is the acting element;  h is the group element of a feature.
An image transforms as (g f)(x) = f(g⁻¹x), a field as (g F)(h, x) = F(g⁻¹h, g⁻¹x), a regular
vector as (g v)(h) = v(g⁻¹h).  All actions of this module permute entries, without rounding.  An
element that does not map pixels to pixels is rejected here and interpolated by `geometry.warps`.
"""

import torch
from jaxtyping import Shaped
from torch import Tensor

from turnwise.errors import InputError, require
from turnwise.groups.finite import GRID_GROUPS, PlanarGroup


def act_on_points(
    group: PlanarGroup | str, g: int, points: Shaped[Tensor, "*many 2"]
) -> Shaped[Tensor, "*many 2"]:
    """Return g·x for points x of the plane; integer points need an element of the pixel grid."""
    group, dtype = PlanarGroup.named(group), points.dtype
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    require(
        not is_integer or (dtype.is_signed and group.quarter_rotations(g) is not None),
        f"element {g} of {group.name} does not map points in {dtype} to such points; "
        "give points.double().",
    )
    return points @ group.matrices()[g].to(points).T


def act_on_image(
    group: PlanarGroup | str, g: int, image: Shaped[Tensor, "*many row col"]
) -> Shaped[Tensor, "*many newrow newcol"]:
    """(g f)(x) = f(g⁻¹x), over the last two axes; a rotation by 90° swaps rows and cols."""
    return _transform_grid(group, g, image, row=-2, col=-1)


def act_on_field(
    group: PlanarGroup | str, g: int, field: Shaped[Tensor, "batch group row col channel"]
) -> Shaped[Tensor, "batch group newrow newcol channel"]:
    """(g F)(h, x) = F(g⁻¹h, g⁻¹x) for fields on the group."""
    return _transform_grid(group, g, act_on_regular(group, g, field), row=-3, col=-2)


def act_on_regular(
    group: PlanarGroup | str, g: int, vector: Shaped[Tensor, "batch group *rest"]
) -> Shaped[Tensor, "batch group *rest"]:
    """(g v)(h) = v(g⁻¹h) for functions on the group."""
    group = PlanarGroup.named(group)
    require(
        vector.shape[1] == group.order,
        f"axis 1 must have {group.order} entries, one for each element of {group.name}, "
        f"got shape {tuple(vector.shape)}.",
    )
    return vector[:, group.product()[group.invert(g)].to(vector.device)]


def leave_fixed(group: PlanarGroup | str, g: int, x: Tensor) -> Tensor:
    """Return x: the action on the output of an invariant function."""
    return x


def _transform_grid(group: PlanarGroup | str, g: int, x: Tensor, row: int, col: int) -> Tensor:
    """Apply r^k s^m to two axes: s reflects x, which runs along the columns; then r rotates."""
    group = PlanarGroup.named(group)
    quarters = group.quarter_rotations(g)
    if quarters is None:
        degrees = 360 * (g % group.rotations) / group.rotations
        raise InputError(
            f"{group.name} does not map pixels to pixels (element {g} rotates by {degrees:g}°); "
            f"use {', '.join(GRID_GROUPS[:-1])} or {GRID_GROUPS[-1]}."
        )
    flipped = torch.flip(x, (col,)) if group.is_reflection(g) else x
    return torch.rot90(flipped, quarters, (row, col))
