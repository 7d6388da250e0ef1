"""Rotary attention at a cost linear in the tokens: a feature map in the place of the softmax.

    out(x, h) = Σ F_q·F_k v / Σ ν_q·ν_k ,      f = P_h φ(·),   F = R(x) f,   ν_p = |f_p|

Positions turn the features *after* the feature map φ, so the weights depend on relative position
and pose exactly, for any φ.  The denominator takes the length ν of each pair of channels, which no
turn changes and which bounds the numerator: |F_q·F_k| ≤ ν_q·ν_k, so that the weights of a query
never sum to more than 1 in size, however the phases fall.  Sums over the keys come first: one state
S = Σ F_k vᵀ,  z = Σ ν_k  serves every query.

Paper:    Katharopoulos et al. 2020, "Transformers are RNNs" (elu + 1, the state);
          Su et al. 2021, "RoFormer" (turned numerator, unturned denominator).
Symbols:  as in `attention.rotary`; a seat is a token (own frame) or a token in a pose (cross).
Departs:  frequencies and features turn with the pose; RoFormer's denominator Σ f_q·f_k does not
          bound the weights; sums are kept in single precision at least.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.rotary import (
    Features,
    Phases,
    Slots,
    Table,
    Values,
    cos_and_sin,
    from_slots,
    rotate_pairs,
    steer_orbit,
    to_slots,
)
from turnwise.errors import require_known

Lengths = Float[Tensor, "batch slot seat pair"]
SlotValues = Float[Tensor, "batch slot seat dim_out"]
LINEAR_BACKENDS = ("auto", "plain", "state")
RELU_FLOOR = 1e-3  # keeps a token that likes nothing from dividing by 0
LEAST_EXPONENT = -40.0  # and this others: the product of two such features is above 0 in float32


def elu_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """elu(x) + 1, written so that below zero it stays exp(x), down to that of −40."""
    return x.clamp(LEAST_EXPONENT, 0).exp() + x.relu()


def relu_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """max(x, 0), and a little."""
    return x.relu() + RELU_FLOOR


def exp_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(x − max x), each token by its own largest channel, so that nothing overflows.

    That channel is 1, so others may be as small as the product of two features.
    """
    return (x - x.amax(dim=-1, keepdim=True)).clamp(min=2 * LEAST_EXPONENT).exp()


def softplus_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 + exp x), which below zero is about exp(x)."""
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
    """Σ (F_q·F_k) v / Σ ν_q·ν_k: in each pose's own frame, or with `relative` across the frames."""
    require_known(kernel, KERNELS, "kernel")
    require_known(backend, LINEAR_BACKENDS, "backend")
    fine = torch.promote_types(value.dtype, torch.float32)
    query, key = KERNELS[kernel](query.to(fine)), KERNELS[kernel](key.to(fine))
    if relative is not None:
        query, key = steer_orbit(query, relative), steer_orbit(key, relative)
    cos, sin = cos_and_sin(phases)
    turned = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
    lengths = pair_lengths(query), pair_lengths(key)
    seats = [to_slots(x, relative) for x in (*turned, *lengths, value.to(fine))]
    mix = _mix_plainly if backend == "plain" else _mix_by_state
    with torch.autocast(value.device.type, enabled=False):  # it would round the sums
        mixed = mix(*seats)
    return from_slots(mixed, value, relative).to(value.dtype)


def pair_lengths(features: Float[Tensor, "*many dim"]) -> Float[Tensor, "*many pair"]:
    """|f_p| of each pair (p, p + dim/2): what a rotation does not change."""
    first, second = features.chunk(2, dim=-1)
    return torch.hypot(first, second)


def _mix_plainly(
    query: Slots, key: Slots, query_length: Lengths, key_length: Lengths, value: SlotValues
) -> SlotValues:
    """As the formula reads, with every weight written out."""
    weight = torch.einsum("bntd,bnsd->bnts", query, key)
    total = torch.einsum("bntp,bnsp->bnt", query_length, key_length)
    return torch.einsum("bnts,bnsd->bntd", weight, value) / total[..., None]


def _mix_by_state(
    query: Slots, key: Slots, query_length: Lengths, key_length: Lengths, value: SlotValues
) -> SlotValues:
    """The sums over the keys first: nothing has the size of seats × seats."""
    state = key.mT @ value  # (batch, slot, dim, dim_out)
    total = query_length @ key_length.sum(dim=-2, keepdim=True).mT  # (batch, slot, seat, 1)
    return query @ state / total
