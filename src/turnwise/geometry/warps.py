"""Warps of images by rotations, reflections, scales, shifts and displacements.

Rotations by multiples of 90° and reflections are exact permutations of pixels.  Every other warp
interpolates about the centre, so its errors are measured.  It also needs pixels from outside the
image, and the fill mode says what they are:

    reflect  the image, reflected at its edges: for photographs and microscopy
    border   the nearest pixel of the image
    mean     the mean of each channel of the image
    zeros    black: for objects on a black background
    disc     nothing is needed, because only the inscribed disc is shown; the rest of the image,
             upright or rotated, is the mean of the disc

Augmentation, evaluation, certificates and reports use one fill mode, and say which.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from turnwise.errors import require_known
from turnwise.geometry.grids import pixel_centres, to_sampling_grid
from turnwise.groups import PlanarGroup, act_on_image

Images = Float[Tensor, "batch channel row col"]

# what `grid_sample` does at the border in each fill mode
_PADDING = {
    "reflect": "reflection",
    "border": "border",
    "mean": "zeros",  # of the image without its mean
    "zeros": "zeros",
    "disc": "border",
}
FILLS = tuple(_PADDING)
AUTO = "auto"  # `choose_fill` infers the mode from the images
BLACK = 8 / 255  # JPEG files make black borders as bright as this
BLACK_SHARE = 0.75  # of the border pixels of images on a black background
SAMPLE = 2048  # images that `choose_fill` looks at


def rotate_image(
    images: Images, degrees: float, fill: str = "zeros", mode: str = "bilinear"
) -> Float[Tensor, "batch channel newrow newcol"]:
    """Rotate all images counter-clockwise by one angle; multiples of 90° are exact."""
    require_known(fill, FILLS, "fill mode")
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        rotated = act_on_image(PlanarGroup.named("C4"), int(quarters) % 4, images)
        return keep_disc(rotated) if fill == "disc" else rotated
    return warp_images(images, _rotations(images, degrees), fill=fill, mode=mode)


def fill_corners(images: Images, degrees: float, fill: str) -> Images:
    """Fill the corners as a rotation by `degrees` fills them, without rotating the image.

    This is the control of a rotated accuracy: what is lost here is lost to the corners, not to the
    rotation.
    """
    if fill == "disc":
        return keep_disc(images)
    rows, cols = images.shape[-2:]
    matrices = _rotations(images, degrees)
    source = pixel_centres(rows, cols).to(matrices) @ matrices[0]  # the inverse of the transpose
    half = torch.tensor([cols / 2, rows / 2], device=images.device)
    outside = (source.abs() > half + 1e-3).any(-1)
    return torch.where(outside, warp_images(images, matrices, fill=fill), images)


def choose_fill(fill: str, images: Shaped[Tensor, "image channel row col"]) -> str:
    """Return `fill`, or for "auto" what suits the images: "zeros" if borders are black.

    Otherwise it is "reflect", because black corners are then unlike anything in the images.
    """
    require_known(fill, (AUTO, *FILLS), "fill mode")
    if fill != AUTO:
        return fill
    black = 255 * BLACK if images.dtype == torch.uint8 else BLACK
    sample = images[:: max(1, len(images) // SAMPLE)]
    edges = (sample[..., :1, :], sample[..., -1:, :], sample[..., :, :1], sample[..., :, -1:])
    border = torch.cat([edge.flatten(2) for edge in edges], dim=-1).amax(1)  # (image, pixel)
    return "zeros" if float((border <= black).double().mean()) >= BLACK_SHARE else "reflect"


def keep_disc(images: Images) -> Images:
    """Replace everything outside the inscribed disc by the mean of the disc, in each channel."""
    disc = inscribed_disc(images.shape[-2], images.shape[-1], images.device)
    inside = images.masked_fill(~disc, 0.0)
    mean = inside.sum((-2, -1), keepdim=True, dtype=torch.float64) / disc.sum()
    return torch.where(disc, images, mean.to(images.dtype))


def inscribed_disc(
    rows: int, cols: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, "row col"]:
    """Return which pixels have their centre in the largest disc about the centre."""
    return pixel_centres(rows, cols).to(device).norm(dim=-1) <= min(rows, cols) / 2


def _rotations(images: Images, degrees: float) -> Float[Tensor, "batch 2 2"]:
    dtype = torch.promote_types(images.dtype, torch.float32)
    angle = images.new_full((len(images),), math.radians(degrees), dtype=dtype)
    return rotation_matrices(angle)


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
    fill: str = "zeros",
) -> Images:
    """Warp each image f by x -> A x + t, with t in pixels: return f(A⁻¹(x − t)).

    With displacements d, one for each pixel, return f(A⁻¹(x − t) + d(x)).  `mode` is "bilinear", or
    "bicubic", which blurs less and may leave the range of f.  `fill` is one of `FILLS`.  Positions
    are computed at least in single precision, because half precision cannot represent them.
    """
    rows, cols = images.shape[-2:]
    fine = images.to(torch.promote_types(images.dtype, torch.float32))
    mean = fine.mean((-2, -1), keepdim=True) if fill == "mean" else None
    target = pixel_centres(rows, cols).to(fine).flatten(0, 1)  # (pixel, 2)
    if shifts is not None:
        target = target - shifts[:, None]  # (batch, pixel, 2)
    # `inv_ex`, because `inv` waits for the GPU
    inverse = torch.linalg.inv_ex(matrices.to(fine.dtype)).inverse
    source = target @ inverse.mT  # (batch, pixel, 2)
    if displacements is not None:
        source = source + displacements.flatten(2).mT
    grid = to_sampling_grid(source, rows, cols).unflatten(1, (rows, cols))
    padded = fine if mean is None else fine - mean
    warped = F.grid_sample(
        padded, grid, mode=mode, padding_mode=_PADDING[fill], align_corners=False
    )
    warped = warped if mean is None else warped + mean
    return (keep_disc(warped) if fill == "disc" else warped).to(images.dtype)
