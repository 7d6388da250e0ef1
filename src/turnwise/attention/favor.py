"""Attention by positive features: the kernel of the softmax at random, and positions as waves.

    out_t = Σ_s w_ts v_s / Σ_s u_ts

    FAVOR+:   w = u = φ(q)·φ(k),   φ(x)_i = exp(w_i·z − |z|²/2) / √m,   z = x / dim^¼
              E[φ(q)·φ(k)] = exp(q·k / √dim) over random rows w_i, m of them
    waves:    w = Σ_j r_j(q) r_j(k) cos(ω_j·(x' − x) + θ_j),   u = Σ_j r_j(q) r_j(k)
              r any positive features of the content alone, so that |w| ≤ u for all positions

Both are sums of products, so the sums over the keys come first and serve every query: the cost is
linear in the tokens.  Waves depend on relative positions exactly, for any r; random features of
contents and positions mixed (the published relative Performer) do so only in expectation.

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; Horn et al. 2021,
          "Translational Equivariance in Kernelizable Attention" (α cos + β sin = r cos(· − θ)).
Symbols:  t, s tokens that ask and answer; i a feature; j a wave; ω, θ its frequency and phase.
Departs:  stabiliser="sample": what all features of a query share divides out, so they are made to
          sum to 1, and |z|² is left out; the largest feature of the keys of a sample and head is
          scaled to 1, without a gradient, and epsilon, added to keys alone, is relative to it.
          "published" takes one maximum over the whole batch, lets gradients through, and adds 1e-4
          to what is left, of queries too.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.linear import LINEAR_BACKENDS
from turnwise.errors import require_known, require_positive

Heads = Float[Tensor, "batch head token dim"]
Features = Float[Tensor, "batch head token feature"]
SourceFeatures = Float[Tensor, "batch head source feature"]
TableFeatures = Float[Tensor, "*many feature"]
Projection = Float[Tensor, "feature dim"]
Values = Float[Tensor, "batch head token dim_out"]
SourceValues = Float[Tensor, "batch head source dim_out"]
STABILISERS = ("sample", "published")
EPSILON = {"sample": 1e-6, "published": 1e-4}


def feature_count(dim: int) -> int:
    """⌊dim · ln dim⌋, the number of random features for a head of `dim` channels; at least 1."""
    require_positive(dim=dim)
    return max(1, int(dim * math.log(dim)))


def orthogonal_projection(
    features: int, dim: int, generator: torch.Generator, *, fix_signs: bool = True
) -> Float[Tensor, "{features} {dim}"]:
    """Rows that are orthogonal in blocks of `dim`, each with the length of a normal vector.

    Without fixed signs the factor Q is not uniform over all rotations, as published.  In double
    precision on the CPU, so that a seed gives the same rows everywhere.
    """
    require_positive(features=features, dim=dim)
    blocks = []
    for _ in range(-(-features // dim)):
        square = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        turn, upper = torch.linalg.qr(square)
        blocks.append((turn * upper.diagonal().sign() if fix_signs else turn).mT)
    lengths = torch.randn(features, dim, generator=generator, dtype=torch.float64).norm(dim=-1)
    return torch.cat(blocks)[:features] * lengths[:, None]


def favor_exponents(
    x: Float[Tensor, "*many dim"], projection: Projection
) -> tuple[TableFeatures, Float[Tensor, "*many 1"]]:
    """w_i·z and |z|²/2; the exponent of feature i is their difference."""
    scaled = x * x.shape[-1] ** -0.25
    half_square = scaled.square().sum(dim=-1, keepdim=True) / 2
    return scaled @ projection.to(x.dtype).mT, half_square


def favor_features(
    x: Float[Tensor, "*many token dim"],
    projection: Projection,
    *,
    of_keys: bool,
    stabiliser: str = "sample",
) -> Float[Tensor, "*many token feature"]:
    """φ(x), up to a factor that attention divides out: of each query, of all keys together.

    The factor keeps exp from overflowing.  Where it is shared by a batch ("published"), epsilon
    lets one picture change the answer to another.  In single precision at least.
    """
    require_known(stabiliser, STABILISERS, "stabiliser")
    with torch.autocast(x.device.type, enabled=False):  # exp makes a bit lost many
        fine = x.to(torch.promote_types(x.dtype, torch.float32))
        along, half_square = favor_exponents(fine, projection)
    if stabiliser == "published":
        return _published_features(along, along - half_square, of_keys)
    if not of_keys:
        return along.softmax(dim=-1)
    exponent = along - half_square
    most = exponent.detach().amax(dim=(-2, -1), keepdim=True)
    return (exponent - most).exp() + EPSILON["sample"]


def _published_features(
    along: TableFeatures, exponent: TableFeatures, of_keys: bool
) -> TableFeatures:
    if not of_keys:
        most = along.amax(dim=-1, keepdim=True)
    else:
        most = along.amax() if along.numel() else along.new_zeros(())  # of no pictures none
    return ((exponent - most).exp() + EPSILON["published"]) * along.shape[-1] ** -0.5


def attend_by_features(
    query: Features, key: SourceFeatures, value: SourceValues, *, backend: str = "auto"
) -> Values:
    """Σ_s (φ_q·φ_k) v_s / Σ_s φ_q·φ_k, of features that are positive.

    "plain" writes out every weight; otherwise one state Σ φ_k vᵀ serves every query.  Sums are
    kept in single precision at least.
    """
    require_known(backend, LINEAR_BACKENDS, "backend")
    fine = torch.promote_types(value.dtype, torch.float32)
    query, key, values = query.to(fine), key.to(fine), value.to(fine)
    with torch.autocast(value.device.type, enabled=False):  # it would round the sums
        if backend == "plain":
            weight = query @ key.mT
            return (weight @ values / weight.sum(dim=-1, keepdim=True)).to(value.dtype)
        total = query @ key.sum(dim=-2, keepdim=True).mT
        return (query @ (key.mT @ values) / total).to(value.dtype)


def attend_by_waves(
    query: Features,
    key: Features,
    value: Values,
    phases: Float[Tensor, "head place feature"],
    lead: Float[Tensor, "head feature"],
    *,
    backend: str = "auto",
) -> Values:
    """Σ_s w_ts v_s / Σ_s u_ts with w, u as above; `phases` are ω·x, `lead` is θ.

    There may be more tokens than places: the first ones then have no place, and between them and
    any other w = u, content alone.  (Turning them by 0 instead would tie them to the origin.)
    """
    require_known(backend, LINEAR_BACKENDS, "backend")
    fine = torch.promote_types(value.dtype, torch.float32)
    query, key, values = query.to(fine), key.to(fine), value.to(fine)
    phases, lead = phases.to(fine), lead.to(fine)
    mix = _mix_waves_plainly if backend == "plain" else _mix_waves_by_state
    with torch.autocast(value.device.type, enabled=False):
        mixed = mix(query, key, values, phases, lead[:, None])
    return mixed.to(value.dtype)


def _modulate(
    features: Features, phases: Float[Tensor, "head token feature"]
) -> Float[Tensor, "batch head token waves"]:
    return torch.cat([features * phases.cos(), features * phases.sin()], dim=-1)


def _mix_waves_plainly(
    query: Features, key: Features, value: Values, phases: Tensor, lead: Tensor
) -> Values:
    free = query.shape[-2] - phases.shape[-2]
    size = query @ key.mT
    weight = size.clone()
    turn = phases[:, None] - phases[:, :, None] + lead[:, None]  # (head, token, source, feature)
    product = query[:, :, free:, None] * key[:, :, None, free:]
    weight[:, :, free:, free:] = (product * turn.cos()).sum(dim=-1)
    return weight @ value / size.sum(dim=-1, keepdim=True)


def _mix_waves_by_state(
    query: Features, key: Features, value: Values, phases: Tensor, lead: Tensor
) -> Values:
    free = query.shape[-2] - phases.shape[-2]
    placed = query[:, :, free:]
    state = _modulate(key[:, :, free:], phases + lead).mT @ value[:, :, free:]
    mixed = _modulate(placed, phases) @ state
    if free:  # few of them, so what they say and hear is written out
        mixed = mixed + (placed @ key[:, :, :free].mT) @ value[:, :, :free]
        heard = (query[:, :, :free] @ key.mT) @ value
        mixed = torch.cat([heard, mixed], dim=-2)
    return mixed / (query @ key.sum(dim=-2, keepdim=True).mT)
