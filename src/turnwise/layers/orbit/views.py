"""The views of a picture: as it looks from every pose of a group.

View h of a picture f is h⁻¹f.  Turning f by g only reorders the views, and turning the answer to
view h back by h gives a map over f itself:  h φ(h⁻¹ g f) = g (g⁻¹h) φ((g⁻¹h)⁻¹ f).

All views of a picture at once, made where the picture is: the fast version of `orbit_views`.

A turn by k / n of a full one is a fine turn, shorter than the shortest turn of the grid, and then a
turn of the grid, which moves pixels.  So of the sixteen views of C16 three are interpolated, and
the others are their quarter turns.

Every number is an argument of an operation, none a tensor of the host: such a graph can be recorded
by CUDA.  And nothing here is a matrix product, which automatic mixed precision would round: in
bfloat16, a position 13 pixels from the centre is only known to 1/16 of a pixel.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from turnwise.errors import require
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
        if self.group.quarter_rotations(back) is None:
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


class Move(NamedTuple):
    """First mirrored or not, then turned by `fine` steps of the group, then by quarters."""

    mirrored: bool
    fine: int
    quarters: int


class ViewSampler:
    """Makes the views h⁻¹f of a picture f, as `OrbitViews.look` does one by one."""

    def __init__(self, group: PlanarGroup, mask: bool = False) -> None:
        self.mask, self.step = mask, 2 * math.pi / group.rotations
        grid = math.gcd(group.rotations, 4)  # how many rotations the grid shares with the group
        steps = group.rotations // grid
        self.moves: list[Move] = []
        for back in group.inverse().tolist():
            coarse, fine = divmod(back % group.rotations, steps)
            self.moves.append(Move(group.is_reflection(back), fine, coarse * 4 // grid))

    def look(
        self, images: Images, elements: Sequence[int], outside: Levels
    ) -> Float[Tensor, "views channel row col"]:
        """h⁻¹f for each h in turn, of the whole batch: the first axis is (element, batch)."""
        levels, made = outside[:, None, None], {}
        shown = _inside(images) if self.mask else None
        views = []
        for h in elements:
            mirrored, fine, quarters = self.moves[h]
            if (mirrored, fine) not in made:
                view = torch.flip(images, (-1,)) if mirrored else images
                if fine:
                    view = _turn(view - levels, fine * self.step) + levels
                if shown is not None:
                    view = torch.where(shown, view, levels)
                made[mirrored, fine] = view
            views.append(torch.rot90(made[mirrored, fine], quarters, (-2, -1)))
        return torch.cat(views)


def _positions(images: Images) -> tuple[Tensor, Tensor]:
    """x and y of each pixel, made on the device where that knows float64 (Apple's does not)."""
    device = None if images.device.type == "mps" else images.device
    wide = torch.float64 if images.dtype == torch.float64 else torch.float32
    rows, cols = images.shape[-2:]
    x, y = pixel_centres(rows, cols, device).to(images.device, wide).unbind(-1)
    return x, y


def _turn(images: Images, angle: float) -> Images:
    """(g f)(x) = f(g⁻¹x) for the turn g by `angle` counter-clockwise, bilinear, zeros outside."""
    (x, y), (rows, cols) = _positions(images), images.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    from_x, from_y = cos * x + sin * y, cos * y - sin * x
    # grid_sample counts from -1 to 1, and y downwards; it takes pictures in the grid's precision
    grid = torch.stack([from_x * (2 / cols), from_y * (-2 / rows)], dim=-1)
    turned = F.grid_sample(
        images.to(grid.dtype), grid.expand(len(images), -1, -1, -1),
        mode="bilinear", padding_mode="zeros", align_corners=False,
    )  # fmt: skip
    return turned.to(images.dtype)


def _inside(images: Images) -> Bool[Tensor, "row col"]:
    """Which pixel centres lie in the largest disc that fits into the picture."""
    x, y = _positions(images)
    return x * x + y * y <= (min(images.shape[-2:]) / 2) ** 2
