"""The MetaFormer block: a mixer tells pixels of each other, then each thinks for itself.

x <- x + drop(s₁ ⊙ mixer(norm(x)))
x <- x + drop(s₂ ⊙ mlp(norm(x)))

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
Symbols:  s₁, s₂ one number for each channel (layer scale), `scale_mixer` and `scale_mlp`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import require_known, require_positive
from turnwise.layers.mixers import start_small
from turnwise.layers.transformer import DropPath

Maps = Float[Tensor, "batch width row col"]


class ChannelNorm(nn.Module):
    """Mean 0 and spread 1 over the channels of each pixel, then an affine map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, maps: Maps) -> Maps:
        pixels = maps.permute(0, 2, 3, 1)
        return F.layer_norm(pixels, self.weight.shape, self.weight, self.bias).permute(0, 3, 1, 2)


def picture_norm(width: int) -> nn.GroupNorm:
    """Mean 0 and spread 1 over all channels and pixels of a picture, then an affine map."""
    return nn.GroupNorm(1, width)


NORMS = {"picture": picture_norm, "channel": ChannelNorm}


class MetaFormerBlock(nn.Module):
    """One mixer and one two-layer perceptron, each normed before and scaled before it is added."""

    def __init__(
        self,
        width: int,
        mixer: nn.Module,
        *,
        norm: str = "picture",
        mlp_ratio: float = 4.0,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        require_known(norm, NORMS, "norm")
        hidden = int(width * mlp_ratio)
        require_positive(width=width, hidden=hidden)
        self.norm_mixer, self.norm_mlp = NORMS[norm](width), NORMS[norm](width)
        self.mixer = mixer
        widen, narrow = nn.Conv2d(width, hidden, 1), nn.Conv2d(hidden, width, 1)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)
        self.scale_mixer = nn.Parameter(torch.full((width,), layer_scale))
        self.scale_mlp = nn.Parameter(torch.full((width,), layer_scale))
        self.drop_path = DropPath(drop_path)
        for part in (widen, narrow):
            start_small(part)

    def forward(self, maps: Maps) -> Maps:
        mixed = self.mixer(self.norm_mixer(maps))
        maps = maps + self.drop_path(self.scale_mixer[:, None, None] * mixed)
        thought = self.mlp(self.norm_mlp(maps))
        return maps + self.drop_path(self.scale_mlp[:, None, None] * thought)
