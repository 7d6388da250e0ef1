"""Crop, resample and convert images, by the same arithmetic for every data set.

Crops are central.  Resampling is antialiased bilinear interpolation in float64, rounded once at the
end; Pillow and torch's byte kernels round between the two axes, so their result depends on the
orientation of the image.  A crop that must drop an odd number of pixels drops one more at the
bottom and at the right.
"""

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from turnwise.errors import InputError, require

Images = UInt8[Tensor, "image channel row col"]
Resized = UInt8[Tensor, "image anychannel newrow newcol"]

_LUMA = (299, 587, 114)  # ITU-R BT.601, in thousandths
_CHUNK = 1 << 24  # values interpolated at a time: 128 MiB of float64
_TIE = 1e-6  # rounds halves up, whatever the order of the sum, so that rotated images agree


def crop_centre(images: Images, rows: int, cols: int) -> Resized:
    """Return the central `rows` × `cols` pixels."""
    top, left = (images.shape[-2] - rows) // 2, (images.shape[-1] - cols) // 2
    return images[..., top : top + rows, left : left + cols]


def crop_square(images: Images) -> Resized:
    """Return the largest central square: images are cropped, never stretched."""
    side = min(images.shape[-2:])
    return crop_centre(images, side, side)


def resize(images: Images, image_size: int, mode: str = "bilinear") -> Resized:
    """Crop to the central square and resample it to `image_size` pixels ("bilinear", "bicubic")."""
    images = crop_square(images)
    if images.shape[-1] == image_size:
        return images
    step = max(1, _CHUNK // max(1, images[0].numel() if len(images) else 1))
    resized = images.new_empty(*images.shape[:2], image_size, image_size)
    for start in range(0, len(images), step):
        chunk = images[start : start + step].double()
        smooth = F.interpolate(chunk, (image_size, image_size), mode=mode, antialias=True)
        resized[start : start + step] = (smooth + 0.5 + _TIE).floor().clamp(0, 255).byte()
    return resized


def convert_channels(images: Images, channels: int) -> Resized:
    """Repeat grey, or convert colour to its ITU-R 601 luma, rounded."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    red, green, blue = images.to(torch.int32).unbind(1)
    luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return ((luma + 500) // 1000).byte().unsqueeze(1)


def check_image_options(image_size: int | None, channels: int | None, crop: int | None) -> None:
    """Raise for sizes and channels that no image can have."""
    for name, value in (("image_size", image_size), ("crop", crop)):
        require(value is None or value >= 1, f"{name} = {value} must be at least 1 pixel; try 28.")
    require(
        channels in (None, 1, 3),
        f"channels = {channels} is not possible; write 1 for grey or 3 for colour.",
    )


def fit_images(
    images: Images, image_size: int | None, channels: int | None, crop: int | None
) -> Resized:
    """Crop, then resample, then convert the channels; None skips a step."""
    if crop is not None:
        rows, cols = images.shape[-2:]
        if crop > min(rows, cols):
            raise InputError(
                f"crop = {crop} is larger than the images, which have {rows}×{cols} pixels; "
                f"write crop={min(rows, cols)} or less."
            )
        images = crop_centre(images, crop, crop)
    if image_size is not None:
        images = resize(images, image_size)
    return images if channels is None else convert_channels(images, channels)
