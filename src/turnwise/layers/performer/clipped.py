"""Attention by content in half the heads, and by place, clipped at a distance, in the other half.

Paper:    Horn et al. 2021, "Translational Equivariance in Kernelizable Attention" (strategy 2).
Symbols:  see `attention.clipped`; `reach` is their clipping distance.
Departs:  variant="exact" has a vector for each near offset, not for each distance |rows| + |cols|,
          so it sees directions; the picture wraps, so it has no border; and the class token is far
          from everything.  As published ("tep-2021") it sits below the bottom left corner, and
          the projection of the heads by place is never drawn again.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.clipped import Steps, attend_by_place, near_steps
from turnwise.errors import require, require_divisible, require_known, require_positive
from turnwise.layers.performer.block import (
    VARIANTS,
    Answers,
    Heads,
    Tokens,
    kept_in_graph,
    linear_of,
    made_again,
    make_kernel,
    merge_heads,
    mix_by_kernel,
    split_heads,
    those_who_ask,
)

Asking = Float[Tensor, "batch head token feature"]
# the start of the table: what a feature likes, what not, what is far, and how much these differ;
# made into features these are about 9, 0.018 and 0.0025 by every kernel, and have a slope
STARTS = {
    "elu": (8.0, -4.0, -6.0, 0.5),
    "softplus": (8.0, -4.0, -6.0, 0.5),
    "relu": (9.0, 0.017, 0.0015, 0.002),
}


class ClippedAttention(nn.Module):
    """Tokens are the class token and side × side pixels, row by row; the context is not used."""

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
        require_divisible(heads, 2, "heads", "half of them look at contents, half at places")
        require_divisible(width, heads, "width", f"it is split over {heads} heads")
        self.published = variant == "tep-2021"
        require(
            self.published or kernel != "exp",
            "kernel = 'exp' knows a place by its largest channel alone, so that what is far could "
            f"not be quiet; take one of {', '.join(STARTS)}.",
        )
        most = (side + 1) // 2
        require(
            self.published or reach <= most,
            f"clipping_distance = {reach} reaches round a picture of {side} pixels; "
            f"try {most} or less.",
        )
        self.heads, self.side, self.reach, self.steps = heads, side, reach, near_steps(reach)
        dim = width // heads
        linear = linear_of(variant)
        self.to_query, self.to_key = linear(width, width), linear(width, width // 2)
        self.to_value, self.to_output = linear(width, width), linear(width, width)
        self.content_kernel = make_kernel(kernel, dim, variant)
        self.place_kernel = make_kernel(kernel, dim, variant, redrawn=not self.published)
        if self.published:
            self.table = nn.Parameter(torch.zeros(reach + 1, dim))
        else:
            self.table = nn.Parameter(_start_table(self.steps, dim, kernel))

    def forward(
        self, tokens: Tokens, context: Tensor | None = None, first_alone: bool = False
    ) -> Answers:
        if first_alone and self.published:  # where it has a place like the others
            return self(tokens, context)[:, :1]
        half = self.heads // 2
        query = split_heads(self.to_query(those_who_ask(tokens, first_alone)), self.heads)
        value = split_heads(self.to_value(tokens), self.heads)
        key = split_heads(self.to_key(tokens), half)
        by_content = mix_by_kernel(
            self.content_kernel, query[:, :half], key, value[:, :half], "auto"
        )
        if first_alone:  # to which all are equally far
            mean = value[:, half:].mean(dim=2, keepdim=True)
            by_place = kept_in_graph(mean, self.table)
        else:
            by_place = made_again(self, self._by_place, query[:, half:], value[:, half:])
        return self.to_output(merge_heads(torch.cat([by_content, by_place], dim=1)))

    def _by_place(self, query: Heads, value: Heads) -> Heads:
        asking = self.place_kernel(query, of_keys=False)
        table = self.place_kernel(self.table, of_keys=True)
        counted = F.pad(value.to(asking.dtype), (0, 1), value=1.0)  # the ones of the denominator
        everything = counted.sum(dim=2)
        mix = self._beside_the_corner if self.published else self._far_from_all
        return mix(asking, table, counted, everything).to(value.dtype)

    def _far_from_all(
        self, asking: Asking, table: Tensor, counted: Tensor, everything: Tensor
    ) -> Heads:
        """To the class token all are equally far: it hears their mean."""
        grid = (self.side, self.side)
        mixed = attend_by_place(
            asking[:, :, 1:].unflatten(2, grid), table[:-1], table[-1],
            counted[:, :, 1:].unflatten(2, grid), self.steps, everything=everything, wrap=True,
        )  # fmt: skip
        mean = everything[..., :-1] / everything[..., -1:]
        return torch.cat([mean[:, :, None], mixed.flatten(2, 3)], dim=2)

    def _beside_the_corner(
        self, asking: Asking, table: Tensor, counted: Tensor, everything: Tensor
    ) -> Heads:
        """The class token as the first pixel of one more row; the rest of that row is nobody."""
        grid = (self.side + 1, self.side)
        distance = [abs(row) + abs(col) for row, col in self.steps]
        mixed = attend_by_place(
            _class_last(asking, self.side - 1, 1.0).unflatten(2, grid), table[distance], table[-1],
            _class_last(counted, self.side - 1, 0.0).unflatten(2, grid), self.steps,
            everything=everything,
        )  # fmt: skip
        flat = mixed.flatten(2, 3)[:, :, : self.side**2 + 1]
        return torch.cat([flat[:, :, -1:], flat[:, :, :-1]], dim=2)


def _start_table(steps: Steps, dim: int, kernel: str) -> Float[Tensor, "place dim"]:
    """Each feature likes one step, the shortest first, and none likes what is far.

    So a query looks somewhere from the start; what is far is much, and would drown the rest.
    Random features, which are exponential, are told apart by less.
    """
    if kernel == "favor":
        return 0.3 * torch.randn(len(steps) + 1, dim)
    liked, disliked, far, spread = STARTS[kernel]
    near = disliked + spread * torch.randn(len(steps), dim).clamp(-3, 3)
    table = torch.cat([near, torch.full((1, dim), far)])
    shortest = sorted(range(len(steps)), key=lambda n: math.hypot(*steps[n]))
    own = [shortest[feature % len(steps)] for feature in range(dim)]
    table[own, torch.arange(dim)] += liked - disliked
    return table


def _class_last(
    x: Float[Tensor, "batch head token dim"], empty: int, fill: float
) -> Float[Tensor, "batch head place dim"]:
    """Pixels, class token, and places that nobody stands on: 0 to be heard, 1 to divide by."""
    return F.pad(torch.cat([x[:, :, 1:], x[:, :, :1]], dim=2), (0, 0, 0, empty), value=fill)
