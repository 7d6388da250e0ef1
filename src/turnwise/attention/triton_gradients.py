"""Gradients of attention from frames, piece by piece; the kernels that go back are made of them.

With A the weights, r[h, m] = dout_h · v_m what a weight is worth, and Δ[h, g] = Σ_{m,δ} A·r, the
gradient of a score is  ds = A · (r − Δ).  Summed over h it belongs to content, over m to place,
over δ to pose.  Letters and layouts as in triton_pieces.py.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_pieces import (
    content_factors,
    contents,
    dot,
    kept,
    known_factors,
    lane_key,
    load_channels,
    load_queries,
    load_row,
    pose_factors,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def worths(
    grad, v, lane, first, apart, H: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """r[h·M + m] = dout_h · v_m, nothing where dropout took the weight away.

    `first` is dropout's number of h = m = 0; the numbers of two poses m are `apart`.
    """
    table = ()
    for h in tl.static_range(H):
        for m in tl.static_range(M):
            worth = dot(grad, h * D, v, m * D, D, tl.zeros_like(v[0]))
            if DROPS > 0:
                worth *= kept(lane, first + m * apart + h, DROPS)
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
    df, d_pose, ds, stride, mask, relations, m0, TABLE: tl.constexpr, H: tl.constexpr,
    G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """Add to each relation r of a query g the gradients of the scores that use it.

    In registers if the relations are compiled in; else in memory, where a lane touches its own
    entries alone, one after the other.
    """
    table = ()
    if MB == M:
        for g in tl.static_range(G):
            for r in tl.static_range(R):
                total = df[g * R + r]
                for h in tl.static_range(H):
                    for m in tl.static_range(M):
                        if ALL or h == g:  # noqa: SIM102 - constants
                            if TABLE[(h * J + (g if ALL else 0)) * M + m] == r:
                                total += ds[(h * J + (g if ALL else 0)) * M + m]
                table = table + (total,)
    else:
        for h in tl.static_range(H):
            for j in tl.static_range(J):
                for m in tl.static_range(MB):
                    r = tl.load(relations + (h * J + j) * M + m0 + m)
                    at = d_pose + ((j if ALL else h) * R + r) * stride
                    before = tl.load(at, mask=mask, other=0.0)
                    tl.store(at, before + ds[(h * J + j) * MB + m], mask=mask)
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
    dq, dp, place, stride, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_h dp[h, g] P(h⁻¹δ), in the channels that meet the place."""
    table = ()
    for g in tl.static_range(G):
        for c in tl.static_range(D):
            total = dq[g * D + c]
            if c < PD:
                for h in tl.static_range(H):
                    if ALL:
                        total += dp[h * J + g] * tl.load(place + h * stride + c)
                    elif h == g:
                        total += dp[h] * tl.load(place + h * stride + c)
            table = table + (total,)
    return table


@triton.jit
def store_place_shares(
    pointer, dp, q, alive, stride, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """Σ_g dp[h, g] q_g over the lanes of this program: its share of the gradient of P(h⁻¹δ)."""
    for h in tl.static_range(H):
        for c in tl.static_range(PD):
            part = tl.zeros_like(q[0])
            for j in tl.static_range(J):
                part += dp[h * J + j] * q[(j if ALL else h) * D + c]
            part = tl.sum(tl.where(alive, part, 0.0), axis=0)
            tl.store(pointer + h * stride + c, part * LN2)


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
    query, factor, peak, total, grad, seed, slot, image, token, alive, tokens, H: tl.constexpr,
    G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What a lane keeps of its token: queries, F, peaks, totals, the gradient, dropout's key."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    asker = image if ALL else slot
    q = load_queries(query + asker * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    known = known_factors(factor, tokens, alive, G, R, M, MB)
    high = load_row(peak + slot * G * tokens + token, tokens, G, alive)
    logs = load_row(total + slot * H * J * tokens + token, tokens, H * J, alive)
    dout = load_channels(grad + slot * H * WORDS * tokens + token, tokens, H * D, alive, HALF)
    return q, known, high, logs, dout, lane_key(tl.load(seed), image * tokens + token)


@triton.jit
def meet_sources(
    q, known, high, dout, lane, key, value, factor, relations, inside, alive, tokens, pixels,
    number, apart, m0, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The keys of MB poses at one offset, their X and F, and what their weights are worth."""
    k = load_channels(key, pixels, MB * D, inside, HALF)
    x = content_factors(contents(q, k, inside, G, MB, D), high, G, MB)
    f = pose_factors(known, factor, tokens, alive, relations, m0, TABLE, H, J, ALL, M, MB, R)
    v = load_channels(value, pixels, MB * D, inside, HALF)
    return k, x, f, worths(dout, v, lane, number, apart, H, MB, D, DROPS)
