"""Upsampling of regular features, and joining them along their channels."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require_known
from turnwise.geometry.layouts import maps_to_regular, regular_to_maps
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import require_regular

Regular = Float[Tensor, "batch channel group row col"]
UPSAMPLING = ("nearest", "bilinear")


class GroupUpsample2d(nn.Module):
    """Double the sides, on the centred grid: exact for every size under every group of the grid.

    Each pixel becomes the 2 × 2 pixels that it covers ("nearest"), or the new pixels are
    interpolated at their centres, a quarter of an old pixel from the old ones ("bilinear").

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        mode: "nearest" or "bilinear".

    Shape:
        - Input: (batch, channel, |G|, row, col), regular features.
        - Output: (batch, channel, |G|, 2 · row, 2 · col), regular features.

    >>> GroupUpsample2d("D4")(torch.randn(2, 16, 8, 7, 7)).shape
    torch.Size([2, 16, 8, 14, 14])
    """

    def __init__(self, group: PlanarGroup | str, mode: str = "nearest") -> None:
        super().__init__()
        require_known(mode, UPSAMPLING, "upsampling")
        self.group, self.mode = PlanarGroup.named(group), mode

    def forward(self, x: Regular) -> Float[Tensor, "batch channel group newrow newcol"]:
        require_regular(x, self.group, x.shape[1])
        centred = None if self.mode == "nearest" else False
        maps = F.interpolate(
            regular_to_maps(x), scale_factor=2, mode=self.mode, align_corners=centred
        )
        return maps_to_regular(maps, self.group.order)

    def extra_repr(self) -> str:
        return f"{self.group}, mode={self.mode}"


def join_channels(
    parts: Sequence[Float[Tensor, "batch _channels group row col"]],
) -> Regular:
    """Join regular features along their channels; the maps of the result keep their memory format.

    `torch.cat` alone would lay out the result by channel, and the next convolution would copy it.
    """
    if all(regular_to_maps(x).is_contiguous() for x in parts):
        return torch.cat([x.transpose(1, 2) for x in parts], dim=2).transpose(1, 2)
    wide = torch.cat([x.permute(0, 3, 4, 2, 1) for x in parts], dim=-1)
    return wide.permute(0, 4, 3, 1, 2)
