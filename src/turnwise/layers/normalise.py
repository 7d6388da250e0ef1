"""Normalisation of input images by the statistics of the training images."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.fitting import fit_square


class Normalise(nn.Module):
    """(image − mean) / std for each channel, the same for all pixels, so every symmetry is kept.

    Until `fit` is called, it maps [0, 1] to [−1, 1].  With `transposed` rows and columns are
    exchanged first, for networks that were trained on images stored column by column.
    With `fit_size` it also changes the images to the size that the network takes, by the rule in
    `fit_mode` (geometry/fitting.py).
    """

    fit_size: int | None = None
    fit_mode: str = ""

    mean: Tensor
    spread: Tensor  # the standard deviation; the name is part of stored weights

    def __init__(self, in_chans: int, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        self.register_buffer("mean", torch.full((in_chans,), 0.5))
        self.register_buffer("spread", torch.full((in_chans,), 0.5))

    def fit(self, images: Shaped[Tensor, "image channel row col"]) -> None:
        """Set mean and standard deviation from images in uint8 (of the training split)."""
        require(
            images.dtype == torch.uint8,
            f"fit takes images in uint8, 0 to 255, got {images.dtype}; give "
            "(255 * images).round().to(torch.uint8) for images in [0, 1].",
        )
        self.require_channels(images)
        levels = torch.arange(256, dtype=torch.float64) / 255
        for channel in range(images.shape[1]):
            count = torch.bincount(images[:, channel].flatten().int(), minlength=256).double()
            mean = (count * levels).sum() / count.sum()
            variance = (count * (levels - mean).square()).sum() / count.sum()
            self.mean[channel] = mean
            self.spread[channel] = variance.sqrt().clamp_min(1e-3)

    def require_channels(self, images: Shaped[Tensor, "batch in_chans rows cols"]) -> None:
        """Raise unless the images have as many channels as the model was made for."""
        channels = self.mean.numel()
        require(
            images.shape[1] == channels,
            f"the model takes images with {channels} channels, got {images.shape[1]}.",
        )

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch channel newrow newcol"]:
        images = images.mT if self.transposed else images
        if self.fit_size is not None:
            images = fit_square(images, self.fit_size, self.fit_mode)
        return (images - self.mean[:, None, None]) / self.spread[:, None, None]

    def extra_repr(self) -> str:
        return "transposed=True" if self.transposed else ""
