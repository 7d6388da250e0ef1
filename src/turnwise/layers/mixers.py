"""Token mixers: how the pixels of a map learn of each other, in ways that know no direction.

All commute with every turn and mirror of the map; attention without a window with every shuffle.
The mixer that does nothing is `torch.nn.Identity`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import attend
from turnwise.checks import require, require_divisible, require_positive
from turnwise.layers.group_conv import GroupConv
from turnwise.layers.transformer import SelfAttention

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
