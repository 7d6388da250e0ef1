"""Gradients of attention from frames, piece by piece; the kernels that go back are made of them.

With A the weights, r[h, m] = dout_h · v_m what a weight is worth, and Δ[h, g] = Σ_{m,δ} A·r, the
gradient of a score is  ds = A · (r − Δ).  Summed over h it belongs to content, over m to place,
over δ to pose.  Letters and layouts as in triton_pieces.py.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_memory import lane_of, load_everywhere, load_numbers
from turnwise.attention.triton_pieces import (
    content_factors,
    contents,
    dot,
    keeps,
    known_factors,
    lane_key,
    load_queries,
    numbered,
    pose_factors,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def worths(
    grad, v, lane, s, m0, frame, frames, H: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """r[h·MB + m] = dout_h · v_m, nothing where dropout took the weight away."""
    keep = ()
    if DROPS > 0:
        for m in tl.static_range(MB):
            number, first = numbered(s, m0 + m, frame, frames, H, M)
            keep = keep + keeps(lane, number, first, H, DROPS)
    table = ()
    for h in tl.static_range(H):
        for m in tl.static_range(MB):
            worth = dot(grad, h * D, v, m * D, D, tl.zeros_like(v[0]))
            if DROPS > 0:
                worth = tl.where(keep[m * H + h], worth, 0.0)
            table = table + (worth,)
    return table


@triton.jit
def score_gradients(
    x, y, f, r, delta, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr
):
    """ds[(h·J + j)·M + m] = A · (r − Δ)."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            for m in tl.static_range(M):
                weight = x[(j if ALL else h) * M + m] * (y[h * J + j] * f[(h * J + j) * M + m])
                table = table + (weight * (r[h * M + m] - delta[h * J + j]),)
    return table


@triton.jit
def over_outputs(
    ds, g: tl.constexpr, m: tl.constexpr, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr,
):  # fmt: skip
    """Σ_h ds[h, g, m]: the gradient of the content score q_g · k_m."""
    total = ds[(0 * J + g) * M + m] if ALL else ds[g * M + m]
    if ALL:
        for h in tl.static_range(1, H):
            total += ds[(h * J + g) * M + m]
    return total


@triton.jit
def add_place_score_gradients(dp, ds, count: tl.constexpr, M: tl.constexpr):
    """dp += Σ_m ds: the gradient of q_g · P(h⁻¹δ), for each of the `count` pairs (h, g)."""
    table = ()
    for i in tl.static_range(count):
        total = dp[i]
        for m in tl.static_range(M):
            total += ds[i * M + m]
        table = table + (total,)
    return table


@triton.jit
def add_pose_gradients(
    df, ds, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Add to each relation r of a query g the gradients of the scores that use it.

    Only if the relations are compiled in; else triton_poses.py does it.
    """
    GP: tl.constexpr = G + G % 2
    table = ()
    if MB == M:
        for r in tl.static_range(R):
            for g in tl.static_range(GP):
                total = df[r * GP + g]
                for h in tl.static_range(H):
                    for m in tl.static_range(M):
                        if (ALL or h == g) and g < G:  # noqa: SIM102 - constants
                            if TABLE[(h * J + (g if ALL else 0)) * M + m] == r:
                                total += ds[(h * J + (g if ALL else 0)) * M + m]
                table = table + (total,)
    return table


@triton.jit
def add_content_gradients(
    dq, ds, k, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_m (Σ_h ds) k_m."""
    table = ()
    for g in tl.static_range(G):
        dc = ()
        for m in tl.static_range(M):
            dc = dc + (over_outputs(ds, g, m, H, J, ALL, M),)
        for c in tl.static_range(D):
            total = dq[g * D + c]
            for m in tl.static_range(M):
                total += dc[m] * k[m * D + c]
            table = table + (total,)
    return table


@triton.jit
def add_placed_gradients(
    dq, dp, place, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_h dp[h, g] P(h⁻¹δ), in the channels that meet the place."""
    encoding = load_everywhere(place, H * PD)
    table = ()
    for g in tl.static_range(G):
        for c in tl.static_range(D):
            total = dq[g * D + c]
            if c < PD:
                for h in tl.static_range(H):
                    if ALL:
                        total += dp[h * J + g] * encoding[h * PD + c]
                    elif h == g:
                        total += dp[h] * encoding[h * PD + c]
            table = table + (total,)
    return table


@triton.jit
def store_place_shares(
    pointer, dp, q, alive, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, D: tl.constexpr,
    PD: tl.constexpr,
):  # fmt: skip
    """Σ_g dp[h, g] q_g over the lanes of this program: its share of the gradient of P(h⁻¹δ)."""
    for h in tl.static_range(H):
        for c in tl.static_range(PD):
            part = tl.zeros_like(q[0])
            for j in tl.static_range(J):
                part += dp[h * J + j] * q[(j if ALL else h) * D + c]
            part = tl.sum(tl.where(alive, part, 0.0), axis=0)
            tl.store(pointer + h * PD + c, part * LN2)


@triton.jit
def add_worths(
    sums, x, y, f, r, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr
):
    """Δ += Σ_m A · r."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            fresh = tl.zeros_like(x[0])
            for m in tl.static_range(M):
                weight = f[(h * J + j) * M + m] * x[(j if ALL else h) * M + m]
                fresh += weight * r[h * M + m]
            table = table + (sums[h * J + j] + fresh * y[h * J + j],)
    return table


@triton.jit
def load_tokens(
    query, factor, peak, total, grad, seed, slot, image, token, tokens, tiles, H: tl.constexpr,
    G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What a lane keeps of its token: queries, F, peaks, totals, the gradient, dropout's key."""
    asker = image if ALL else slot
    q = load_queries(lane_of(query, asker, token, tiles, G * D, HALF), G * D, HALF)
    factor = lane_of(factor, asker, token, tiles, R * (G + G % 2), None)
    known = known_factors(factor, G, R, M, MB)
    high = load_numbers(lane_of(peak, slot, token, tiles, G, None), G, None)
    logs = load_numbers(lane_of(total, slot, token, tiles, H * J, None), H * J, None)
    dout = load_numbers(lane_of(grad, slot, token, tiles, H * D, HALF), H * D, HALF)
    lane = lane_key(tl.load(seed), image * tokens + token)
    return q, factor, known, high, logs, dout, lane


@triton.jit
def meet_sources(
    q, known, high, dout, lane, key, value, factor, relations, image, source, tiles, inside, s, m0,
    frame, frames, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The keys of MB poses at one offset, their X and F, and what their weights are worth."""
    part = (image * M + m0) // MB
    k = load_numbers(lane_of(key, part, source, tiles, MB * D, HALF), MB * D, HALF)
    x = content_factors(contents(q, k, inside, G, MB, D), high, G, MB)
    f = pose_factors(known, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
    v = load_numbers(lane_of(value, part, source, tiles, MB * D, HALF), MB * D, HALF)
    return k, x, f, worths(dout, v, lane, s, m0, frame, frames, H, M, MB, D, DROPS)
