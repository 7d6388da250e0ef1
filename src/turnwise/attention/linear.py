"""Rotary attention with a cost linear in the tokens: a feature map instead of the softmax.

    out(x, h) = Σ F_q·F_k v / Σ ν_q·ν_k ,      f = P_h φ(·),   F = R(x) f,   ν_p = |f_p|

Positions rotate the features *after* the feature map φ, so the weights depend on the relative pose
exactly, for any φ.  The denominator takes the norm ν of each pair of channels, which no rotation
changes and which bounds the numerator: |F_q·F_k| ≤ ν_q·ν_k, so the absolute weights of a query
never sum to more than 1.  The sums over the keys are computed once: one state S = Σ F_k vᵀ,
z = Σ ν_k  serves every query.

Paper:    Katharopoulos et al. 2020, "Transformers are RNNs" (elu + 1, the state);
          Su et al. 2021, "RoFormer" (rotated numerator, unrotated denominator).
Symbols:  as in `attention.rotary`.
Departs:  frequencies and features are rotated with the orientation; RoFormer's denominator
          Σ f_q·f_k does not bound the weights; sums are in single precision at least.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.rotary import (
    Features,
    Phases,
    Sequences,
    Table,
    Values,
    cos_and_sin,
    from_sequences,
    rotate_pairs,
    steer_orbit,
    to_sequences,
)
from turnwise.errors import require_known

PairNorms = Float[Tensor, "batch sequence item pair"]
SequenceValues = Float[Tensor, "batch sequence item dim_out"]
LINEAR_BACKENDS = ("auto", "plain", "state")
RELU_FLOOR = 1e-3  # against division by 0 where all features vanish
LEAST_EXPONENT = -40.0  # likewise: the product of two such features is above 0 in float32


def elu_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return elu(x) + 1; below zero it is computed as exp(x), down to exp(−40)."""
    return x.clamp(LEAST_EXPONENT, 0.0).exp() + x.relu()


def relu_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return max(x, 0) plus a small constant."""
    return x.relu() + RELU_FLOOR


def exp_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return exp(x − max x), with the maximum over the channels of each token.

    The largest feature is 1, so others may be as small as the product of two features.
    """
    return (x - x.amax(dim=-1, keepdim=True)).clamp(min=2 * LEAST_EXPONENT).exp()


def softplus_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return log(1 + exp x), which below zero is about exp(x)."""
    return F.softplus(x.clamp(min=LEAST_EXPONENT))


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_features,
    "relu": relu_features,
    "softplus": softplus_features,
    "exp": exp_features,
}


def attend_linearly(
    query: Features,
    key: Features,
    value: Values,
    phases: Phases,
    relative: Table | None = None,
    *,
    kernel: str = "elu",
    backend: str = "auto",
) -> Values:
    """Return Σ (F_q·F_k) v / Σ ν_q·ν_k, in the own frame or, with `relative`, across frames."""
    require_known(kernel, KERNELS, "kernel")
    require_known(backend, LINEAR_BACKENDS, "backend")
    fine = torch.promote_types(value.dtype, torch.float32)
    query, key = KERNELS[kernel](query.to(fine)), KERNELS[kernel](key.to(fine))
    if relative is not None:
        query, key = steer_orbit(query, relative), steer_orbit(key, relative)
    cos, sin = cos_and_sin(phases)
    rotated = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
    norms = pair_norms(query), pair_norms(key)
    sequences = [to_sequences(x, relative) for x in (*rotated, *norms, value.to(fine))]
    mix = _mix_plainly if backend == "plain" else _mix_by_state
    with torch.autocast(value.device.type, enabled=False):  # which would round the sums
        mixed = mix(*sequences)
    return from_sequences(mixed, value, relative).to(value.dtype)


def pair_norms(features: Float[Tensor, "*many dim"]) -> Float[Tensor, "*many pair"]:
    """Return |f_p| of each pair (p, p + dim/2), which a rotation does not change."""
    pairs = torch.stack(features.chunk(2, dim=-1))
    return torch.linalg.vector_norm(pairs, dim=0)  # ONNX has no hypot


def _mix_plainly(
    query: Sequences,
    key: Sequences,
    query_norm: PairNorms,
    key_norm: PairNorms,
    value: SequenceValues,
) -> SequenceValues:
    """Compute every weight, as in the formula."""
    weight = torch.einsum("bntd,bnsd->bnts", query, key)
    total = torch.einsum("bntp,bnsp->bnt", query_norm, key_norm)
    return torch.einsum("bnts,bnsd->bntd", weight, value) / total[..., None]


def _mix_by_state(
    query: Sequences,
    key: Sequences,
    query_norm: PairNorms,
    key_norm: PairNorms,
    value: SequenceValues,
) -> SequenceValues:
    """Compute the sums over the keys first; no tensor has size items × items."""
    state = key.mT @ value  # (batch, sequence, dim, dim_out)
    total = query_norm @ key_norm.sum(dim=-2, keepdim=True).mT  # (batch, sequence, item, 1)
    return query @ state / total
