"""Token mixers: how the pixels of a map learn of each other, in ways that know no direction.

All commute with every turn and mirror of the map; attention without a window with every shuffle.
The mixer that does nothing is `torch.nn.Identity`.

The MetaFormer block: a mixer tells pixels of each other, then each thinks for itself.

x <- x + drop(s₁ ⊙ mixer(norm(x)))
x <- x + drop(s₂ ⊙ mlp(norm(x)))

Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
Symbols:  s₁, s₂ one number for each channel (layer scale), `scale_mixer` and `scale_mlp`.

On maps that keep their poses (layers/oriented.py) all poses share scales, norms' affine maps and,
seen from their own frames, the perceptron, which has |G| times fewer weights; `width` counts all.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import attend
from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv
from turnwise.layers.conv.oriented import width_of_pose
from turnwise.layers.transformer.plain import DropPath, SelfAttention

Maps = Float[Tensor, "batch width row col"]


def start_small(part: nn.Linear | nn.Conv2d | GroupConv) -> None:
    """Weights of spread 0.02 and biases of 0.

    The published programs cut the spread off at ±2, a hundred times itself: that is, nowhere.
    """
    nn.init.normal_(part.weight, std=0.02)
    if part.bias is not None:
        nn.init.zeros_(part.bias)


class PoolMixer(nn.Module):
    """mean of the neighbours − x: what the block adds back, so that a constant map stays still.

    The mean is over those of the window's pixels that the map has: 4 in a corner, 9 inside.

    Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
    """

    def __init__(self, window: int = 3) -> None:
        super().__init__()
        require(window % 2 == 1 and window > 0, f"window = {window} must be odd; try 3.")
        self.window = window

    def forward(self, maps: Maps) -> Maps:
        mean = F.avg_pool2d(maps, self.window, 1, self.window // 2, count_include_pad=False)
        return mean - maps

    def extra_repr(self) -> str:
        return f"window={self.window}"


class AttentionMixer(nn.Module):
    """Multi-head self-attention among the pixels, without positions.

    With a `window` w a pixel looks at the w × w pixels around it that the map has, else at all.

    Paper:    Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision".
    Departs:  no position is added to the maps of a stage, as in Roto-MetaFormer.
    """

    def __init__(
        self, width: int, head_width: int = 32, window: int = 0, backend: str = "auto"
    ) -> None:
        super().__init__()
        require_positive(width=width, head_width=head_width)
        require_divisible(width, head_width, "width", f"heads have {head_width} channels")
        odd = window > 0 and window % 2 == 1
        require(window == 0 or odd, f"window = {window} must be odd, or 0: all pixels.")
        self.window = window
        self.attention = SelfAttention(width, width // head_width, backend)
        self.attention.to_query_key_value.register_parameter("bias", None)  # as published
        for part in (self.attention.to_query_key_value, self.attention.to_output):
            start_small(part)

    def forward(self, maps: Maps) -> Maps:
        rows, cols = maps.shape[2:]
        tokens = maps.flatten(2).transpose(1, 2)
        mixed = self._locally(tokens, rows, cols) if self.window else self.attention(tokens)
        return mixed.transpose(1, 2).unflatten(2, (rows, cols))

    def _locally(
        self, tokens: Float[Tensor, "batch token width"], rows: int, cols: int
    ) -> Float[Tensor, "batch token width"]:
        """The same attention, with far pixels masked."""
        inner = self.attention
        split = inner.to_query_key_value(tokens).unflatten(-1, (3, inner.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, head, token, dim)
        mask = far_mask(rows, cols, self.window, query)
        mixed = attend(query, key, value, mask[None, None], backend=inner.backend)
        return inner.to_output(mixed.transpose(1, 2).flatten(2))


def far_mask(rows: int, cols: int, window: int, like: Tensor) -> Float[Tensor, "token token"]:
    """0 between pixels less than half a window apart along both axes, else −∞."""

    def near(size: int) -> Tensor:
        at = torch.arange(size, device=like.device)
        return (at[:, None] - at).abs() <= window // 2

    both = near(rows)[:, None, :, None] & near(cols)[None, :, None, :]
    mask = torch.full(both.shape, -torch.inf, dtype=like.dtype, device=like.device)
    return mask.masked_fill(both, 0.0).flatten(2).flatten(0, 1)


NORMS = ("picture", "channel")


def for_poses(numbers: Float[Tensor, " pose_width"], poses: int) -> Float[Tensor, " width"]:
    """The numbers of one pose's channels, the same for every pose."""
    return numbers if poses == 1 else numbers.repeat(poses)


class PoseNorm(nn.Module):
    """Mean 0 and spread 1, then an affine map that is the same for every pose.

    `over` "picture": over all channels, poses and pixels of a picture; "channel": over the channels
    and poses of each pixel.
    """

    def __init__(self, over: str, width: int, poses: int = 1) -> None:
        super().__init__()
        require_known(over, NORMS, "norm")
        self.over, self.poses = over, poses
        self.weight = nn.Parameter(torch.ones(width // poses))
        self.bias = nn.Parameter(torch.zeros(width // poses))

    def forward(self, maps: Maps) -> Maps:
        weight, bias = for_poses(self.weight, self.poses), for_poses(self.bias, self.poses)
        if self.over == "picture":
            return F.group_norm(maps, 1, weight, bias)
        pixels = maps.permute(0, 2, 3, 1)
        return F.layer_norm(pixels, weight.shape, weight, bias).permute(0, 3, 1, 2)


class MetaFormerBlock(nn.Module):
    """One mixer and one two-layer perceptron, each normed before and scaled before it is added.

    With an `oriented` group, maps keep its poses; the mixer must treat all maps alike, as pools do.
    """

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
        self.poses = 1 if oriented is None else PlanarGroup.named(oriented).order
        self.norm_mixer, self.norm_mlp = (PoseNorm(norm, width, self.poses) for _ in range(2))
        self.mixer = mixer
        widen, narrow = _linear(oriented, width, hidden), _linear(oriented, hidden, width)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)
        self.scale_mixer = nn.Parameter(torch.full((width // self.poses,), layer_scale))
        self.scale_mlp = nn.Parameter(torch.full((width // self.poses,), layer_scale))
        self.drop_path = DropPath(drop_path)
        for part in (widen, narrow):
            start_small(part)

    def forward(self, maps: Maps) -> Maps:
        mixed = self.mixer(self.norm_mixer(maps))
        maps = maps + self.drop_path(self._scaled(self.scale_mixer, mixed))
        thought = self.mlp(self.norm_mlp(maps))
        return maps + self.drop_path(self._scaled(self.scale_mlp, thought))

    def _scaled(self, scale: Float[Tensor, " pose_width"], branch: Maps) -> Maps:
        return for_poses(scale, self.poses)[:, None, None] * branch


def _linear(oriented: PlanarGroup | str | None, old: int, new: int) -> nn.Conv2d | GroupConv:
    """A linear map of each pixel; of oriented maps one that mixes poses from their own frames."""
    if oriented is None:
        return nn.Conv2d(old, new, 1)
    return GroupConv(oriented, width_of_pose(oriented, old), width_of_pose(oriented, new), 1)
