"""Token mixers without positions, and the MetaFormer block around them.

    x ← x + drop(s₁ ⊙ mixer(norm(x)))
    x ← x + drop(s₂ ⊙ mlp(norm(x)))

The mixers are equivariant to all rotations and reflections of the pixel grid; attention without a
window even to every permutation of the pixels.  The mixer that does nothing is `nn.Identity`.

Features are images, or regular features (batch, channel, group, row, col) of which all group
elements share the scales, the affine maps of the norms and, each in its own frame, the MLP.

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
Symbols:  s₁, s₂ one number for each channel (layer scale), `scale_mixer` and `scale_mlp`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.geometry.layouts import on_maps
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, channels_of_element
from turnwise.layers.transformer.plain import DropPath, SelfAttention

Maps = Float[Tensor, "batch channel row col"]
Features = Float[Tensor, "batch channel *group row col"]


def initialise_small(part: nn.Linear | nn.Conv2d | GroupConv2d) -> None:
    """Set weights of standard deviation 0.02 and biases of 0.

    The published programs truncate at ±2, which is 100 standard deviations: that is, nowhere.
    """
    nn.init.normal_(part.weight, std=0.02)
    if part.bias is not None:
        nn.init.zeros_(part.bias)


class PoolMixer(nn.Module):
    """Mean of the neighbours minus x; the block adds x back, so constant maps do not change.

    The mean is over those pixels of the window that lie in the map: 4 in a corner, 9 inside.

    Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
    """

    def __init__(self, window: int = 3) -> None:
        super().__init__()
        require(window % 2 == 1 and window > 0, f"window = {window} must be odd; try 3.")
        self.window = window

    def forward(self, x: Features) -> Features:
        return on_maps(self._average, x) - x

    def _average(self, maps: Maps) -> Maps:
        return F.avg_pool2d(maps, self.window, 1, self.window // 2, count_include_pad=False)

    def extra_repr(self) -> str:
        return f"window={self.window}"


class AttentionMixer(nn.Module):
    """Multi-head self-attention among the pixels, without positions.

    With a `window` w a pixel attends to the w × w pixels around it, else to all.

    Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
    Departs:  no position is added to the maps of a stage, as in Roto-MetaFormer; `qk_norm`.
    """

    def __init__(
        self,
        width: int,
        head_width: int = 32,
        window: int = 0,
        backend: str = "auto",
        *,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        require_positive(width=width, head_width=head_width)
        require_divisible(width, head_width, "width", f"heads have {head_width} channels")
        odd = window > 0 and window % 2 == 1
        require(window == 0 or odd, f"window = {window} must be odd, or 0: all pixels.")
        self.window = window
        self.attention = SelfAttention(width, width // head_width, backend, qk_norm=qk_norm)
        self.attention.to_query_key_value.register_parameter("bias", None)  # as published
        for part in (self.attention.to_query_key_value, self.attention.to_output):
            initialise_small(part)

    def forward(self, maps: Maps) -> Maps:
        rows, cols = maps.shape[2:]
        tokens = maps.flatten(2).transpose(1, 2)
        if self.window:  # the same attention, with far pixels masked
            mask = far_mask(rows, cols, self.window, tokens)
            mixed = self.attention.attend(tokens, mask[None, None])
        else:
            mixed = self.attention(tokens)
        return mixed.transpose(1, 2).unflatten(2, (rows, cols))


def far_mask(rows: int, cols: int, window: int, like: Tensor) -> Float[Tensor, "token token"]:
    """0 between pixels less than half a window apart along both axes, else −∞."""

    def near(size: int) -> Tensor:
        at = torch.arange(size, device=like.device)
        return (at[:, None] - at).abs() <= window // 2

    both = near(rows)[:, None, :, None] & near(cols)[None, :, None, :]
    mask = torch.full(both.shape, -torch.inf, dtype=like.dtype, device=like.device)
    return mask.masked_fill(both, 0.0).flatten(2).flatten(0, 1)


NORMS = ("picture", "channel")


class MetaFormerNorm(nn.Module):
    """Normalise to mean 0 and variance 1, then apply an affine map shared by all group elements.

    `over` "picture": over channels, group and pixels of an image; "channel": over the channels and
    group elements of each pixel.
    """

    def __init__(self, over: str, channels: int) -> None:
        super().__init__()
        require_known(over, NORMS, "norm")
        self.over = over
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Features) -> Features:
        return on_maps(self._normalise, x)

    def _normalise(self, maps: Maps) -> Maps:
        order = maps.shape[1] // len(self.weight)
        weight, bias = (p if order == 1 else p.repeat(order) for p in (self.weight, self.bias))
        if self.over == "picture":
            return F.group_norm(maps, 1, weight, bias)
        pixels = maps.permute(0, 2, 3, 1)
        return F.layer_norm(pixels, weight.shape, weight, bias).permute(0, 3, 1, 2)


class MetaFormerBlock(nn.Module):
    """A token mixer and an MLP, each with a norm before it and a layer scale after it.

    With an `oriented` group the block takes regular features of width / |G| channels; the mixer
    must then treat all channels alike, as pooling does.
    """

    feature_layout = "image"
    no_weight_decay = ("scale_mixer", "scale_mlp")

    def __init__(
        self,
        width: int,
        mixer: nn.Module,
        *,
        norm: str = "picture",
        mlp_ratio: float = 4.0,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
        oriented: PlanarGroup | str | None = None,
    ) -> None:
        super().__init__()
        require_known(norm, NORMS, "norm")
        hidden = int(width * mlp_ratio)
        require_positive(width=width, hidden=hidden)
        channels = width if oriented is None else channels_of_element(oriented, width)
        self.feature_layout = "image" if oriented is None else "regular"
        self.norm_mixer, self.norm_mlp = (MetaFormerNorm(norm, channels) for _ in range(2))
        self.mixer = mixer
        widen, narrow = _linear(oriented, width, hidden), _linear(oriented, hidden, width)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)
        self.scale_mixer = nn.Parameter(torch.full((channels,), layer_scale))
        self.scale_mlp = nn.Parameter(torch.full((channels,), layer_scale))
        self.drop_path = DropPath(drop_path)
        for part in (widen, narrow):
            initialise_small(part)

    def forward(self, x: Features) -> Features:
        shape = (-1, *[1] * (x.ndim - 2))
        mixed = self.mixer(self.norm_mixer(x))
        x = x + self.drop_path(self.scale_mixer.view(shape) * mixed)
        hidden = self.mlp(self.norm_mlp(x))
        return x + self.drop_path(self.scale_mlp.view(shape) * hidden)


def _linear(oriented: PlanarGroup | str | None, old: int, new: int) -> nn.Conv2d | GroupConv2d:
    """Return a linear map of each pixel; on regular features it mixes the group elements too."""
    if oriented is None:
        return nn.Conv2d(old, new, 1)
    return GroupConv2d(
        oriented, channels_of_element(oriented, old), channels_of_element(oriented, new), 1
    )
