"""The views of a picture: as it looks from every pose of a group.

View h of a picture f is h⁻¹f.  Turning f by g only reorders the views, and turning the answer to
view h back by h gives a map over f itself:  h φ(h⁻¹ g f) = g (g⁻¹h) φ((g⁻¹h)⁻¹ f).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from turnwise.checks import require
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import warp_image
from turnwise.groups import PlanarGroup, act_on_image

Images = Float[Tensor, "batch channel row col"]
Levels = Float[Tensor, " channel"]


class OrbitViews:
    """How the views are made: exactly for elements of the grid, interpolated for all others.

    With `mask`, a view shows the disc that fits into the picture and its background around it: the
    corners, which a turn by 45° moves out of the picture, then tell nothing about the turn.
    """

    def __init__(self, group: PlanarGroup, mask: bool = False) -> None:
        self.group, self.mask = group, mask
        self.inverse = group.inverse().tolist()  # of every h
        # whether a view may show what lies outside the picture
        self.fills = mask or len(group.grid_elements()) < group.order

    def require_fitting(self, images: Images) -> None:
        """Raise where quarter turns would change the shape."""
        rows, cols = images.shape[-2:]
        kept = rows == cols or self.group.rotations in (1, 2)
        require(
            kept,
            f"{self.group.name} turns pictures of {rows} x {cols} pixels into another shape; give "
            "square pictures, or use C1, C2, D1 or D2.",
        )

    def look(self, images: Images, h: int, outside: Levels) -> Images:
        """h⁻¹f; `outside` are the levels of each channel where there is no picture."""
        back, levels = self.inverse[h], outside[:, None, None]
        if self.group.quarter_turns(back) is None:
            view = warp_image(self.group, back, images - levels) + levels
        else:
            view = act_on_image(self.group, back, images)
        if not self.mask:
            return view
        return torch.where(disc(*view.shape[-2:]).to(view.device), view, levels)

    def turn_back(
        self, maps: Float[Tensor, "batch channel row col"], h: int
    ) -> Float[Tensor, "batch channel newrow newcol"]:
        """h·m, for a map m that was found on view h."""
        return warp_image(self.group, h, maps)


def disc(rows: int, cols: int) -> Bool[Tensor, "{rows} {cols}"]:
    """Which pixel centres lie in the largest disc that fits into the picture."""
    return pixel_centres(rows, cols).norm(dim=-1) <= min(rows, cols) / 2
