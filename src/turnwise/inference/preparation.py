"""From the pixels of a file to the images that a model takes, so that rotations commute.

A central square, resampled, then a central crop.  A crop of an odd number of pixels would leave one
side longer than the other, so the side before it is chosen to differ by an even number.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import UInt8
from torch import Tensor

from turnwise.data.transforms import convert_channels, crop_centre, resize
from turnwise.errors import require, require_known, require_positive

MODES = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Preparation:
    """Crop to the central square, resample to `resize`, crop to `size`, convert the channels.

    Args:
        size: the side of the prepared images in pixels.
        channels: 1 or 3; None keeps those of the file.
        resize: the side before the last crop; 0 is `size`.
        mode: how to resample, "bilinear" or "bicubic", always antialiased.
    """

    size: int
    channels: int | None = None
    resize: int = 0
    mode: str = "bilinear"

    def __post_init__(self) -> None:
        require_positive(size=self.size)
        require_known(self.mode, MODES, "interpolation")
        require(
            self.resize == 0 or self.resize >= self.size,
            f"resize = {self.resize} is smaller than the crop to {self.size} pixels.",
        )

    def __call__(self, image: UInt8[Tensor, "channel row col"]) -> UInt8[Tensor, "new side side"]:
        images = resize(image[None], self.resize or self.size, self.mode)
        images = crop_centre(images, self.size, self.size)
        return images[0] if self.channels is None else convert_channels(images, self.channels)[0]

    @property
    def is_symmetric(self) -> bool:
        """Whether the last crop is central for every orientation of the image."""
        return (max(self.resize, self.size) - self.size) % 2 == 0

    def symmetrised(self) -> "Preparation":
        """Return the preparation with the next larger side before the crop, if it is needed."""
        return self if self.is_symmetric else replace(self, resize=self.resize + 1)


def commutation_error(prepare: Preparation) -> int:
    """Return by how many grey levels preparing and rotating an image fail to commute."""
    side = 2 * max(prepare.resize, prepare.size) + 1
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, side, side), dtype=torch.uint8, generator=generator)
    prepared = prepare(image).int()
    changes = [
        prepare(transform(image)).int() - transform(prepared)
        for transform in (lambda x: x.rot90(1, (1, 2)), lambda x: x.flip(2))
    ]
    return int(torch.stack(changes).abs().max())
