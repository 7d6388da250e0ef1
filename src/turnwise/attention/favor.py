"""Attention by positive features: random features of the softmax kernel, and positions as waves.

    out_t = Σ_s w_ts v_s / Σ_s u_ts

    FAVOR+:   w = u = φ(q)·φ(k),   φ(x)_i = exp(w_i·z − |z|²/2) / √m,   z = x / dim^¼
              E[φ(q)·φ(k)] = exp(q·k / √dim) over m random rows w_i
    waves:    w = Σ_j r_j(q) r_j(k) cos(ω_j·(x' − x) + θ_j),   u = Σ_j r_j(q) r_j(k)
              r any positive features of the content alone, so |w| ≤ u at all positions

Both are sums of products: the sums over the keys are computed once and serve every query, so the
cost is linear in the tokens.  Waves depend on relative positions exactly, for any r; random
features of content and position mixed (the published relative Performer) only in expectation.

Paper:    Choromanski et al. 2021, "Rethinking Attention with Performers"; Horn et al. 2021,
          "Translational Equivariance in Kernelizable Attention" (α cos + β sin = r cos(· − θ)).
Symbols:  t a query, s a source; i a feature; j a wave; ω, θ its frequency and phase.
Departs:  stabiliser="sample": a common factor of a query's features divides out, so they are scaled
          to sum to 1, and |z|² is left out; the largest feature of the keys of a sample and head is
          scaled to 1, without a gradient, and epsilon, added to keys alone, is relative to it.
          "published" takes one maximum over the whole batch, lets gradients through, and adds 1e-4
          to the features, of queries too.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.attention.linear import LINEAR_BACKENDS
from turnwise.errors import require_known, require_positive
from turnwise.kernels.device import is_eager_on_cpu
from turnwise.kernels.favor_streaming import stream_favor

Heads = Float[Tensor, "batch head token dim"]
Features = Float[Tensor, "batch head token feature"]
SourceFeatures = Float[Tensor, "batch head source feature"]
TableFeatures = Float[Tensor, "*many feature"]
Projection = Float[Tensor, "feature dim"]
Values = Float[Tensor, "batch head token dim_out"]
SourceValues = Float[Tensor, "batch head source dim_out"]
STABILISERS = ("sample", "published")
FAVOR_BACKENDS = ("auto", "plain", "streaming")
EPSILON = {"sample": 1e-6, "published": 1e-4}


def feature_count(dim: int) -> int:
    """Return ⌊dim · ln dim⌋, at least 1: the random features for a head of `dim` channels."""
    require_positive(dim=dim)
    return max(1, int(dim * math.log(dim)))


def orthogonal_projection(
    features: int, dim: int, generator: torch.Generator, *, fix_signs: bool = True
) -> Float[Tensor, "{features} {dim}"]:
    """Draw rows that are orthogonal in blocks of `dim`, each with the length of a normal vector.

    Without fixed signs the factor Q is not uniform over all rotations, as published.  Drawn in
    float64 on the CPU, so that a seed gives the same rows everywhere.
    """
    require_positive(features=features, dim=dim)
    blocks = []
    for _ in range(-(-features // dim)):
        square = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        rotation, upper = torch.linalg.qr(square)
        blocks.append((rotation * upper.diagonal().sign() if fix_signs else rotation).mT)
    lengths = torch.randn(features, dim, generator=generator, dtype=torch.float64).norm(dim=-1)
    return torch.cat(blocks)[:features] * lengths[:, None]


def favor_exponents(
    x: Float[Tensor, "*many dim"], projection: Projection
) -> tuple[TableFeatures, Float[Tensor, "*many 1"]]:
    """Return w_i·z and |z|²/2; the exponent of feature i is their difference."""
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
    """Return φ(x), up to a factor that attention divides out: per query, or for all keys.

    The factor keeps exp from overflowing.  If a batch shares it ("published"), epsilon makes the
    output for one image depend on the others.  In single precision at least.
    """
    require_known(stabiliser, STABILISERS, "stabiliser")
    with torch.autocast(x.device.type, enabled=False):  # exp amplifies rounding
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
        most = along.amax() if along.numel() else along.new_zeros(())  # an empty batch
    return ((exponent - most).exp() + EPSILON["published"]) * along.shape[-1] ** -0.5


def attend_by_features(
    query: Features, key: SourceFeatures, value: SourceValues, *, backend: str = "auto"
) -> Values:
    """Return Σ_s (φ_q·φ_k) v_s / Σ_s φ_q·φ_k, for positive features.

    "plain" computes every weight; otherwise one state Σ φ_k vᵀ serves every query.  Sums are in
    single precision at least.
    """
    require_known(backend, LINEAR_BACKENDS, "backend")
    fine = torch.promote_types(value.dtype, torch.float32)
    query, key, values = query.to(fine), key.to(fine), value.to(fine)
    with torch.autocast(value.device.type, enabled=False):  # which would round the sums
        if backend == "plain":
            weight = query @ key.mT
            return (weight @ values / weight.sum(dim=-1, keepdim=True)).to(value.dtype)
        total = query @ key.sum(dim=-2, keepdim=True).mT
        return (query @ (key.mT @ values) / total).to(value.dtype)


def attend_by_favor(
    query: Heads,
    key: Float[Tensor, "batch head source dim"],
    value: SourceValues,
    projection: Projection,
    *,
    backend: str = "auto",
) -> Values:
    """Return FAVOR+ attention with the stabiliser "sample"; "auto" streams on an eager CPU."""
    require_known(backend, FAVOR_BACKENDS, "backend")
    if backend == "plain" or (backend == "auto" and not is_eager_on_cpu(value)):
        return _favor_formula(query, key, value, projection)
    return stream_favor(query, key, value, projection, EPSILON["sample"], _favor_formula)


def _favor_formula(
    query: Heads,
    key: Float[Tensor, "batch head source dim"],
    value: SourceValues,
    projection: Projection,
) -> Values:
    query_features = favor_features(query, projection, of_keys=False)
    return attend_by_features(query_features, favor_features(key, projection, of_keys=True), value)


def attend_by_waves(
    query: Features,
    key: Features,
    value: Values,
    phases: Float[Tensor, "head position feature"],
    lead: Float[Tensor, "head feature"],
    *,
    backend: str = "auto",
) -> Values:
    """Return Σ_s w_ts v_s / Σ_s u_ts with w, u as above; `phases` are ω·x, `lead` is θ.

    There may be more tokens than positions: the first ones then have none, and between them and any
    other w = u, content alone.  (A phase of 0 would put them at the origin instead.)
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
    angle = phases[:, None] - phases[:, :, None] + lead[:, None]  # (head, token, source, feature)
    product = query[:, :, free:, None] * key[:, :, None, free:]
    weight[:, :, free:, free:] = (product * angle.cos()).sum(dim=-1)
    return weight @ value / size.sum(dim=-1, keepdim=True)


def _mix_waves_by_state(
    query: Features, key: Features, value: Values, phases: Tensor, lead: Tensor
) -> Values:
    free = query.shape[-2] - phases.shape[-2]
    placed = query[:, :, free:]
    state = _modulate(key[:, :, free:], phases + lead).mT @ value[:, :, free:]
    mixed = _modulate(placed, phases) @ state
    if free:  # few tokens, so their weights are written out
        mixed = mixed + (placed @ key[:, :, :free].mT) @ value[:, :, :free]
        of_free = (query[:, :, :free] @ key.mT) @ value
        mixed = torch.cat([of_free, mixed], dim=-2)
    return mixed / (query @ key.sum(dim=-2, keepdim=True).mT)
