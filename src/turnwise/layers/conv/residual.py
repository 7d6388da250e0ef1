"""Residual blocks of group convolutions, and stems made of them: from an image to the group.

    block   y = relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))
    stem    a lift, then stages of blocks that halve the sides between them

Regular features are (batch, channel, group, row, col), see `geometry.layouts`.
Paper:    He et al. 2016, "Deep Residual Learning for Image Recognition"; Cohen & Welling 2016,
          "Group Equivariant Convolutional Networks".
Departs:  sides are halved by windows of 4 pixels with stride 2, which sample every even side
          symmetrically, where 3 pixels would be off-centre; shortcuts average pixels in pairs.
"""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_positive
from turnwise.geometry.sizes import Stage
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, LiftingConv2d, require_regular
from turnwise.layers.conv.stem import GroupBatchNorm2d, GroupPool2d

Group = PlanarGroup | str
Image = Float[Tensor, "batch channel row col"]
Regular = Float[Tensor, "batch channel group row col"]
NewRegular = Float[Tensor, "batch new_channel group new_row new_col"]

KEEP, HALVE = Stage(3, 1, 1), Stage(4, 2, 1)


class GroupResidualBlock(nn.Module):
    """Two group convolutions with batch norm, and a residual connection around them.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of each group element of the input.
        out_channels: channels of each group element of the output.
        stride: 1 keeps the size; 2 halves even sides.

    Shape:
        - Input: (batch, in_channels, |G|, row, col), regular features.
        - Output: (batch, out_channels, |G|, row / stride, col / stride), regular features.

    >>> import torch
    >>> GroupResidualBlock("D4", 8, 16, stride=2)(torch.randn(2, 8, 8, 12, 12)).shape
    torch.Size([2, 16, 8, 6, 6])
    """

    feature_layout = "regular"

    def __init__(self, group: Group, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        require(stride in (1, 2), f"stride = {stride} must be 1 or 2.")
        self.group = PlanarGroup.named(group)
        step = KEEP if stride == 1 else HALVE
        self.stages = (step, KEEP)
        self.conv_in = GroupConv2d(group, in_channels, out_channels, *step, bias=False)
        self.norm_in = GroupBatchNorm2d(group, out_channels)
        self.conv_out = GroupConv2d(group, out_channels, out_channels, *KEEP, bias=False)
        self.norm_out = GroupBatchNorm2d(group, out_channels)
        self.shortcut = _shortcut(group, in_channels, out_channels, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Regular) -> NewRegular:
        require_regular(x, self.group, self.conv_in.in_channels)
        inner = self.relu(self.norm_in(self.conv_in(x)))
        return self.relu(self.shortcut(x) + self.norm_out(self.conv_out(inner)))

    def extra_repr(self) -> str:
        conv = self.conv_in
        return f"{self.group}, {conv.in_channels}, {conv.out_channels}, stride={conv.stride}"


def _shortcut(group: Group, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    pool = [GroupPool2d(group, 2, "average")] if stride == 2 else []
    point = GroupConv2d(group, in_channels, out_channels, 1, bias=False)
    return nn.Sequential(*pool, point, GroupBatchNorm2d(group, out_channels))


class ResidualStem(nn.Module):
    """From an image to regular features, by stages of residual blocks.

    The sides are divided by `stride` in the lift, and halved between stages.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        in_channels: channels of the image.
        widths: channels of each group element in each stage.
        depth: blocks of each stage.
        stride: of the lift, 1 or an even number.

    Shape:
        - Input: (batch, in_channels, row, col), an image.
        - Output: (batch, widths[-1], |G|, row / s, col / s), s = stride · 2^(stages − 1), regular
          features.

    >>> import torch
    >>> ResidualStem("D4", 3, (4, 8, 16))(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 16, 8, 4, 4])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        widths: tuple[int, ...],
        depth: int = 2,
        stride: int = 1,
    ) -> None:
        super().__init__()
        require(bool(widths), "widths must list one stage or more.")
        require_positive(depth=depth, stride=stride)
        require(stride == 1 or stride % 2 == 0, f"stride = {stride} must be 1 or even.")
        step = KEEP if stride == 1 else Stage(2 * stride, stride, stride // 2)
        self.lift = nn.Sequential(
            LiftingConv2d(group, in_channels, widths[0], *step, bias=False),
            GroupBatchNorm2d(group, widths[0]),
            nn.ReLU(),
        )
        blocks = [GroupResidualBlock(group, widths[0], widths[0]) for _ in range(depth)]
        for old, new in pairwise(widths):
            blocks.append(GroupResidualBlock(group, old, new, stride=2))
            blocks += [GroupResidualBlock(group, new, new) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.stages = (step, *(HALVE for _ in widths[1:]))

    def forward(self, image: Image) -> NewRegular:
        return self.blocks(self.lift(image))
