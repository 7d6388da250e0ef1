"""Moving pictures by anything: angles off the grid, mirrors, scales, shifts.

Quarter turns and mirrors stay exact permutations of pixels; everything else is sampled bilinearly
about the centre, with zeros from outside the picture, and is therefore measured, never claimed.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.geometry.grids import pixel_centres, to_sampling_grid
from turnwise.groups import PlanarGroup, act_on_image

Pictures = Float[Tensor, "batch channel row col"]


def rotate_image(images: Pictures, degrees: float) -> Float[Tensor, "batch channel newrow newcol"]:
    """Turn all pictures counter-clockwise by one angle; quarter turns are exact."""
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        return act_on_image(PlanarGroup.named("C4"), int(quarters) % 4, images)
    fine = torch.promote_types(images.dtype, torch.float32)
    angle = images.new_full((len(images),), math.radians(degrees), dtype=fine)
    return warp_images(images, rotation_matrices(angle))


def warp_image(
    group: PlanarGroup, g: int, images: Pictures
) -> Float[Tensor, "batch channel newrow newcol"]:
    """(g f)(x) = f(g⁻¹x) for any element: exact where g maps the grid, else interpolated."""
    if group.quarter_rotations(g) is not None:
        return act_on_image(group, g, images)
    fine = torch.promote_types(images.dtype, torch.float32)
    matrix = group.matrices()[g].to(images.device, fine)
    return warp_images(images, matrix.expand(len(images), 2, 2))


def rotation_matrices(angle: Float[Tensor, " batch"]) -> Float[Tensor, "batch 2 2"]:
    """Turn counter-clockwise by `angle` radians."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], dim=-1).view(-1, 2, 2)


def warp_images(
    images: Pictures,
    matrices: Float[Tensor, "batch 2 2"],
    shifts: Float[Tensor, "batch 2"] | None = None,
    bends: Float[Tensor, "batch 2 row col"] | None = None,
    mode: str = "bilinear",
) -> Pictures:
    """Move each picture by x -> A x + t (t in pixels): the new picture is f(A⁻¹(x − t)).

    With `bends` b, a step for each pixel, it is f(A⁻¹(x − t) + b(x)).  Between its pixels f is
    "bilinear", which blurs, or "bicubic", which blurs less and may leave the range of f.
    In single precision at least: positions of half of it miss pixels.
    """
    rows, cols = images.shape[-2:]
    fine = images.to(torch.promote_types(images.dtype, torch.float32))
    target = pixel_centres(rows, cols).to(fine).flatten(0, 1)  # (pixel, 2)
    if shifts is not None:
        target = target - shifts[:, None]  # (batch, pixel, 2)
    # not by `inv`, which would make the host wait for the device
    back = torch.linalg.inv_ex(matrices.to(fine.dtype)).inverse
    source = target @ back.mT  # (batch, pixel, 2)
    if bends is not None:
        source = source + bends.flatten(2).mT
    grid = to_sampling_grid(source, rows, cols).unflatten(1, (rows, cols))
    warped = F.grid_sample(fine, grid, mode=mode, padding_mode="zeros", align_corners=False)
    return warped.to(images.dtype)
