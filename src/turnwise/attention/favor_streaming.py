"""Attention by random features on a CPU: a few heads at a time, and nothing kept of their features.

The same numbers as `attend_by_features(favor_features(q), favor_features(k), v)`.  Features are
many times as large as what they are made of, and cheap to make: here they live as long as the cache
holds them, and the backward pass makes them again.

    φ = exp(w·z − |z|²/2 − most) + ε,     S = Σ_s φ_k vᵀ,     z = Σ_s φ_k,     out = φ_q S / φ_q z

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; recomputation as in
          Dao et al. 2022, "FlashAttention".
Symbols:  see `attention.favor`; `lane` is a head of a picture.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.favor import (
    EPSILON,
    Heads,
    Projection,
    Values,
    attend_by_features,
    favor_exponents,
    favor_features,
)
from turnwise.checks import require_known

Lanes = Float[Tensor, "lane token dim"]
LaneFeatures = Float[Tensor, "lane token feature"]
LaneValues = Float[Tensor, "lane token dim_out"]
FAVOR_BACKENDS = ("auto", "plain", "streaming")
AT_ONCE = 1 << 19  # features, 2 MiB in single precision: what a core's cache holds


def attend_by_favor(
    query: Heads, key: Heads, value: Values, projection: Projection, *, backend: str = "auto"
) -> Values:
    """FAVOR+ with the stabiliser "sample": "auto" streams on a CPU, unless a graph is traced."""
    require_known(backend, FAVOR_BACKENDS, "backend")
    lean = value.device.type == "cpu" and not torch.compiler.is_compiling()
    if backend == "plain" or (backend == "auto" and not lean):
        asking = favor_features(query, projection, of_keys=False)
        return attend_by_features(asking, favor_features(key, projection, of_keys=True), value)
    fine = torch.promote_types(value.dtype, torch.float32)
    lanes = [x.flatten(0, 1).to(fine) for x in (query, key, value)]
    mixed: Tensor = _Streamed.apply(*lanes, projection.to(fine))
    return mixed.unflatten(0, query.shape[:2]).to(value.dtype)


def _features(x: Lanes, projection: Projection, of_keys: bool) -> LaneFeatures:
    """As `favor_features`, in place, and without the factor 1/√m, which divides out."""
    along, half_square = favor_exponents(x, projection)
    along -= half_square
    along -= along.amax(dim=(-2, -1) if of_keys else -1, keepdim=True)
    return along.exp_().add_(EPSILON["sample"])


def _back_through(
    x: Lanes, projection: Projection, features: LaneFeatures, gradient: LaneFeatures
) -> Lanes:
    """The gradient at x from that at its features; both are used up."""
    scale = x.shape[-1] ** -0.25
    exponent = gradient.mul_(features.sub_(EPSILON["sample"]))
    return exponent @ projection * scale - x * (exponent.sum(dim=-1, keepdim=True) * scale**2)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Lanes, key: Lanes, value: LaneValues, projection: Projection):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(query, key, value, projection)
        mixed = torch.empty_like(value, memory_format=torch.contiguous_format)
        with torch.autocast(value.device.type, enabled=False):
            for part in _parts(query, projection):
                asking = _features(query[part], projection, of_keys=False)
                asked = _features(key[part], projection, of_keys=True)
                total = asking @ asked.sum(dim=-2, keepdim=True).mT
                torch.div(asking @ (asked.mT @ value[part]), total, out=mixed[part])
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: LaneValues):  # type: ignore[no-untyped-def]
        query, key, value, projection = ctx.saved_tensors
        found = [torch.empty_like(x) for x in (query, key, value)]
        with torch.autocast(value.device.type, enabled=False):
            for part in _parts(query, projection):
                asking = _features(query[part], projection, of_keys=False)
                asked = _features(key[part], projection, of_keys=True)
                said, state = value[part], asked.mT @ value[part]
                sums = asked.sum(dim=-2, keepdim=True)  # (lane, 1, feature)
                total = asking @ sums.mT
                above = gradient[part] / total
                below = -(above * (asking @ state)).sum(dim=-1, keepdim=True) / total
                to_state, to_sums = asking.mT @ above, below.mT @ asking
                found[2][part] = asked @ to_state
                to_asking = (above @ state.mT).addcmul_(below, sums)
                to_asked = (said @ to_state.mT).add_(to_sums)
                found[0][part] = _back_through(query[part], projection, asking, to_asking)
                found[1][part] = _back_through(key[part], projection, asked, to_asked)
        return *found, None


def _parts(query: Lanes, projection: Projection) -> list[slice]:
    """Slices of lanes whose features the cache can hold, one lane at least."""
    step = max(1, AT_ONCE // (query.shape[1] * len(projection)))
    return [slice(start, start + step) for start in range(0, len(query), step)]
