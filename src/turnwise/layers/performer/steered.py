"""Self-attention across tokens and group elements at a linear cost.

y = W_o [ rms(Σ F_q·F_k v / Σ ν_q·ν_k) + local(v) ],     F(x, h) = R(x) P_h φ(W f(x, h))

One key-value state serves all tokens and all group elements (`attention.linear`).  Linear attention
is not sharp; a small depthwise group convolution of the values adds what is local.

Paper:    none for the steering; Katharopoulos et al. 2020 (linear attention), Su et al. 2021
          (rotary positions), Han et al. 2023, "FLatten Transformer" (the convolution of values).
Symbols:  see `attention.rotary`, frame "cross".
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS, attend_linearly
from turnwise.attention.rotary import attend_on_group, cross_frame_phases
from turnwise.errors import require_divisible, require_known, require_positive
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import regular_to_tokens, tokens_to_regular
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import CircularConv2d, GroupDepthwiseConv2d, require_regular
from turnwise.layers.performer.positions import FREQUENCIES, reaches, set_frequency
from turnwise.layers.tables import register_group, remakes_tables
from turnwise.layers.transformer.linear import GroupLinear

Regular = Float[Tensor, "batch channel group row col"]
ATTENTIONS = ("linear", "softmax")


@remakes_tables
class SteeredAttention(nn.Module):
    """Rotary attention across all group elements, plus a convolution of the values.

    attention:   "linear", or "softmax" of the same queries and keys: sharper, and quadratic
    features:    channels of queries and keys in a head, a multiple of 2 |G|: each frequency comes
                 with its whole orbit
    side:        of the image in tokens; frequencies="torus" have whole numbers of periods in it,
                 so that circular shifts are exact too (for C4 and D4, which map whole numbers to
                 whole numbers); "free" ones are learned
    local:       side of the convolution's kernel, 0 for none; with `wrap` it pads circularly
    """

    no_weight_decay = ("frequency",)
    matrices: Tensor
    relative: Tensor
    frequency: Tensor

    def __init__(  # noqa: PLR0913 - all but four are named and have a default
        self,
        group: PlanarGroup,
        channels: int,
        heads: int,
        side: int,
        *,
        features: int = 32,
        attention: str = "linear",
        kernel: str = "elu",
        frequencies: str = "torus",
        local: int = 3,
        wrap: bool = True,
        linear: Callable[[PlanarGroup, int, int], nn.Module] = GroupLinear,
    ) -> None:
        super().__init__()
        require_positive(heads=heads, side=side)
        require_known(attention, ATTENTIONS, "attention")
        require_known(kernel, KERNELS, "kernel")
        require_known(frequencies, FREQUENCIES, "frequencies")
        require_divisible(channels, heads, "channels", f"it is split over {heads} heads")
        orbit = 2 * group.order
        require_divisible(features, orbit, "features", f"pairs for {group.order} group elements")
        self.group, self.channels, self.heads = group, channels, heads
        self.side, self.features = side, features
        self.attention, self.kernel = attention, kernel
        self.to_query_key_value = linear(group, channels, 2 * heads * features + channels)
        self.to_output = linear(group, channels, channels)
        self.local = _local(group, channels, local, wrap) if local else None
        set_frequency(self, _initial_frequency(heads, features // orbit), side, frequencies)
        self._register_tables()

    def _register_tables(self) -> None:
        register_group(self, self.group, self.frequency.device)

    def forward(self, x: Regular) -> Regular:
        require_regular(x, self.group, self.channels)
        (rows, cols), tokens = x.shape[3:], regular_to_tokens(x)
        sizes = [self.heads * self.features] * 2 + [tokens.shape[-1]]
        query, key, value = self.to_query_key_value(tokens).split(sizes, dim=-1)
        positions = pixel_centres(rows, cols, tokens.device).flatten(0, 1)
        query, key, by_head = (x.unflatten(-1, (self.heads, -1)) for x in (query, key, value))
        mixed = self._mix(query, key, by_head, positions).flatten(3)
        if self.local is not None:
            mixed = mixed + regular_to_tokens(self.local(tokens_to_regular(value, rows, cols)))
        return tokens_to_regular(self.to_output(mixed), rows, cols)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        frequency = self.frequency * (2 * math.pi / self.side)
        phases = cross_frame_phases(frequency, self.matrices, positions)
        if self.attention == "softmax":
            dim = value.shape[-1]  # torch's fused kernels need values as wide as the keys
            wide = F.pad(value, (0, max(0, self.features - dim)))
            return attend_on_group(query, key, wide, phases, self.relative)[..., :dim]
        mixed = attend_linearly(query, key, value, phases, self.relative, kernel=self.kernel)
        return F.rms_norm(mixed, mixed.shape[-1:], eps=1e-8)  # the terms nearly cancel

    def extra_repr(self) -> str:
        return f"{self.group}, {self.channels}, heads={self.heads}, attention={self.attention}"


def _local(group: PlanarGroup, channels: int, kernel: int, wrap: bool) -> nn.Module:
    conv = GroupDepthwiseConv2d(group, channels, kernel)
    return CircularConv2d(conv, kernel) if wrap else conv


def _initial_frequency(heads: int, bases: int) -> Float[Tensor, "head base 2"]:
    """Draw radians per token along x and y; every head has high and low frequencies."""
    drawn = torch.randn(bases, heads, 2) * reaches(heads * bases).view(bases, heads, 1)
    return drawn.transpose(0, 1).contiguous()
