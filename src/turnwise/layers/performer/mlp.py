"""A perceptron of two layers; on a CPU a few tokens at a time, in what the cache holds.

    y = W₂ drop(gelu(W₁ x + b₁)) + b₂

Four times as many numbers stand between the layers as come in or go out.  Of these W₁ x + b₁ alone
is kept for the backward pass; what else was in the cache is made again.

Paper:    Vaswani et al. 2017, "Attention Is All You Need".
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.lean import gradients_of, may_be_lean, must_be_plain
from turnwise.errors import require_known
from turnwise.layers.performer.dropout import (
    Dropout,
    Key,
    draw_key,
    kept,
    scale_of_kept,
    sixteen_bits,
)
from turnwise.layers.performer.token_linear import map_rows, weight_gradient
from turnwise.layers.tables import has_hooks

Rows = Float[Tensor, "row width"]
PERCEPTRON_BACKENDS = ("auto", "plain")
AT_ONCE = 1 << 20  # numbers between the layers, 4 MiB in single precision


class MLP(nn.Module):
    """`backend` "plain" makes all tokens at once, "auto" does so wherever parts cannot be taken."""

    dropout: Any  # ours, or torch's, which takes no parts

    def __init__(
        self, width: int, hidden: int, dropout: nn.Module, *, backend: str = "auto"
    ) -> None:
        super().__init__()
        require_known(backend, PERCEPTRON_BACKENDS, "backend")
        self.backend = backend
        self.spread, self.gather = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "*many width"]) -> Float[Tensor, "*many width"]:
        if self.backend == "plain" or not self._may_take_parts(x):
            return self.gather(self.dropout(F.gelu(self.spread(x))))
        key = draw_key() if self.dropout.drops() else None
        maps = (self.spread.weight, self.spread.bias, self.gather.weight, self.gather.bias)
        given = (*maps, key, self.dropout.rate, torch.is_grad_enabled())
        mixed: Tensor = _InParts.apply(x.reshape(-1, x.shape[-1]), *given)
        return mixed.view_as(x)

    def _may_take_parts(self, x: Tensor) -> bool:
        """On a CPU, if the layers are as they were made, and nobody listens to them."""
        maps = (self.spread, self.gather)
        as_made = all(type(part) is nn.Linear and part.bias is not None for part in maps)
        return (
            may_be_lean(x)
            and not torch.is_autocast_enabled("cpu")
            and as_made
            and type(self.dropout) is Dropout
            and not has_hooks(self)
        )


def _formula(
    x: Rows, spread: Tensor, spread_bias: Tensor, gather: Tensor, gather_bias: Tensor,
    key: Key | None, rate: float,
) -> Rows:  # fmt: skip
    """The perceptron with the key of its dropout."""
    hidden = F.gelu(F.linear(x, spread, spread_bias))
    if key is not None:
        hidden = hidden * (_mask(hidden, slice(0, len(x)), key, rate) * scale_of_kept(rate))
    return F.linear(hidden, gather, gather_bias)


def _mask(hidden: Rows, part: slice, key: Key, rate: float) -> Rows:
    """What stays, 1, and what is dropped, 0, of a part of the rows."""
    rows, width = hidden.shape
    bits = sixteen_bits(key, part.start * width, (part.start + rows) * width)
    return kept(bits.view(rows, width), rate, hidden.dtype)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # noqa: PLR0913 - each tensor by itself
        ctx: Any, x: Rows, spread: Tensor, spread_bias: Tensor, gather: Tensor,
        gather_bias: Tensor, key: Key | None, rate: float, keep: bool,
    ):  # fmt: skip
        scaled = gather if key is None else gather * scale_of_kept(rate)
        out, befores = x.new_empty(len(x), len(gather)), []
        for part in _parts(x, spread):
            before = map_rows(x[part], spread, spread_bias)
            hidden = F.gelu(before)
            if key is not None:
                hidden *= _mask(hidden, part, key, rate)
            out[part] = map_rows(hidden, scaled, gather_bias)
            befores += [before] if keep else []
        ctx.save_for_backward(x, spread, spread_bias, gather, gather_bias, *befores)
        ctx.key, ctx.rate = key, rate
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Rows):  # type: ignore[no-untyped-def]
        x, spread, spread_bias, gather, gather_bias, *befores = ctx.saved_tensors
        if must_be_plain(gradient):
            given = (x, spread, spread_bias, gather, gather_bias)
            formula = partial(_formula, key=ctx.key, rate=ctx.rate)
            return *gradients_of(formula, given, gradient), None, None, None
        scale = 1.0 if ctx.key is None else scale_of_kept(ctx.rate)
        wanted = ctx.needs_input_grad[:5]
        to_x = torch.empty_like(x) if wanted[0] else None
        to_spread, to_bias, to_gather = (
            _sum_like(weight) if wanted[n] else None
            for n, weight in enumerate((spread, spread_bias, gather), start=1)
        )
        back, back_again = (gather * scale).mT, spread.mT
        for part, before in zip(_parts(x, spread), befores, strict=True):
            mask = 1.0 if ctx.key is None else _mask(before, part, ctx.key, ctx.rate)
            if to_gather is not None:
                to_gather += weight_gradient(gradient[part], F.gelu(before).mul_(mask))
            if not any(wanted[:3]):
                continue
            to_hidden = map_rows(gradient[part], back).mul_(mask)
            to_before = torch.ops.aten.gelu_backward(to_hidden, before)
            if to_x is not None:
                to_x[part] = map_rows(to_before, back_again)
            if to_spread is not None:
                to_spread += weight_gradient(to_before, x[part])
            if to_bias is not None:
                to_bias += to_before.sum(dim=0)
        last = gradient.sum(dim=0) if wanted[4] else None
        sums = [_rounded(to_spread, x), _rounded(to_bias, x), _rounded(to_gather, x, scale)]
        return to_x, *sums, last, None, None, None


def _sum_like(weight: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Where the gradients of all parts are summed, in single precision at least."""
    return torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))


def _rounded(found: Tensor | None, x: Rows, scale: float = 1.0) -> Tensor | None:
    return None if found is None else (found * scale).to(x.dtype)


def _parts(x: Rows, spread: Tensor) -> list[slice]:
    """Slices of rows whose numbers between the layers the caches can hold."""
    step = max(1, AT_ONCE // len(spread))
    return [slice(start, start + step) for start in range(0, len(x), step)]
