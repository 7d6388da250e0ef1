"""FAVOR+ attention on a CPU, a few images at a time, so that the features stay in the caches.

The same values as `attend_by_features(favor_features(q), favor_features(k), v)`.  The features are
many times larger than queries and keys; here they are written once, and kept only if there is to be
a backward pass.

    φ_q = softmax(w·z),   φ_k = softmax over all tokens of (w·z − |z|²/2) + ε,   out = φ_q S / φ_q s
    S = Σ φ_k vᵀ,   s = Σ φ_k;      with  a = ∂out / φ_q s,  b = −a·out:
    ∂φ_q = a Sᵀ + b s,   ∂φ_k = v (Σ φ_q aᵀ)ᵀ + Σ φ_q b,   ∂v = φ_k Σ φ_q aᵀ

Without it a training step of `performer` takes 1.17 times as long (benchmarks/performer_tricks).

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; b from the output as in
          Dao et al. 2022, "FlashAttention".
Symbols:  see `attention.favor`.  ε is added to the sums, which are small, not to the features.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.kernels.device import needs_plain_backward, plain_gradients

Heads = Float[Tensor, "batch head token dim"]
Features = Float[Tensor, "batch head token feature"]
SourceHeads = Float[Tensor, "batch head source dim"]
SourceFeatures = Float[Tensor, "batch head source feature"]
SourceValues = Float[Tensor, "batch head source dim_out"]
Values = Float[Tensor, "batch head token dim_out"]
Projection = Float[Tensor, "feature dim"]
MAX_FEATURES = 1 << 20  # at a time: 4 MiB in single precision; larger chunks leave the caches


def stream_favor(
    query: Heads,
    key: SourceHeads,
    value: SourceValues,
    projection: Projection,
    epsilon: float,
    formula: Callable[..., Tensor],
) -> Values:
    """Return FAVOR+ attention with the stabiliser "sample".

    `epsilon` is that of the key features.  `formula` computes the same from (query, key, value,
    projection) plainly; it serves the backward pass where that is differentiated again.
    """
    fine = torch.promote_types(value.dtype, torch.float32)
    inputs = (x.to(fine) for x in (query, key, value, projection))
    mixed: Tensor = _Streamed.apply(*inputs, epsilon, formula, torch.is_grad_enabled())
    return mixed.to(value.dtype)


def _scaled(projection: Projection) -> Projection:
    """Return the projection of x instead of z = x / dim^¼."""
    return projection * projection.shape[-1] ** -0.25


def _query_features(query: Heads, rows: Projection) -> Features:
    return (query @ rows.mT).softmax(dim=-1)


def _key_features(
    key: SourceHeads, rows: Projection, epsilon: float
) -> tuple[SourceFeatures, Float[Tensor, "batch head 1 1"]]:
    """Return the features without ε, scaled to sum 1 per image and head, and ε on that scale."""
    half_square = key.square().sum(dim=-1, keepdim=True) * (key.shape[-1] ** -0.5 / 2)
    exponent = (key @ rows.mT).sub_(half_square)
    features = exponent.flatten(-2).softmax(dim=-1).view_as(exponent)
    return features, epsilon * features.amax(dim=(-2, -1), keepdim=True)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, query: Heads, key: SourceHeads, value: SourceValues, projection: Projection,
        epsilon: float, formula: Callable[..., Tensor], keep: bool,
    ):  # fmt: skip
        rows, features = _scaled(projection), []
        batch, heads, sources, dim = value.shape
        mixed = _empty_heads(value, query.shape[-2])
        total = value.new_empty(batch, heads, query.shape[-2], 1)
        state = value.new_empty(batch, heads, len(rows), dim + 1)  # S, and s in the last column
        with torch.autocast(value.device.type, enabled=False):
            for chunk in _chunks(key, rows):
                of_keys, small = _key_features(key[chunk], rows, epsilon)
                values, sums = value[chunk], state[chunk]
                all_values = values.sum(dim=-2, keepdim=True)
                sums[..., :-1] = (of_keys.mT @ values).add_(small * all_values)
                sums[..., -1:] = of_keys.sum(dim=-2)[..., None] + small * sources
                of_queries = _query_features(query[chunk], rows)
                total[chunk] = of_queries @ sums[..., -1:]
                torch.div(of_queries @ sums[..., :-1], total[chunk], out=mixed[chunk])
                features += [of_queries, of_keys, small] if keep else []
        ctx.save_for_backward(query, key, value, projection, mixed, total, state, *features)
        ctx.formula = formula
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Values):  # type: ignore[no-untyped-def]
        query, key, value, projection, mixed, total, state, *features = ctx.saved_tensors
        if needs_plain_backward(gradient):
            formula = partial(ctx.formula, projection=projection)
            found = plain_gradients(formula, (query, key, value), gradient)
            return *found, None, None, None, None
        rows = _scaled(projection)
        to_query, to_key, to_value = (_empty_heads(x, x.shape[-2]) for x in (query, key, value))
        shrink = -(query.shape[-1] ** -0.5)  # the gradient of −|z|²/2 is this times the key
        with torch.autocast(value.device.type, enabled=False):
            for n, chunk in enumerate(_chunks(key, rows)):
                of_queries, of_keys, small = features[3 * n : 3 * n + 3]
                above = gradient[chunk] / total[chunk]
                below = -(above * mixed[chunk]).sum(dim=-1, keepdim=True)
                to_state, to_sums = of_queries.mT @ above, below.mT @ of_queries
                both = torch.cat([above, below], dim=-1)
                to_query[chunk] = (both @ state[chunk].mT).mul_(of_queries) @ rows
                shared = small * to_state.sum(dim=-2, keepdim=True)
                torch.add(of_keys @ to_state, shared, out=to_value[chunk])
                exponent = (value[chunk] @ to_state.mT).add_(to_sums).mul_(of_keys)
                squares = shrink * exponent.sum(dim=-1, keepdim=True)
                torch.addcmul(exponent @ rows, squares, key[chunk], out=to_key[chunk])
        return to_query, to_key, to_value, None, None, None, None


def _empty_heads(like: Float[Tensor, "batch head source dim"], tokens: int) -> Tensor:
    """Return memory for (batch, head, token, dim) in which the heads of a token are adjacent."""
    batch, heads, _, dim = like.shape
    return like.new_empty(batch, tokens, heads, dim).transpose(1, 2)


def _chunks(key: SourceHeads, rows: Projection) -> list[slice]:
    """Return slices of the batch whose features fit the caches, of one image at least."""
    batch, heads, sources, _ = key.shape
    step = max(1, MAX_FEATURES // max(1, heads * sources * len(rows)))
    return [slice(start, start + step) for start in range(0, batch, step)]
