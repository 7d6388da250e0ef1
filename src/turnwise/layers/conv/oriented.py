"""Between maps that keep their poses and maps that do not: the ends of a group convolution.

Maps are oriented where they have a channel for each pose g, stored as in `layers.group_conv`; a
turn of the picture turns them and renames the poses.  Maps without poses only turn.

    lift   y(g, o, p) = b[o] + Σ_i Σ_δ K[o, i](g⁻¹δ) f(i, p + δ)                     LiftingConv
    keep   y(g, o, p) = b[o] + Σ_{m, i} Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ)       GroupConv
    fold   y(o, p)    = max_g of the same                                 GroupConv, PoseMaximum

To lift and fold at once is RotoConv, which forgets at every pixel which pose answered.  Kept for a
stage, poses tell the next convolution how neighbours are turned against each other.

Letters:  g, m poses of output and input;  o, i their channels;  p a pixel, δ a step from it.
Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks".
"""

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_divisible
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv, LiftingConv

Group = PlanarGroup | str


class PoseMaximum(nn.Module):
    """y(o, p) = max_g f(g, o, p): what renaming the poses cannot change."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.poses = PlanarGroup.named(group).order

    def forward(
        self, maps: Float[Tensor, "batch pose_channel row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        # not amax: its gradient compares with the maximum, which a compiled graph may compute again
        # in another precision, and 0 / 0 is not a number
        return maps.unflatten(1, (self.poses, -1)).max(dim=1).values

    def extra_repr(self) -> str:
        return f"poses={self.poses}"


def width_of_pose(group: Group, width: int) -> int:
    """The channels that each pose has of `width` in all."""
    poses = PlanarGroup.named(group).order
    require_divisible(width, poses, "width", f"oriented maps split it over {poses} poses")
    return width // poses


def oriented_conv(
    group: Group,
    in_width: int,
    width: int,
    stage: Stage,
    oriented: tuple[bool, bool],
    *,
    bias: bool = True,
) -> nn.Module:
    """A convolution whose old maps, new maps or both are oriented; widths count all poses.

    It has |G| times fewer weights than the plain one where the new maps are oriented, else as many.
    """
    old, new = oriented
    require(old or new, "neither the old maps nor the new ones are oriented; use a RotoConv.")
    layer = GroupConv if old else LiftingConv
    conv = layer(
        group,
        width_of_pose(group, in_width) if old else in_width,
        width_of_pose(group, width) if new else width,
        stage.kernel,
        stride=stage.stride,
        padding=stage.padding,
        bias=bias,
    )
    return conv if new else nn.Sequential(conv, PoseMaximum(group))
