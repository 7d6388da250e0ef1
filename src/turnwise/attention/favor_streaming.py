"""Attention by random features on a CPU: a few pictures at a time, in what the caches hold.

The same numbers as `attend_by_features(favor_features(q), favor_features(k), v)`.  Features are
many times as large as what they are made of; here each is written once, and where there is to be a
backward pass, kept for it, but nothing else of their size is.

    φ_q = softmax(w·z),   φ_k = softmax over all tokens of (w·z − |z|²/2) + ε,   out = φ_q S / φ_q s
    S = Σ φ_k vᵀ,   s = Σ φ_k;      with  a = ∂out / φ_q s,  b = −a·out:
    ∂φ_q = a Sᵀ + b s,   ∂φ_k = v (Σ φ_q aᵀ)ᵀ + Σ φ_q b,   ∂v = φ_k Σ φ_q aᵀ

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; b from what came out as
          in Dao et al. 2022, "FlashAttention".
Symbols:  see `attention.favor`.  ε is added to the sums, which are small, not to the features.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.favor import (
    EPSILON,
    Features,
    Heads,
    Projection,
    SourceFeatures,
    SourceValues,
    Values,
    attend_by_features,
    favor_features,
)
from turnwise.attention.lean import gradients_of, may_be_lean, must_be_plain
from turnwise.errors import require_known

SourceHeads = Float[Tensor, "batch head source dim"]
FAVOR_BACKENDS = ("auto", "plain", "streaming")
AT_ONCE = 1 << 20  # features, 4 MiB in single precision: larger parts leave the caches


def attend_by_favor(
    query: Heads,
    key: SourceHeads,
    value: SourceValues,
    projection: Projection,
    *,
    backend: str = "auto",
) -> Values:
    """FAVOR+ with the stabiliser "sample": "auto" streams on a CPU, unless a graph is traced."""
    require_known(backend, FAVOR_BACKENDS, "backend")
    if backend == "plain" or (backend == "auto" and not may_be_lean(value)):
        return _formula(query, key, value, projection)
    fine = torch.promote_types(value.dtype, torch.float32)
    given = (x.to(fine) for x in (query, key, value, projection))
    mixed: Tensor = _Streamed.apply(*given, torch.is_grad_enabled())
    return mixed.to(value.dtype)


def _formula(query: Heads, key: SourceHeads, value: SourceValues, projection: Projection) -> Values:
    asking = favor_features(query, projection, of_keys=False)
    return attend_by_features(asking, favor_features(key, projection, of_keys=True), value)


def _rows(projection: Projection) -> Projection:
    """Of z = x / dim^¼, for x."""
    return projection * projection.shape[-1] ** -0.25


def _query_features(query: Heads, rows: Projection) -> Features:
    return (query @ rows.mT).softmax(dim=-1)


def _key_features(
    key: SourceHeads, rows: Projection
) -> tuple[SourceFeatures, Float[Tensor, "batch head 1 1"]]:
    """Without ε, and ε: where all features of a picture and head sum to 1, it is smaller, too."""
    half_square = key.square().sum(dim=-1, keepdim=True) * (key.shape[-1] ** -0.5 / 2)
    exponent = (key @ rows.mT).sub_(half_square)
    features = exponent.flatten(-2).softmax(dim=-1).view_as(exponent)
    return features, EPSILON["sample"] * features.amax(dim=(-2, -1), keepdim=True)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, query: Heads, key: SourceHeads, value: SourceValues, projection: Projection,
        keep: bool,
    ):  # fmt: skip
        rows, features = _rows(projection), []
        batch, heads, sources, dim = value.shape
        mixed = _room(value, query.shape[-2])
        total = value.new_empty(batch, heads, query.shape[-2], 1)
        state = value.new_empty(batch, heads, len(rows), dim + 1)  # S, and s in the last column
        with torch.autocast(value.device.type, enabled=False):
            for part in _parts(key, rows):
                asked, epsilon = _key_features(key[part], rows)
                said, sums = value[part], state[part]
                sums[..., :-1] = (asked.mT @ said).add_(epsilon * said.sum(dim=-2, keepdim=True))
                sums[..., -1:] = asked.sum(dim=-2)[..., None] + epsilon * sources
                asking = _query_features(query[part], rows)
                total[part] = asking @ sums[..., -1:]
                torch.div(asking @ sums[..., :-1], total[part], out=mixed[part])
                features += [asking, asked, epsilon] if keep else []
        ctx.save_for_backward(query, key, value, projection, mixed, total, state, *features)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Values):  # type: ignore[no-untyped-def]
        query, key, value, projection, mixed, total, state, *features = ctx.saved_tensors
        if must_be_plain(gradient):
            formula = partial(_formula, projection=projection)
            return *gradients_of(formula, (query, key, value), gradient), None, None
        rows = _rows(projection)
        to_query, to_key, to_value = (_room(x, x.shape[-2]) for x in (query, key, value))
        shrink = -(query.shape[-1] ** -0.5)  # the gradient of −|z|²/2 is this times the key
        with torch.autocast(value.device.type, enabled=False):
            for n, part in enumerate(_parts(key, rows)):
                asking, asked, epsilon = features[3 * n : 3 * n + 3]
                above = gradient[part] / total[part]
                below = -(above * mixed[part]).sum(dim=-1, keepdim=True)
                to_state, to_sums = asking.mT @ above, below.mT @ asking
                exponent = (torch.cat([above, below], dim=-1) @ state[part].mT).mul_(asking)
                to_query[part] = exponent @ rows
                heard = epsilon * to_state.sum(dim=-2, keepdim=True)
                torch.add(asked @ to_state, heard, out=to_value[part])
                exponent = (value[part] @ to_state.mT).add_(to_sums).mul_(asked)
                squares = shrink * exponent.sum(dim=-1, keepdim=True)
                torch.addcmul(exponent @ rows, squares, key[part], out=to_key[part])
        return to_query, to_key, to_value, None, None


def _room(like: Float[Tensor, "batch head source dim"], tokens: int) -> Tensor:
    """Memory for (batch, head, token, dim) in which the heads of a token lie side by side."""
    batch, heads, _, dim = like.shape
    return like.new_empty(batch, tokens, heads, dim).transpose(1, 2)


def _parts(key: SourceHeads, rows: Projection) -> list[slice]:
    """Slices of pictures whose features the caches can hold, one picture at least."""
    batch, heads, sources, _ = key.shape
    step = max(1, AT_ONCE // max(1, heads * sources * len(rows)))
    return [slice(start, start + step) for start in range(0, batch, step)]
