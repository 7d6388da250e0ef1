"""The backward pass of attention from frames in Triton; it recomputes every weight.

With A the weights, r[h, m] = dout_h · v_m what a weight is worth, and Δ[h, g] = Σ_{m,δ} A·r, the
gradient of a score is  ds = A · (r − Δ).  Summed over h it belongs to content, over m to place,
over δ to pose.  `sum_worths` finds Δ, `query_gradients` walks from each token to its sources, and
`source_gradients` (triton_sources.py) from each source back to the tokens that see it, so that
nothing is added up by atomics and two runs give the same bits.

Letters and layouts as in triton_forward.py.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_forward import (
    SIZES,
    content_factors,
    contents,
    dot,
    filled,
    kept,
    lane_key,
    load_channels,
    load_queries,
    load_row,
    place_factors,
    place_in_grid,
    placements,
    source_of,
    store_heads,
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
    x, y, f, r, delta, TABLE: tl.constexpr, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """ds[(h·J + j)·M + m] = A · (r − Δ)."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            for m in tl.static_range(M):
                pose = f[(j if ALL else h) * R + TABLE[(h * J + j) * M + m]]
                weight = x[(j if ALL else h) * M + m] * (y[h * J + j] * pose)
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
def place_score_gradients(ds, count: tl.constexpr, M: tl.constexpr):
    """Σ_m ds: the gradient of q_g · P(h⁻¹δ), for each of the `count` pairs (h, g)."""
    table = ()
    for i in tl.static_range(count):
        total = ds[i * M]
        for m in tl.static_range(1, M):
            total += ds[i * M + m]
        table = table + (total,)
    return table


@triton.jit
def pose_gradients(
    df, ds, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Add to each relation r of a query g the gradients of the scores that use it."""
    table = ()
    for g in tl.static_range(G):
        for r in tl.static_range(R):
            total = df[g * R + r]
            for h in tl.static_range(H):
                for m in tl.static_range(M):
                    if ALL:
                        if TABLE[(h * J + g) * M + m] == r:
                            total += ds[(h * J + g) * M + m]
                    elif h == g:  # noqa: SIM102 - conditions on constants are not joined
                        if TABLE[h * M + m] == r:
                            total += ds[h * M + m]
            table = table + (total,)
    return table


@triton.jit
def add_query_gradients(
    dq, ds, dp, k, place, stride, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_m (Σ_h ds) k_m + Σ_h dp[h, g] P(h⁻¹δ)."""
    table = ()
    for g in tl.static_range(G):
        dc = ()
        for m in tl.static_range(M):
            dc = dc + (over_outputs(ds, g, m, H, J, ALL, M),)
        for c in tl.static_range(D):
            total = dq[g * D + c]
            for m in tl.static_range(M):
                total += dc[m] * k[m * D + c]
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


@triton.jit(do_not_specialize=SIZES)
def sum_worths(
    query, key, value, factor, place, steps, peak, total, grad, delta, seed,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr, HALF: tl.constexpr,
    LANES: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """delta[h, g] = Σ_{m,δ} A · r."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    q = load_queries(query + slot * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    f = load_row(factor + slot * G * R * tokens + token, tokens, G * R, alive)
    high = load_row(peak + slot * G * tokens + token, tokens, G, alive)
    logs = load_row(total + slot * H * J * tokens + token, tokens, H * J, alive)
    dout = load_channels(grad + slot * H * WORDS * tokens + token, tokens, H * D, alive, HALF)
    k_start, v_start = key + image * M * WORDS * pixels, value + image * M * WORDS * pixels
    p_start = place + frame * H * offsets * PD
    lane = lane_key(tl.load(seed), image * tokens + token)
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            k = load_channels(k_start + source, pixels, M * D, inside, HALF)
            x = content_factors(contents(q, k, inside, G, M, D), high, G, M)
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(p, high, logs, H, J, ALL)
            v = load_channels(v_start + source, pixels, M * D, inside, HALF)
            number = (s * M * frames + frame) * H
            r = worths(dout, v, lane, number, frames * H, H, M, D, DROPS)
            new_sums = ()
            for h in tl.static_range(H):
                for j in tl.static_range(J):
                    fresh = tl.zeros_like(q[0])
                    for m in tl.static_range(M):
                        pose = f[(j if ALL else h) * R + TABLE[(h * J + j) * M + m]]
                        fresh += (pose * x[(j if ALL else h) * M + m]) * r[h * M + m]
                    new_sums = new_sums + (sums[h * J + j] + fresh * y[h * J + j],)
            sums = new_sums
    for i in tl.static_range(H * J):
        tl.store(delta + (slot * H * J + i) * tokens + token, sums[i], mask=alive)


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    query, key, value, factor, place, steps, peak, total, grad, delta, seed,
    d_query, d_pose, d_place, first,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr, HALF: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and pose scores, and this program's share of those of places."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    tiles = tl.cdiv(tokens, LANES)
    share = (image * tiles + tl.program_id(0) % tiles) * frames + frame
    share = d_place + share * H * offsets * PD
    slot, image = slot + first * frames, image + first
    q = load_queries(query + slot * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    f = load_row(factor + slot * G * R * tokens + token, tokens, G * R, alive)
    high = load_row(peak + slot * G * tokens + token, tokens, G, alive)
    logs = load_row(total + slot * H * J * tokens + token, tokens, H * J, alive)
    worth = load_row(delta + slot * H * J * tokens + token, tokens, H * J, alive)
    dout = load_channels(grad + slot * H * WORDS * tokens + token, tokens, H * D, alive, HALF)
    k_start, v_start = key + image * M * WORDS * pixels, value + image * M * WORDS * pixels
    p_start = place + frame * H * offsets * PD
    lane = lane_key(tl.load(seed), image * tokens + token)
    dq = filled(q[0], 0.0, G * D)
    df = filled(q[0], 0.0, G * R)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            k = load_channels(k_start + source, pixels, M * D, inside, HALF)
            x = content_factors(contents(q, k, inside, G, M, D), high, G, M)
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(p, high, logs, H, J, ALL)
            v = load_channels(v_start + source, pixels, M * D, inside, HALF)
            number = (s * M * frames + frame) * H
            r = worths(dout, v, lane, number, frames * H, H, M, D, DROPS)
            ds = score_gradients(x, y, f, r, worth, TABLE, H, J, ALL, M, R)
            df = pose_gradients(df, ds, TABLE, H, G, J, ALL, M, R)
            dp = place_score_gradients(ds, H * J, M)
            at = p_start + s * PD
            dq = add_query_gradients(dq, ds, dp, k, at, offsets * PD, H, G, J, ALL, M, D, PD)
            store_place_shares(share + s * PD, dp, q, alive, offsets * PD, H, J, ALL, D, PD)
    one = (image // heads * frames + frame) * G
    store_heads(d_query, dq, one, image % heads, token, alive, tokens, heads, G, D, WIDTH)
    for i in tl.static_range(G * R):
        tl.store(d_pose + (slot * G * R + i) * tokens + token, df[i], mask=alive)
