"""The views of an image under a group: what it looks like from the frame of each group element.

View h of an image f is h⁻¹f.  Rotating f by g permutes the views, and rotating a map computed from
view h back by h gives a map over f itself:  h φ(h⁻¹ g f) = g (g⁻¹h) φ((g⁻¹h)⁻¹ f).

`OrbitViews` makes one view at a time and is the reference; `ViewSampler` makes all views of a batch
on its device.  A rotation by k/n of a full turn is a fine rotation below the smallest rotation of
the grid, then a rotation of the grid, which only permutes pixels; so of the 16 views of C16 three
are interpolated.  `ViewSampler` uses no tensors of the host, so CUDA graphs can record it, and no
matrix products, which autocast would round: in bfloat16 a position 13 pixels from the centre has a
resolution of 1/16 pixel.
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
    """Makes views one by one: exactly for elements of the grid, interpolated for all others.

    With `mask`, a view shows only the inscribed disc, on the background; otherwise the corners,
    which a rotation by 45° moves out of the image, would reveal the rotation.
    """

    def __init__(self, group: PlanarGroup, mask: bool = False) -> None:
        self.group, self.mask = group, mask
        self.inverse = group.inverse().tolist()  # of every h
        # whether a view may show pixels from outside the image
        self.fills = mask or len(group.grid_elements()) < group.order

    def require_fitting(self, images: Images) -> None:
        """Raise if 90° rotations would change the shape."""
        rows, cols = images.shape[-2:]
        kept = rows == cols or self.group.rotations in (1, 2)
        require(
            kept,
            f"{self.group.name} rotates images of {rows} x {cols} pixels into another shape; give "
            "square images, or use C1, C2, D1 or D2.",
        )

    def view(self, images: Images, h: int, outside: Levels) -> Images:
        """Return h⁻¹f; `outside` are the values of each channel outside the image."""
        back, levels = self.inverse[h], outside[:, None, None]
        if self.group.quarter_rotations(back) is None:
            view = warp_image(self.group, back, images - levels) + levels
        else:
            view = act_on_image(self.group, back, images)
        if not self.mask:
            return view
        return torch.where(disc(*view.shape[-2:]).to(view.device), view, levels)

    def rotate_back(
        self, maps: Float[Tensor, "batch channel row col"], h: int
    ) -> Float[Tensor, "batch channel newrow newcol"]:
        """Return h·m, for a map m computed from view h."""
        return warp_image(self.group, h, maps)


def disc(rows: int, cols: int) -> Bool[Tensor, "{rows} {cols}"]:
    """Return which pixel centres lie in the inscribed disc."""
    return pixel_centres(rows, cols).norm(dim=-1) <= min(rows, cols) / 2


class _Steps(NamedTuple):
    """A flip or none, then a rotation by `fine` steps of the group, then by multiples of 90°."""

    flipped: bool
    fine: int
    quarters: int


class ViewSampler:
    """Makes the views h⁻¹f of a batch, as `OrbitViews.view` does one by one."""

    def __init__(self, group: PlanarGroup, mask: bool = False) -> None:
        self.mask, self.angle = mask, 2 * math.pi / group.rotations
        grid = math.gcd(group.rotations, 4)  # how many rotations the grid shares with the group
        finer = group.rotations // grid
        self.steps: list[_Steps] = []
        for back in group.inverse().tolist():
            coarse, fine = divmod(back % group.rotations, finer)
            self.steps.append(_Steps(group.is_reflection(back), fine, coarse * 4 // grid))

    def views(
        self, images: Images, elements: Sequence[int], outside: Levels
    ) -> Float[Tensor, "views channel row col"]:
        """Return h⁻¹f of the whole batch for each h; the first axis is (element, batch)."""
        levels, made = outside[:, None, None], {}
        inside = _inside_disc(images) if self.mask else None
        views = []
        for h in elements:
            flipped, fine, quarters = self.steps[h]
            if (flipped, fine) not in made:
                view = torch.flip(images, (-1,)) if flipped else images
                if fine:
                    view = _rotate(view - levels, fine * self.angle) + levels
                if inside is not None:
                    view = torch.where(inside, view, levels)
                made[flipped, fine] = view
            views.append(torch.rot90(made[flipped, fine], quarters, (-2, -1)))
        return torch.cat(views)


def _positions(images: Images) -> tuple[Tensor, Tensor]:
    """Return x and y of each pixel, computed on the CPU for devices without float64 (MPS)."""
    device = None if images.device.type == "mps" else images.device
    wide = torch.float64 if images.dtype == torch.float64 else torch.float32
    rows, cols = images.shape[-2:]
    x, y = pixel_centres(rows, cols, device).to(images.device, wide).unbind(-1)
    return x, y


def _rotate(images: Images, angle: float) -> Images:
    """Rotate counter-clockwise by `angle`, bilinear, with zeros outside: (g f)(x) = f(g⁻¹x)."""
    (x, y), (rows, cols) = _positions(images), images.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    from_x, from_y = cos * x + sin * y, cos * y - sin * x
    # grid_sample counts from -1 to 1, y downwards, and needs images in the grid's precision
    grid = torch.stack([from_x * (2 / cols), from_y * (-2 / rows)], dim=-1)
    rotated = F.grid_sample(
        images.to(grid.dtype), grid.expand(images.shape[0], -1, -1, -1),
        mode="bilinear", padding_mode="zeros", align_corners=False,
    )  # fmt: skip
    return rotated.to(images.dtype)


def _inside_disc(images: Images) -> Bool[Tensor, "row col"]:
    """Return which pixel centres lie in the inscribed disc."""
    x, y = _positions(images)
    return x * x + y * y <= (min(images.shape[-2:]) / 2) ** 2
