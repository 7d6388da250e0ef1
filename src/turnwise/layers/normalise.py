"""What pictures look like to a model: the mean and spread of the pictures it was trained on."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from turnwise.errors import require


class Normalise(nn.Module):
    """(image − mean) / spread, channel by channel; pixel by pixel, so every symmetry survives it.

    Until `fit` is called, pictures in [0, 1] are brought to [−1, 1].
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, in_chans: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((in_chans,), 0.5))
        self.register_buffer("spread", torch.full((in_chans,), 0.5))

    def fit(self, images: Shaped[Tensor, "picture channel row col"]) -> None:
        """Take mean and standard deviation of these pictures (the training split's), in uint8."""
        require(
            images.dtype == torch.uint8,
            f"mean and spread are taken of pictures in uint8, 0 to 255, got {images.dtype}; "
            "give (255 * images).round().to(torch.uint8) for pictures in [0, 1].",
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
        """Raise unless the pictures have as many channels as the model was made for."""
        channels = self.mean.numel()
        require(
            images.shape[1] == channels,
            f"the model takes pictures with {channels} channels, got {images.shape[1]}.",
        )

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        return (images - self.mean[:, None, None]) / self.spread[:, None, None]
