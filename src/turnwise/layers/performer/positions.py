"""Positions in a Performer: learned sinusoids, the published relative attention, and waves.

Positions are (row, column) in pixels, from any origin.  The first token is the class token, which
has no position: its weights depend on content alone.

Frequencies are in periods per image.  "torus" ones are whole numbers, drawn once, so circular
shifts of the image are exact and nothing marks the border.  "free" ones are learned.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention" (strategy 1).
Symbols:  ω frequencies;  α, β of `PositionedAttention` are r cos θ and r sin θ of `WaveAttention`.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.favor import attend_by_waves
from turnwise.errors import require_divisible, require_known, require_positive
from turnwise.layers.performer.block import (
    FavorKernel,
    FixedKernel,
    Heads,
    Outputs,
    Tokens,
    merge_heads,
    mix_by_kernel,
    query_tokens,
    split_heads,
    with_zero_gradient,
)

FREQUENCIES = ("torus", "free")
REACHES = (1.0, 0.15)  # radians per pixel: the highest and the lowest frequency
Positions = Float[Tensor, "position 2"]


def reaches(count: int) -> Float[Tensor, " {count}"]:
    """Return scales of frequencies; a sum of waves of scale s is a window of width about 1 / s."""
    highest, lowest = (math.log(reach) for reach in REACHES)
    return torch.linspace(highest, lowest, count).exp()


def set_frequency(
    layer: nn.Module, radians: Float[Tensor, "*many 2"], side: int, frequencies: str
) -> None:
    """Set `layer.frequency` from radians per pixel of an image of `side` pixels."""
    periods = radians * side / (2 * math.pi)
    if frequencies == "torus":
        layer.register_buffer("frequency", periods.round())
    else:
        layer.frequency = nn.Parameter(periods)


class LearnedSinusoids(nn.Module):
    """(sin ωt, cos ωt) of the row, then of the column; ω is learned, starting at T^(−j/count)."""

    def __init__(self, count: int, longest: float) -> None:
        super().__init__()
        require_positive(count=count)
        self.frequency = nn.Parameter(longest ** (-torch.arange(count) / count))

    def forward(self, positions: Positions) -> Float[Tensor, "position pair 2"]:
        phase = (positions.to(self.frequency)[:, :, None] * self.frequency).flatten(1)
        return torch.stack([phase.sin(), phase.cos()], dim=-1)


class PositionedAttention(nn.Module):
    """Strategy 1: positions are appended to queries and keys, and their product is relative.

    q̃ = [q; α s − β c, β s + α c],  k̃ = [k; s, c]   ⇒   q̃·k̃ = q·k + Σ α cos ω(t−t') + β sin ω(t−t')

    Exactly relative with the softmax (kernel=None); after the random features of a kernel, which
    must be made for dim + 2·pairs channels, only in expectation.  The context is the encoding of
    all tokens by `LearnedSinusoids`, zero for the class token.
    """

    no_weight_decay = ("alpha", "beta")

    def __init__(
        self, width: int, heads: int, pairs: int, kernel: FavorKernel | FixedKernel | None
    ) -> None:
        super().__init__()
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.heads, self.kernel = heads, kernel
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        self.to_value, self.to_output = nn.Linear(width, width), nn.Linear(width, width)
        self.alpha = nn.Parameter(torch.randn(heads, pairs))
        self.beta = nn.Parameter(torch.randn(heads, pairs))

    def forward(
        self, tokens: Tokens, context: Float[Tensor, "token pair 2"], first_only: bool = False
    ) -> Outputs:
        query = split_heads(self.to_query(query_tokens(tokens, first_only)), self.heads)
        key, value = (split_heads(to(tokens), self.heads) for to in (self.to_key, self.to_value))
        sin, cos = context[: query.shape[2]].unbind(-1)
        alpha, beta = self.alpha[:, None], self.beta[:, None]
        rotated = torch.stack([alpha * sin - beta * cos, beta * sin + alpha * cos], dim=-1)
        query = _append(query, rotated.flatten(2))
        key = _append(key, context.flatten(1)[None])
        return self.to_output(merge_heads(mix_by_kernel(self.kernel, query, key, value, "auto")))


def _append(
    x: Float[Tensor, "batch head token dim"], encoding: Float[Tensor, "#head token more"]
) -> Float[Tensor, "batch head token both"]:
    return torch.cat([x, encoding.to(x.dtype).expand(*x.shape[:3], -1)], dim=-1)


class WaveAttention(nn.Module):
    """Strategy 1 made exact: content sets the amplitude of each wave, position only its phase.

    The context is the positions of all tokens but the first.  frequencies="torus" are 2π/side times
    whole numbers, drawn once: circular shifts of an image of `side` pixels are exact.  "free" ones
    are learned.  The output is scaled to a mean square of 1, because waves nearly cancel.
    """

    no_weight_decay = ("frequency", "lead")
    frequency: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        side: int,
        kernel: FavorKernel | FixedKernel,
        *,
        frequencies: str = "torus",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        require_known(frequencies, FREQUENCIES, "frequencies")
        self.heads, self.kernel, self.backend, self.side = heads, kernel, backend, side
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width)
        self.to_value, self.to_output = nn.Linear(width, width), nn.Linear(width, width)
        self.lead = nn.Parameter(torch.zeros(heads, kernel.features))
        drawn = torch.randn(heads, kernel.features, 2) * reaches(heads)[:, None, None]
        set_frequency(self, drawn, side, frequencies)

    def forward(self, tokens: Tokens, context: Positions, first_only: bool = False) -> Outputs:
        query = split_heads(self.to_query(query_tokens(tokens, first_only)), self.heads)
        key, value = (split_heads(to(tokens), self.heads) for to in (self.to_key, self.to_value))
        if first_only:  # the class token has no position
            mixed = _rms_norm(mix_by_kernel(self.kernel, query, key, value, self.backend))
            mixed = with_zero_gradient(mixed, self.lead, self.frequency)
        else:
            mixed = self._mix(query, key, value, context)
        return self.to_output(merge_heads(mixed))

    def _mix(self, query: Heads, key: Heads, value: Heads, context: Positions) -> Heads:
        features = self.kernel(query, of_keys=False), self.kernel(key, of_keys=True)
        fine = torch.promote_types(self.frequency.dtype, torch.float32)  # or periods are rounded
        periods = (self.frequency[:, None].to(fine) * context[:, None].to(fine)).sum(dim=-1)
        phases = periods * (2 * math.pi / self.side)  # (head, position, feature)
        mixed = attend_by_waves(*features, value, phases, self.lead, backend=self.backend)
        return _rms_norm(mixed)


def _rms_norm(x: Heads) -> Heads:
    return F.rms_norm(x, x.shape[-1:], eps=1e-8)
