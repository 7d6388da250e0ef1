"""Attention of every pose of every token to every pose of every token, at a linear cost.

y = W_o [ rms(Σ F_q·F_k v / Σ ν_q·ν_k) + local(v) ],     F(x, h) = R(x) P_h φ(W f(x, h))

One state of keys and values serves all tokens and all poses (`attention.linear`); what it cannot
be, sharp, is left to a small convolution of the values, each pose by its own turn of one filter.

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
from turnwise.errors import InputError, require_divisible, require_known, require_positive
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import DepthwiseConv, Wrapped, maps_to_tokens, tokens_to_maps
from turnwise.layers.performer.positions import FREQUENCIES, reaches, set_frequency
from turnwise.layers.tables import register_group, remakes_tables
from turnwise.layers.transformer.linear import GroupLinear

Tokens = Float[Tensor, "batch token group channel"]
ATTENTIONS = ("linear", "softmax")


@remakes_tables
class SteeredAttention(nn.Module):
    """Rotary attention across the poses, and a convolution of the values beside it.

    attention:   "linear", or "softmax" of the same queries and keys: sharper, and quadratic
    features:    channels of queries and keys in a head, a multiple of 2 |G|: each frequency comes
                 with its whole orbit
    side:        of the picture in tokens; frequencies="torus" are whole numbers of periods in it,
                 so that circular shifts are exact too (for C4 and D4, which turn whole numbers
                 into whole numbers); "free" ones are learned
    local:       pixels across of the convolution, 0 for none; with `wrap` it has no border
    """

    matrices: Tensor
    relative: Tensor
    frequency: Tensor

    def __init__(  # noqa: PLR0913 - all but four are named and have a default
        self,
        group: PlanarGroup,
        width: int,
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
        require_divisible(width, heads, "width of a pose", f"it is split over {heads} heads")
        orbit = 2 * group.order
        require_divisible(features, orbit, "features", f"pairs for {group.order} poses")
        self.group, self.heads, self.side, self.features = group, heads, side, features
        self.attention, self.kernel = attention, kernel
        self.to_query_key_value = linear(group, width, 2 * heads * features + width)
        self.to_output = linear(group, width, width)
        self.local = _local(group, width, local, wrap) if local else None
        set_frequency(self, _start_waves(heads, features // orbit), side, frequencies)
        self._register_tables()

    def _register_tables(self) -> None:
        register_group(self, self.group, self.frequency.device)

    def forward(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        if tokens.shape[1:3] != (rows * cols, self.group.order):  # a message is not to be traced
            raise InputError(
                f"{rows} x {cols} tokens in {self.group.order} poses expected, "
                f"got {tokens.shape[1]} in {tokens.shape[2]}."
            )
        sizes = [self.heads * self.features] * 2 + [tokens.shape[-1]]
        query, key, value = self.to_query_key_value(tokens).split(sizes, dim=-1)
        positions = pixel_centres(rows, cols, tokens.device).flatten(0, 1)
        asking, asked, said = (x.unflatten(-1, (self.heads, -1)) for x in (query, key, value))
        mixed = self._mix(asking, asked, said, positions).flatten(3)
        if self.local is not None:
            near = self.local(tokens_to_maps(value, rows, cols))
            mixed = mixed + maps_to_tokens(near, self.group.order)
        return self.to_output(mixed)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        frequency = self.frequency * (2 * math.pi / self.side)
        phases = cross_frame_phases(frequency, self.matrices, positions)
        if self.attention == "softmax":
            dim = value.shape[-1]  # torch's fused kernels want values as wide as the keys
            wide = F.pad(value, (0, max(0, self.features - dim)))
            return attend_on_group(query, key, wide, phases, self.relative)[..., :dim]
        mixed = attend_linearly(query, key, value, phases, self.relative, kernel=self.kernel)
        return F.rms_norm(mixed, mixed.shape[-1:], eps=1e-8)  # waves cancel: it is small

    def extra_repr(self) -> str:
        return f"{self.group.name}, heads={self.heads}, attention={self.attention}"


def _local(group: PlanarGroup, width: int, kernel: int, wrap: bool) -> nn.Module:
    conv = DepthwiseConv(group, width, kernel)
    return Wrapped(conv, kernel) if wrap else conv


def _start_waves(heads: int, bases: int) -> Float[Tensor, "head base 2"]:
    """Radians per token, along x and y; every head has sharp ones and wide ones."""
    drawn = torch.randn(bases, heads, 2) * reaches(heads * bases).view(bases, heads, 1)
    return drawn.transpose(0, 1).contiguous()
