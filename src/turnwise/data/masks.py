"""Masks: one value per pixel, a class or the number of an instance, and how they are prepared.

    kind         targets                  values
    mask         uint8 (image, row, col)  classes, 255 where the pixel does not count
    instances    int16 (image, row, col)  0 background, 1, 2, … one number for each instance,
                                          −1 where the pixel does not count

A model of instances predicts three classes of pixels: background, inside and border.  The border is
one pixel wide, inside each instance; it separates instances that touch.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from turnwise.errors import InputError
from turnwise.geometry.warps import inscribed_disc, rotate_image

Masks = Shaped[Tensor, "image row col"]
NewMasks = Shaped[Tensor, "image newrow newcol"]
INSTANCE_CLASSES = ("background", "inside", "border")
BACKGROUND, INSIDE, BORDER = range(3)
IGNORED = {torch.uint8: 255, torch.int16: -1}  # by the type of the masks
IGNORED_CLASS = -1  # in maps of classes, as losses and metrics take them
_ALL, _MOST, _REST = slice(None), slice(None, -1), slice(1, None)
TOUCHING = (  # every pair of pixels that touch, once; first those that touch at a side
    ((_ALL, _MOST, _ALL), (_ALL, _REST, _ALL)),
    ((_ALL, _ALL, _MOST), (_ALL, _ALL, _REST)),
    ((_ALL, _MOST, _MOST), (_ALL, _REST, _REST)),
    ((_ALL, _MOST, _REST), (_ALL, _REST, _MOST)),
)


def pixel_classes(masks: Masks) -> Int64[Tensor, "image row col"]:
    """Return the class of each pixel, `IGNORED_CLASS` where it does not count.

    >>> pixel_classes(torch.tensor([[[0, 5, 5, 5], [0, 5, 5, 5], [0, 5, 5, 5]]]).short())[0, 1]
    tensor([0, 2, 1, 1])
    """
    if masks.dtype == torch.uint8:
        classes = masks.long()
        return classes.masked_fill(classes == IGNORED[torch.uint8], IGNORED_CLASS)
    classes = torch.where(boundaries(masks), BORDER, INSIDE).masked_fill(masks == 0, BACKGROUND)
    return classes.masked_fill(masks < 0, IGNORED_CLASS)


def boundaries(values: Shaped[Tensor, "image row col"]) -> Bool[Tensor, "image row col"]:
    """Return which pixels touch a pixel of another value, at a side or a corner."""
    edges = torch.zeros_like(values, dtype=torch.bool)
    for one, other in TOUCHING:
        differ = values[one] != values[other]
        edges[one] |= differ
        edges[other] |= differ
    return edges


def is_mask(targets: Tensor) -> bool:
    """Return whether targets have one value per pixel."""
    return targets.dtype in IGNORED and targets.ndim == 3


def fit_masks(masks: Masks, image_size: int | None, crop: int | None) -> NewMasks:
    """Crop and resample masks as `transforms.fit_images` does images, taking the nearest pixel."""
    if crop is not None:
        masks = crop_mask(masks, crop)
    if image_size is None or masks.shape[-2:] == (image_size, image_size):
        return masks
    masks = crop_mask(masks, min(masks.shape[-2:]))
    side = masks.shape[-1]
    nearest = ((torch.arange(image_size) + 0.5) * (side / image_size)).long()
    return masks[:, nearest][:, :, nearest]


def crop_mask(masks: Shaped[Tensor, "*many row col"], side: int) -> Shaped[Tensor, "*many r c"]:
    """Return the central side × side pixels, those that `transforms.crop_centre` keeps."""
    top, left = (masks.shape[-2] - side) // 2, (masks.shape[-1] - side) // 2
    return masks[..., top : top + side, left : left + side]


def warp_masks(masks: Masks, warp: Callable[[Tensor, str], Tensor], fill: str) -> NewMasks:
    """Return masks warped by `warp(values, fill)`, which takes the nearest of (image, 1, row, col).

    Pixels from outside the image are reflected or repeated as those of the image are, and do not
    count where the fill mode invents them.
    """
    ignored = IGNORED[masks.dtype]
    masks = ignore_corners(masks) if fill == "disc" else masks
    values = masks[:, None].float() - ignored  # 0, as it is filled in, is `ignored`
    warped = warp(values, fill if fill in ("reflect", "border") else "zeros")
    return (warped + ignored).to(masks.dtype)[:, 0]


def rotate_masks(masks: Masks, degrees: float, fill: str) -> NewMasks:
    """Rotate masks as `geometry.warps.rotate_image` does images, taking the nearest pixel."""
    return warp_masks(masks, lambda x, outside: rotate_image(x, degrees, outside, "nearest"), fill)


def ignore_corners(masks: Masks) -> Masks:
    """Return masks in which only the inscribed disc counts."""
    disc = inscribed_disc(masks.shape[-2], masks.shape[-1], masks.device)
    return masks.masked_fill(~disc, IGNORED[masks.dtype])


def require_masks(targets: Tensor) -> Masks:
    """Return the targets if they are masks; else raise."""
    if not is_mask(targets):
        raise InputError(
            "these images have no masks, one value per pixel; use a data set of masks here."
        )
    return targets
