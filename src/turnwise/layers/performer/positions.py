"""The planar frequencies of a layer, in periods across the picture.

"torus" ones are whole numbers, drawn once: circular shifts of the picture are exact, and no border
tells where anything is.  "free" ones are learned.

Positions in a Performer: learned sinusoids, the published relative attention, and waves.

Places are (row, column) in pixels, from any origin.  The first token is the class token, which has
no place: it hears and is heard by content alone.

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
    Answers,
    FavorKernel,
    FixedKernel,
    Heads,
    Tokens,
    kept_in_graph,
    made_again,
    merge_heads,
    mix_by_kernel,
    split_heads,
    those_who_ask,
)
from turnwise.layers.performer.token_linear import TokenLinear

FREQUENCIES = ("torus", "free")
REACHES = (1.0, 0.15)  # radians per pixel: of the sharpest waves, of the widest


def reaches(count: int) -> Float[Tensor, " {count}"]:
    """From the sharpest to the widest: sums of such waves are windows of about one over it."""
    sharpest, widest = (math.log(reach) for reach in REACHES)
    return torch.linspace(sharpest, widest, count).exp()


def set_frequency(
    layer: nn.Module, radians: Float[Tensor, "*many 2"], side: int, frequencies: str
) -> None:
    """`layer.frequency`, from radians per pixel of a picture of `side` pixels."""
    periods = radians * side / (2 * math.pi)
    if frequencies == "torus":
        layer.register_buffer("frequency", periods.round())
    else:
        layer.frequency = nn.Parameter(periods)


Places = Float[Tensor, "place 2"]


class LearnedSinusoids(nn.Module):
    """(sin ωt, cos ωt) of the row, then of the column; ω is learned, from T^(−j/count) on."""

    def __init__(self, count: int, longest: float) -> None:
        super().__init__()
        require_positive(count=count)
        self.frequency = nn.Parameter(longest ** (-torch.arange(count) / count))

    def forward(self, places: Places) -> Float[Tensor, "place pair 2"]:
        phase = (places.to(self.frequency)[:, :, None] * self.frequency).flatten(1)
        return torch.stack([phase.sin(), phase.cos()], dim=-1)


class PositionedAttention(nn.Module):
    """Strategy 1: positions are appended to queries and keys, and their product is relative.

    q̃ = [q; α s − β c, β s + α c],  k̃ = [k; s, c]   ⇒   q̃·k̃ = q·k + Σ α cos ω(t−t') + β sin ω(t−t')

    Exactly relative with the softmax (kernel=None); after the random features of a kernel, which
    must be made for dim + 2·pairs channels, only in expectation.  The context is the code of all
    tokens by `LearnedSinusoids`, zero for the class token.
    """

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
        self, tokens: Tokens, context: Float[Tensor, "token pair 2"], first_alone: bool = False
    ) -> Answers:
        query = split_heads(self.to_query(those_who_ask(tokens, first_alone)), self.heads)
        key, value = (split_heads(to(tokens), self.heads) for to in (self.to_key, self.to_value))
        sin, cos = context[: query.shape[2]].unbind(-1)
        alpha, beta = self.alpha[:, None], self.beta[:, None]
        turned = torch.stack([alpha * sin - beta * cos, beta * sin + alpha * cos], dim=-1)
        query = _append(query, turned.flatten(2))
        key = _append(key, context.flatten(1)[None])
        return self.to_output(merge_heads(mix_by_kernel(self.kernel, query, key, value, "auto")))


def _append(
    x: Float[Tensor, "batch head token dim"], code: Float[Tensor, "#head token more"]
) -> Float[Tensor, "batch head token both"]:
    return torch.cat([x, code.to(x.dtype).expand(*x.shape[:3], -1)], dim=-1)


class WaveAttention(nn.Module):
    """Strategy 1 made exact: contents give the size of each wave, positions only its phase.

    The context is the places of all tokens but the first.  frequencies="torus" are 2π/side times
    whole numbers, drawn once: circular shifts of a picture of `side` pixels are exact, and no
    border tells where the object is.  "free" ones are learned.  What is heard is brought to a mean
    square of 1, for waves cancel.
    """

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
        self.to_query, self.to_key = TokenLinear(width, width), TokenLinear(width, width)
        self.to_value, self.to_output = TokenLinear(width, width), TokenLinear(width, width)
        self.lead = nn.Parameter(torch.zeros(heads, kernel.features))
        drawn = torch.randn(heads, kernel.features, 2) * reaches(heads)[:, None, None]
        set_frequency(self, drawn, side, frequencies)

    def forward(self, tokens: Tokens, context: Places, first_alone: bool = False) -> Answers:
        query = split_heads(self.to_query(those_who_ask(tokens, first_alone)), self.heads)
        key, value = (split_heads(to(tokens), self.heads) for to in (self.to_key, self.to_value))
        if first_alone:  # which has no place
            heard = mix_by_kernel(self.kernel, query, key, value, self.backend)
            mixed = kept_in_graph(_rms_normed(heard), self.lead, self.frequency)
        else:
            mixed = made_again(self, self._mix, query, key, value, context)
        return self.to_output(merge_heads(mixed))

    def _mix(self, query: Heads, key: Heads, value: Heads, context: Places) -> Heads:
        features = self.kernel(query, of_keys=False), self.kernel(key, of_keys=True)
        fine = torch.promote_types(self.frequency.dtype, torch.float32)  # or periods are rounded
        turns = (self.frequency[:, None].to(fine) * context[:, None].to(fine)).sum(dim=-1)
        phases = turns * (2 * math.pi / self.side)  # (head, place, feature)
        mixed = attend_by_waves(*features, value, phases, self.lead, backend=self.backend)
        return _rms_normed(mixed)


def _rms_normed(x: Heads) -> Heads:
    return F.rms_norm(x, x.shape[-1:], eps=1e-8)
