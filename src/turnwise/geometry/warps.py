"""Warps of images by rotations, reflections, scales, shifts and displacements.

Rotations by multiples of 90° and reflections are exact permutations of pixels.  Every other warp
interpolates about the centre, with zeros outside the image, so its errors are measured.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.geometry.grids import pixel_centres, to_sampling_grid
from turnwise.groups import PlanarGroup, act_on_image

Images = Float[Tensor, "batch channel row col"]


def rotate_image(images: Images, degrees: float) -> Float[Tensor, "batch channel newrow newcol"]:
    """Rotate all images counter-clockwise by one angle; multiples of 90° are exact."""
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        return act_on_image(PlanarGroup.named("C4"), int(quarters) % 4, images)
    dtype = torch.promote_types(images.dtype, torch.float32)
    angle = images.new_full((len(images),), math.radians(degrees), dtype=dtype)
    return warp_images(images, rotation_matrices(angle))


def warp_image(
    group: PlanarGroup, g: int, images: Images
) -> Float[Tensor, "batch channel newrow newcol"]:
    """(g f)(x) = f(g⁻¹x) for any element: exact if g maps pixels to pixels, else interpolated."""
    if group.quarter_rotations(g) is not None:
        return act_on_image(group, g, images)
    dtype = torch.promote_types(images.dtype, torch.float32)
    matrix = group.matrices()[g].to(images.device, dtype)
    return warp_images(images, matrix.expand(len(images), 2, 2))


def rotation_matrices(angle: Float[Tensor, " batch"]) -> Float[Tensor, "batch 2 2"]:
    """Return the matrices that rotate counter-clockwise by `angle` radians."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], dim=-1).view(-1, 2, 2)


def warp_images(
    images: Images,
    matrices: Float[Tensor, "batch 2 2"],
    shifts: Float[Tensor, "batch 2"] | None = None,
    displacements: Float[Tensor, "batch 2 row col"] | None = None,
    mode: str = "bilinear",
) -> Images:
    """Warp each image f by x -> A x + t, with t in pixels: return f(A⁻¹(x − t)).

    With displacements d, one for each pixel, return f(A⁻¹(x − t) + d(x)).  `mode` is "bilinear", or
    "bicubic", which blurs less and may leave the range of f.  Positions are computed at least in
    single precision, because half precision cannot represent them.
    """
    rows, cols = images.shape[-2:]
    fine = images.to(torch.promote_types(images.dtype, torch.float32))
    target = pixel_centres(rows, cols).to(fine).flatten(0, 1)  # (pixel, 2)
    if shifts is not None:
        target = target - shifts[:, None]  # (batch, pixel, 2)
    # `inv_ex`, because `inv` waits for the GPU
    inverse = torch.linalg.inv_ex(matrices.to(fine.dtype)).inverse
    source = target @ inverse.mT  # (batch, pixel, 2)
    if displacements is not None:
        source = source + displacements.flatten(2).mT
    grid = to_sampling_grid(source, rows, cols).unflatten(1, (rows, cols))
    warped = F.grid_sample(fine, grid, mode=mode, padding_mode="zeros", align_corners=False)
    return warped.to(images.dtype)
