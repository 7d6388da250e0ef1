"""Attention by content in half of the heads, and by clipped relative position in the others.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention" (strategy 2).
Symbols:  see `attention.clipped`; `reach` is their clipping distance.
Departs:  variant="exact" has a vector for each near offset, not for each distance |rows| + |cols|,
          so it distinguishes directions; the image is periodic; and the class token is far from all
          pixels.  As published ("tep-2021") the class token attends from below the bottom left
          corner, is itself far from all tokens, and the projection of the positional heads is never
          redrawn.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.clipped import Steps, attend_by_position, near_steps
from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.layers.performer.block import (
    VARIANTS,
    Heads,
    Outputs,
    Tokens,
    make_kernel,
    merge_heads,
    mix_by_kernel,
    query_tokens,
    split_heads,
    with_zero_gradient,
)

QueryFeatures = Float[Tensor, "batch head token feature"]
# the initial table: entries for a feature's own step, for other steps and for far ones, and their
# standard deviation; every kernel maps these to about 9, 0.018 and 0.0025, where it has a slope
INITIAL = {
    "elu": (8.0, -4.0, -6.0, 0.5),
    "softplus": (8.0, -4.0, -6.0, 0.5),
    "relu": (9.0, 0.017, 0.0015, 0.002),
}


class ClippedAttention(nn.Module):
    """Tokens are the class token and side × side pixels, row by row; the context is not used."""

    no_weight_decay = ("table",)

    def __init__(
        self,
        width: int,
        heads: int,
        side: int,
        reach: int,
        *,
        kernel: str = "elu",
        variant: str = "exact",
    ) -> None:
        super().__init__()
        require_known(variant, VARIANTS, "variant")
        require_positive(heads=heads, clipping_distance=reach)
        require_divisible(heads, 2, "heads", "half of them attend by content, half by position")
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.published = variant == "tep-2021"
        require(
            self.published or kernel != "exp",
            "kernel = 'exp' scales the vector of a position by its largest channel, so far ones "
            f"could not be small; use one of {', '.join(INITIAL)}.",
        )
        most = (side + 1) // 2
        require(
            self.published or reach <= most,
            f"clipping_distance = {reach} reaches round an image of {side} pixels; "
            f"try {most} or less.",
        )
        self.heads, self.side, self.reach, self.steps = heads, side, reach, near_steps(reach)
        dim = width // heads
        self.to_query, self.to_key = nn.Linear(width, width), nn.Linear(width, width // 2)
        self.to_value, self.to_output = nn.Linear(width, width), nn.Linear(width, width)
        self.content_kernel = make_kernel(kernel, dim, variant)
        self.place_kernel = make_kernel(kernel, dim, variant, redrawn=not self.published)
        if self.published:
            self.table = nn.Parameter(torch.zeros(reach + 1, dim))
        else:
            self.table = nn.Parameter(_initial_table(self.steps, dim, kernel))

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_only: bool = False
    ) -> Outputs:
        if first_only and self.published:  # there the class token has a position, too
            return self(tokens, context)[:, :1]
        half = self.heads // 2
        query = split_heads(self.to_query(query_tokens(tokens, first_only)), self.heads)
        value = split_heads(self.to_value(tokens), self.heads)
        key = split_heads(self.to_key(tokens), half)
        by_content = mix_by_kernel(
            self.content_kernel, query[:, :half], key, value[:, :half], "auto"
        )
        if first_only:  # all pixels are equally far from it
            mean = value[:, half:].mean(dim=2, keepdim=True)
            by_position = with_zero_gradient(mean, self.table)
        else:
            by_position = self._by_position(query[:, half:], value[:, half:])
        return self.to_output(merge_heads(torch.cat([by_content, by_position], dim=1)))

    def _by_position(self, query: Heads, value: Heads) -> Heads:
        query_features = self.place_kernel(query, of_keys=False)
        table = self.place_kernel(self.table, of_keys=True)
        # a channel of ones gives the denominator
        counted = F.pad(value.to(query_features.dtype), (0, 1), value=1.0)
        everything = counted.sum(dim=2)
        mix = self._class_token_below if self.published else self._class_token_far
        return mix(query_features, table, counted, everything).to(value.dtype)

    def _class_token_far(
        self, query: QueryFeatures, table: Tensor, counted: Tensor, everything: Tensor
    ) -> Heads:
        """Treat all pixels as equally far from the class token: its output is their mean."""
        grid = (self.side, self.side)
        mixed = attend_by_position(
            query[:, :, 1:].unflatten(2, grid), table[:-1], table[-1],
            counted[:, :, 1:].unflatten(2, grid), self.steps, everything=everything, wrap=True,
        )  # fmt: skip
        mean = everything[..., :-1] / everything[..., -1:]
        return torch.cat([mean[:, :, None], mixed.flatten(2, 3)], dim=2)

    def _class_token_below(
        self, query: QueryFeatures, table: Tensor, counted: Tensor, everything: Tensor
    ) -> Heads:
        """Let the class token attend from the start of one more row; no token is near that row."""
        grid = (self.side + 1, self.side)
        distance = [abs(row) + abs(col) for row, col in self.steps]
        last = torch.cat([query[:, :, 1:], query[:, :, :1]], dim=2)
        queries = F.pad(last, (0, 0, 0, self.side - 1), value=1.0)  # a denominator must not be 0
        values = F.pad(counted[:, :, 1:], (0, 0, 0, self.side))
        mixed = attend_by_position(
            queries.unflatten(2, grid), table[distance], table[-1], values.unflatten(2, grid),
            self.steps, everything=everything,
        )  # fmt: skip
        flat = mixed.flatten(2, 3)[:, :, : self.side**2 + 1]
        return torch.cat([flat[:, :, -1:], flat[:, :, :-1]], dim=2)


def _initial_table(steps: Steps, dim: int, kernel: str) -> Float[Tensor, "position dim"]:
    """Return a table in which each feature prefers one step, the shortest first, and none is far.

    So heads are local from the start; far positions are many and would dominate otherwise.  Random
    features, which are exponential, need smaller differences.
    """
    if kernel == "favor":
        return 0.3 * torch.randn(len(steps) + 1, dim)
    own, other, far, std = INITIAL[kernel]
    near = other + std * torch.randn(len(steps), dim).clamp(-3, 3)
    table = torch.cat([near, torch.full((1, dim), far)])
    shortest = sorted(range(len(steps)), key=lambda n: math.hypot(*steps[n]))
    preferred = [shortest[feature % len(steps)] for feature in range(dim)]
    table[preferred, torch.arange(dim)] += own - other
    return table
