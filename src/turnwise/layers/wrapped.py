"""Convolutions on a picture without a border: what leaves on one side comes in on the other.

Zeros around a picture tell a network where its border is, and so where the object stands; on a
torus, circular shifts are exact symmetries, and moving an object over blank ground is one of them.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import InputError, require

Maps = Float[Tensor, "batch channel row col"]


class Wrapped(nn.Module):
    """A layer of odd windows that keeps the size, `kernel` wide, as if the maps were periodic.

    The maps are continued by half a window on every side, and what the layer makes of the margin,
    where it padded by itself, is cut off.
    """

    def __init__(self, layer: nn.Module, kernel: int) -> None:
        super().__init__()
        require(
            kernel % 2 == 1, f"kernel = {kernel} must be odd to keep the size; try {kernel + 1}."
        )
        self.layer, self.margin = layer, kernel // 2

    def forward(self, maps: Maps) -> Float[Tensor, "batch newchannel row col"]:
        margin, (rows, cols) = self.margin, maps.shape[2:]
        if margin > min(rows, cols):  # not by `require`: a message is not to be traced
            raise InputError(
                f"windows of {2 * margin + 1} pixels go round maps of {rows} x {cols} more than "
                f"once; use at most {2 * min(rows, cols) + 1}."
            )
        wide = F.pad(maps, (margin,) * 4, mode="circular")
        return self.layer(wide)[..., margin : margin + rows, margin : margin + cols]
