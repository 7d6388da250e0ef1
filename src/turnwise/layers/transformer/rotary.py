"""Self-attention on the group with rotary positions.

Paper:    Su et al. 2021, "RoFormer"; Heo et al. 2024, "Rotary Position Embedding for Vision
          Transformer".
Symbols:  see `attention.rotary` and `attention.linear`; ω is `frequency`, in radians per token.
Departs:  positions are in the frame of the token's orientation, which makes the layer equivariant.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import BACKENDS
from turnwise.attention.linear import KERNELS, LINEAR_BACKENDS, attend_linearly
from turnwise.attention.rotary import (
    attend_on_group,
    cross_frame_phases,
    own_frame_phases,
    window_mask,
)
from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import regular_to_tokens, tokens_to_regular
from turnwise.geometry.neighbourhoods import SHAPES, Neighbourhood
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import require_regular
from turnwise.layers.declarations import AttentionTaps
from turnwise.layers.tables import register_group, remakes_tables
from turnwise.layers.transformer.irreps import Irreps, to_irreps
from turnwise.layers.transformer.linear import GroupLinear, in_irreps
from turnwise.layers.transformer.plain import normalised

Tokens = Float[Tensor, "batch token group channel"]
Regular = Float[Tensor, "batch channel group row col"]
FRAMES = ("own", "cross")
MAX_MAPS = 6  # heads in `position_maps`


@remakes_tables
class GroupRotaryAttention(nn.Module):
    """Multi-head self-attention with rotary positions that rotate with the group element.

    frame="own" attends within each group element, y^h = W_o softmax(q^hᵀ R(h⁻¹(x'−x)) k^h/√d) v^h.
    It costs as much as a plain transformer of the same total width; the linear maps mix the group.
    frame="cross" attends across all group elements of all pixels, at |G| times the cost.

    Args:
        group: the group, by name ("C4", "D4", …) or as a `PlanarGroup`.
        channels: channels of each group element, a multiple of 2 · `num_heads` (of 2 |G| times that
            for frame="cross").
        num_heads: attention heads of each group element.
        linear: makes the projections, from (group, in_features, out_features).
        frame: "own" or "cross".
        kernel: a feature map for linear attention ("elu", "softplus", "relu", "exp"); None is
            softmax.
        window: only pixels within a window of this odd side; 0 is the whole image.
        shape: shape of the window, "disc" or "square".
        qk_norm: normalise queries and keys (RMSNorm), which keeps the scores bounded.
        wavelengths: shortest and longest initial wavelength, in pixels of the feature map.
        backend: implementation of attention, "auto" or "plain".

    Shape:
        - Input and output: (batch, channels, |G|, row, col), regular features.

    >>> GroupRotaryAttention("D4", 16, num_heads=2)(torch.randn(1, 16, 8, 7, 7)).shape
    torch.Size([1, 16, 8, 7, 7])
    """

    no_weight_decay = ("frequency",)
    to_query_key_value: Any  # as `linear` makes it
    to_output: Any
    matrices: Tensor
    relative: Tensor

    def __init__(  # noqa: PLR0913 - all but three are named and have a default
        self,
        group: PlanarGroup | str,
        channels: int,
        num_heads: int,
        *,
        linear: Callable[[PlanarGroup, int, int], nn.Module] = GroupLinear,
        frame: str = "own",
        kernel: str | None = None,
        window: int = 0,
        shape: str = "disc",
        qk_norm: bool = False,
        wavelengths: tuple[float, float] = (2.0, 32.0),
        backend: str = "auto",
    ) -> None:
        super().__init__()
        group = PlanarGroup.named(group)
        require_positive(channels=channels, num_heads=num_heads)
        require_known(frame, FRAMES, "frame")
        require_known(shape, SHAPES, "shape of a neighbourhood")
        if window:
            Neighbourhood(window, shape)  # raises an error for even windows
        if kernel is not None:
            require_known(kernel, KERNELS, "kernel")
            require(window == 0, f"window = {window}: linear attention has no window; use 0.")
        require_known(backend, BACKENDS if kernel is None else LINEAR_BACKENDS, "backend")
        require(
            0 < wavelengths[0] <= wavelengths[1],
            f"wavelengths = {wavelengths} must be positive, the shortest first; try (2.0, 32.0).",
        )
        self.group, self.channels, self.num_heads = group, channels, num_heads
        self.frame, self.kernel, self.backend = frame, kernel, backend
        self.window, self.shape, self.wavelengths = window, shape, wavelengths
        orbit = 2 if frame == "own" else 2 * group.order
        each = f" for {group.order} group elements" if orbit > 2 else ""
        require_divisible(
            channels, num_heads * orbit, "channels", f"{num_heads} heads of pairs{each}"
        )
        dim = channels // num_heads
        self.to_query_key_value = linear(group, channels, 3 * channels)
        self.to_output = linear(group, channels, channels)
        self.norm_query = nn.RMSNorm(dim) if qk_norm else None
        self.norm_key = nn.RMSNorm(dim) if qk_norm else None
        self.frequency = nn.Parameter(torch.empty(num_heads, dim // orbit, 2))
        self._register_tables()
        self.reset_parameters()

    def _register_tables(self) -> None:
        register_group(self, self.group, self.frequency.device)

    def reset_parameters(self) -> None:
        """Give each head all wavelengths from the shortest to the longest, in random directions."""
        heads, pairs, _ = self.frequency.shape
        shortest, longest = self.wavelengths
        steps = torch.linspace(math.log(shortest), math.log(longest), pairs)
        angle = 2 * math.pi * torch.rand(heads, pairs)
        waves = torch.stack([angle.cos(), angle.sin()], dim=-1) * 2 * math.pi
        with torch.no_grad():
            self.frequency.copy_(waves / steps.exp()[:, None])

    def forward(self, x: Regular) -> Regular:
        require_regular(x, self.group, self.channels)
        rows, cols = x.shape[3:]
        projected = self.to_query_key_value(regular_to_tokens(x))
        return tokens_to_regular(self.to_output(self._mixed(projected, rows, cols)), rows, cols)

    def in_irreps(self) -> bool:
        """Return whether both projections are in irreps and the class is not a subclass."""
        maps = (self.to_query_key_value, self.to_output)
        return type(self) is GroupRotaryAttention and all(map(in_irreps, maps))

    def mix_irreps(self, irreps: Irreps, rows: int, cols: int) -> Irreps:
        """Return the input of the output projection, if both projections are in irreps."""
        projected = self.to_query_key_value.leave_irreps(irreps)  # (batch·token, group, channel)
        mixed = self._mixed(projected.unflatten(0, (-1, rows * cols)), rows, cols)
        return to_irreps(mixed, self.to_output.irrep_basis())

    def _mixed(
        self, projected: Float[Tensor, "batch token group three"], rows: int, cols: int
    ) -> Tokens:
        split = projected.unflatten(-1, (3, self.num_heads, -1))
        query, key, value = split.unbind(3)  # each (batch, token, group, head, dim)
        query, key = normalised(self.norm_query, query), normalised(self.norm_key, key)
        positions = pixel_centres(rows, cols, projected.device).flatten(0, 1)
        return self._mix(query, key, value, positions).flatten(3)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        own = self.frame == "own"
        find_phases = own_frame_phases if own else cross_frame_phases
        phases = find_phases(self.frequency, self.matrices, positions)
        relative = None if own else self.relative
        if self.kernel is not None:
            options = {"kernel": self.kernel, "backend": self.backend}
            return attend_linearly(query, key, value, phases, relative, **options)
        mask = window_mask(positions, self.window, self.shape) if self.window else None
        return attend_on_group(query, key, value, phases, relative, mask, backend=self.backend)

    def attention_taps(self) -> AttentionTaps:
        first, heads = 2 * self.channels, self.num_heads
        return AttentionTaps(self.to_query_key_value, first, self.to_output, heads, "tokens")

    @torch.no_grad()
    def position_maps(self, side: int = 15) -> dict[str, Float[Tensor, "group row col"]]:
        """Return the mean of cos(hω·δ) over the frequencies ω of each head, for offsets δ.

        It is the factor of a score at offset δ if query and key are equal.
        """
        offsets = pixel_centres(side, side).flatten(0, 1).to(self.frequency)
        phases = own_frame_phases(self.frequency, self.matrices, offsets)
        maps = phases.cos().mean(dim=-1).cpu().unflatten(2, (side, side))  # (group, head, row, col)
        return {f"head {n}": maps[:, n] for n in range(min(MAX_MAPS, self.num_heads))}

    def extra_repr(self) -> str:
        kernel = f", kernel={self.kernel}" if self.kernel else ""
        window = f", window={self.window}" if self.window else ""
        return (
            f"{self.group}, {self.channels}, num_heads={self.num_heads}, "
            f"frame={self.frame}{kernel}{window}"
        )
