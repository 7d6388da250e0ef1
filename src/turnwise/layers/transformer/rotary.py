"""Self-attention on the group with rotary positions.

Paper:    Su et al. 2021, "RoFormer"; Heo et al. 2024, "Rotary Position Embedding for Vision
          Transformer".
Symbols:  see `attention.rotary` and `attention.linear`; ω is `frequency`, in radians per token.
Departs:  positions are seen from the pose of the token, which makes the layer equivariant.
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
from turnwise.errors import InputError, require, require_divisible, require_known, require_positive
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import SHAPES, Neighbourhood
from turnwise.groups import PlanarGroup
from turnwise.layers.tables import register_group, remakes_tables
from turnwise.layers.transformer.irreps import Irreps, to_irreps
from turnwise.layers.transformer.linear import GroupLinear, in_irreps

Tokens = Float[Tensor, "batch token group channel"]
FRAMES = ("own", "cross")


@remakes_tables
class GroupRotaryAttention(nn.Module):
    """Multi-head self-attention whose positions turn with the poses.

    frame="own":    y^h = W_o softmax(q^hᵀ R(h⁻¹(x'−x)) k^h / √dim) v^h.  A head belongs to a pose;
                    poses mix in the linear maps alone; the cost is that of a plain transformer of
                    the same total width.
    frame="cross":  every pose attends to all poses of all tokens; |G| times the cost.
    kernel="elu":   (or "softplus", "exp") the same at a cost linear in the tokens, no softmax.
    window=k:       only tokens in a k × k `shape` around; 0 is the whole picture.
    linear:         how queries, keys, values and the output are projected; a part that obeys the
                    law, made by linear(group, in_width, out_width).
    wavelengths:    the shortest and the longest that learning starts from, in tokens.
    """

    to_query_key_value: Any  # as `linear` makes it
    to_output: Any
    matrices: Tensor
    relative: Tensor

    def __init__(  # noqa: PLR0913 - all but three are named and have a default
        self,
        group: PlanarGroup,
        width: int,
        heads: int,
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
        require_positive(heads=heads)
        require_known(frame, FRAMES, "frame")
        require_known(shape, SHAPES, "shape of a neighbourhood")
        if window:
            Neighbourhood(window, shape)  # refuses even windows
        if kernel is not None:
            require_known(kernel, KERNELS, "kernel")
            require(window == 0, f"window = {window}: linear attention has no window; take 0.")
        require_known(backend, BACKENDS if kernel is None else LINEAR_BACKENDS, "backend")
        require(
            0 < wavelengths[0] <= wavelengths[1],
            f"wavelengths = {wavelengths} must be positive, the shortest first; try (2.0, 32.0).",
        )
        self.group, self.heads, self.frame, self.kernel = group, heads, frame, kernel
        self.window, self.shape, self.backend = window, shape, backend
        self.wavelengths = wavelengths
        orbit = 2 if frame == "own" else 2 * group.order
        reason = f"{heads} heads of pairs" + (f" for {group.order} poses" if orbit > 2 else "")
        require_divisible(width, heads * orbit, "width", reason)
        dim = width // heads
        self.to_query_key_value = linear(group, width, 3 * width)
        self.to_output = linear(group, width, width)
        self.norm_query = nn.RMSNorm(dim) if qk_norm else None
        self.norm_key = nn.RMSNorm(dim) if qk_norm else None
        self.frequency = nn.Parameter(torch.empty(heads, dim // orbit, 2))
        self._register_tables()
        self.reset_parameters()

    def _register_tables(self) -> None:
        register_group(self, self.group, self.frequency.device)

    def reset_parameters(self) -> None:
        """Each head has every length from the shortest wave to the longest, in all directions."""
        heads, pairs, _ = self.frequency.shape
        shortest, longest = self.wavelengths
        steps = torch.linspace(math.log(shortest), math.log(longest), pairs)
        angle = 2 * math.pi * torch.rand(heads, pairs)
        waves = torch.stack([angle.cos(), angle.sin()], dim=-1) * 2 * math.pi
        with torch.no_grad():
            self.frequency.copy_(waves / steps.exp()[:, None])

    def forward(self, tokens: Tokens, rows: int, cols: int) -> Tokens:
        if tokens.shape[1:3] != (rows * cols, self.group.order):  # a message is not to be traced
            raise InputError(
                f"{rows} x {cols} tokens in {self.group.order} poses expected, "
                f"got {tokens.shape[1]} in {tokens.shape[2]}."
            )
        return self.to_output(self._mixed(self.to_query_key_value(tokens), rows, cols))

    def in_irreps(self) -> bool:
        """Whether both projections work in irreps, and nothing was put in the place of anything."""
        maps = (self.to_query_key_value, self.to_output)
        return type(self) is GroupRotaryAttention and all(map(in_irreps, maps))

    def mix_irreps(self, irreps: Irreps, rows: int, cols: int) -> Irreps:
        """What the output is projected from, where both projections work in irreps."""
        projected = self.to_query_key_value.leave_irreps(irreps)  # (batch·token, group, channel)
        mixed = self._mixed(projected.unflatten(0, (-1, rows * cols)), rows, cols)
        return to_irreps(mixed, self.to_output.pose_basis())

    def _mixed(
        self, projected: Float[Tensor, "batch token group three"], rows: int, cols: int
    ) -> Tokens:
        """Values of other tokens, by queries and keys."""
        split = projected.unflatten(-1, (3, self.heads, -1))
        query, key, value = split.unbind(3)  # each (batch, token, group, head, dim)
        query, key = _normed(self.norm_query, query), _normed(self.norm_key, key)
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

    def extra_repr(self) -> str:
        return (
            f"{self.group.name}, heads={self.heads}, frame={self.frame}, kernel={self.kernel}, "
            f"window={self.window}"
        )


def _normed(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
    """In the precision of the norm's weight, which autocast leaves to us."""
    return x if norm is None else norm(x.to(norm.weight.dtype))
