"""Gradients of attention from frames, piece by piece; the kernels that go back are made of them.

With A the weights, r[h, m] = dout_h · v_m what a weight is worth, and Δ[h, g] = Σ_{m,δ} A·r, the
gradient of a score is  ds = A · (r − Δ).  Summed over h it belongs to content, over m to place,
over δ to pose.  Letters and layouts as in triton_pieces.py.

The backward pass of attention from frames on the side of the tokens; it recomputes every weight.

`sum_worths` finds Δ (triton_gradients.py has the formulas), `query_gradients` walks from each token
to its sources; `source_gradients` (triton_sources.py) goes from each source back to the tokens that
see it, so nothing is added up by atomics and two runs give the same bits.

The gradient of the pose scores in large groups, whose relations do not fit into registers.

One lane is one token; it takes a few key poses at a time, walks over the offsets for each, and
writes each relation's gradient when it is complete (triton_gradients.py has the formulas).

The gradients of keys and values, gathered from the tokens that see them.

One lane is one pixel of one head; it walks over the offsets backwards and recomputes the weights
that the tokens there gave it (triton_gradients.py has the formulas).
"""

import triton
import triton.language as tl

from turnwise.kernels.group_attention_forward import (
    SIZES,
    TILE,
    content_factors,
    contents,
    dot,
    filled,
    keeps,
    known_factors,
    lane_key,
    lane_of,
    load_everywhere,
    load_numbers,
    load_queries,
    numbered,
    packed,
    place_factors,
    place_in_grid,
    placements,
    pose_factors,
    related,
    source_of,
    store_numbers,
    unpacked,
    weights,
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


@triton.jit(do_not_specialize=SIZES)
def sum_worths(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """delta[h, g] = Σ_{m,δ} A · r."""
    slot, token = place_in_grid(tiles)
    frame, image = slot % frames, slot // frames
    q, factor, known, high, logs, dout, lane = load_tokens(
        query, factor, peak, total, grad, seed, slot, image, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    relations += frame * H * J * M
    place += frame * offsets * ((H * PD + 1) // 2)
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            placed = placements(q, place + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            y = place_factors(placed, high, logs, H, J, ALL)
            for m0 in range(0, M, MB):
                _, x, f, r = meet_sources(
                    q, known, high, dout, lane, key, value, factor, relations, image, source,
                    source_tiles, inside, s, m0, frame, frames, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                sums = add_worths(sums, x, y, f, r, H, J, ALL, MB)
    store_numbers(lane_of(delta, slot, token, tiles, H * J, None), sums, H * J, None)


@triton.jit
def worth_of_outputs(
    output, delta, dout, slot, token, tiles, H: tl.constexpr, J: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Δ: found before if an output meets many queries; else it is the output times its gradient."""
    at = lane_of(delta, slot, token, tiles, H * J, None)
    row = ()
    if J > 1:
        row = load_numbers(at, H * J, None)
    else:
        out = load_numbers(lane_of(output, slot, token, tiles, H * D, HALF), H * D, HALF)
        for h in tl.static_range(H):
            row = row + (dot(out, h * D, dout, h * D, D, tl.zeros_like(out[0])),)
        store_numbers(at, row, H, None)
    return row


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    query, key, value, factor, place, steps, relations, peak, total, grad, output, delta, seed,
    d_query, d_pose, d_place, first,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and pose scores (in small groups), and a share of the places'."""
    GP: tl.constexpr = G + G % 2
    WP: tl.constexpr = (H * PD + 1) // 2
    slot, token = place_in_grid(tiles)
    frame, image = slot % frames, slot // frames
    share = (image * tiles + tl.program_id(0) % tiles) * frames + frame
    share = d_place + share * offsets * 2 * WP
    slot, image = slot + first * frames, image + first
    q, factor, known, high, logs, dout, lane = load_tokens(
        query, factor, peak, total, grad, seed, slot, image, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    worth = worth_of_outputs(output, delta, dout, slot, token, tiles, H, J, D, HALF)
    relations += frame * H * J * M
    place += frame * offsets * WP
    dq, df = filled(q[0], 0.0, G * D), filled(q[0], 0.0, R * GP if MB == M else 0)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            placed = placements(q, place + s * WP, H, J, ALL, D, PD)
            y = place_factors(placed, high, logs, H, J, ALL)
            dp = filled(q[0], 0.0, H * J)
            for m0 in range(0, M, MB):
                k, x, f, r = meet_sources(
                    q, known, high, dout, lane, key, value, factor, relations, image, source,
                    source_tiles, inside, s, m0, frame, frames, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                ds = score_gradients(x, y, f, r, worth, H, J, ALL, MB)
                dq = add_content_gradients(dq, ds, k, H, G, J, ALL, MB, D)
                dp = add_place_score_gradients(dp, ds, H * J, MB)
                df = add_pose_gradients(df, ds, TABLE, H, G, J, ALL, M, MB, R)
            dq = add_placed_gradients(dq, dp, place + s * WP, H, G, J, ALL, D, PD)
            store_place_shares(share + s * 2 * WP, dp, q, token < tokens, H, J, ALL, D, PD)
    part = frame * images + image if ALL else slot
    store_numbers(lane_of(d_query, part, token, tiles, G * D, HALF), dq, G * D, HALF)
    if MB == M:
        store_numbers(lane_of(d_pose, part, token, tiles, R * GP, None), df, R * GP, None)


@triton.jit
def add_pair(pointer, low, high):
    """Add two floats to those in a word."""
    before = unpacked(tl.load(pointer))
    tl.store(pointer, packed(before[0] + low, before[1] + high))


@triton.jit
def store_relations(
    d_pose, ds, relations, m0, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Add ds[(h·J + j)·MB + m] to its relation; a lane touches its own entries alone, in turn."""
    HALF_ROW: tl.constexpr = (G + G % 2) // 2 * TILE
    nothing = tl.zeros_like(ds[0])
    for i in tl.static_range(H * MB if ALL else MB):
        for j in tl.static_range(0, J if ALL else H, 2):
            own = ds[(i // MB * J + j) * MB + i % MB] if ALL else ds[j * MB + i]
            other = nothing
            if j + 1 < (J if ALL else H):
                other = ds[(i // MB * J + j + 1) * MB + i % MB] if ALL else ds[(j + 1) * MB + i]
            if j == 0 or not SHARED:
                at = d_pose + related(relations, i, j, m0, J, ALL, M, MB) * HALF_ROW
            add_pair(at + j // 2 * TILE, own, other if SHARED else nothing)
            if not SHARED:
                at = d_pose + related(relations, i, j + 1, m0, J, ALL, M, MB) * HALF_ROW
                add_pair(at + j // 2 * TILE, nothing, other)


@triton.jit(do_not_specialize=SIZES)
def pose_gradients(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed, d_pose,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """d_pose[g, r] = Σ ds of all outputs, keys and offsets that stand in relation r to g."""
    WP: tl.constexpr = (H * PD + 1) // 2
    slot, token = place_in_grid(tiles)
    frame, image = slot % frames, slot // frames
    q, factor, known, high, logs, dout, lane = load_tokens(
        query, factor, peak, total, grad, seed, slot, image, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    worth = load_numbers(lane_of(delta, slot, token, tiles, H * J, None), H * J, None)
    relations += frame * H * J * M
    place += frame * offsets * WP
    part_of_query = frame * images + image if ALL else slot
    d_pose = lane_of(d_pose, part_of_query, token, tiles, R * (G + G % 2), None)
    for m0 in range(0, M, MB):
        total_ds = filled(q[0], 0.0, H * J * MB)
        for s in range(offsets):
            source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
            inside = inside & (token < tokens)
            if tl.max(inside.to(tl.int32), axis=0) > 0:
                placed = placements(q, place + s * WP, H, J, ALL, D, PD)
                y = place_factors(placed, high, logs, H, J, ALL)
                _, x, f, r = meet_sources(
                    q, known, high, dout, lane, key, value, factor, relations, image, source,
                    source_tiles, inside, s, m0, frame, frames, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                ds = score_gradients(x, y, f, r, worth, H, J, ALL, MB)
                sums = ()
                for i in tl.static_range(H * J * MB):
                    sums = sums + (total_ds[i] + ds[i],)
                total_ds = sums
        store_relations(d_pose, total_ds, relations, m0, H, G, J, ALL, M, MB, SHARED)


@triton.jit
def add_key_gradients(
    dk, ds, q, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dk_m += Σ_g (Σ_h ds) q_g; the queries are scaled by log₂(e), which ln 2 undoes."""
    table = ()
    for m in tl.static_range(M):
        dc = ()
        for g in tl.static_range(G):
            dc = dc + (over_outputs(ds, g, m, H, J, ALL, M) * LN2,)
        for c in tl.static_range(D):
            total = dk[m * D + c]
            for g in tl.static_range(G):
                total += dc[g] * q[g * D + c]
            table = table + (total,)
    return table


@triton.jit
def add_value_gradients(
    dv, x, y, f, dout, lane, s, m0, frame, frames, H: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """dv_m += Σ_h W[h, m] dout_h."""
    heard = ()
    for h in tl.static_range(H):
        heard = heard + weights(x, y, f, h, J, ALL, MB)
    table = ()
    for m in tl.static_range(MB):
        left = ()
        for h in tl.static_range(H):
            left = left + (heard[h * MB + m],)
        if DROPS > 0:
            number, first = numbered(s, m0 + m, frame, frames, H, M)
            keep = keeps(lane, number, first, H, DROPS)
            left = ()
            for h in tl.static_range(H):
                left = left + (tl.where(keep[h], heard[h * MB + m], 0.0),)
        for c in tl.static_range(D):
            total = dv[m * D + c]
            for h in tl.static_range(H):
                total += left[h] * dout[h * D + c]
            table = table + (total,)
    return table


@triton.jit(do_not_specialize=SIZES)
def source_gradients(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed,
    d_key, d_value,
    rows, cols, token_rows, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values of MB poses, gathered from all tokens that see them."""
    WP: tl.constexpr = (H * PD + 1) // 2
    image, pixel = place_in_grid(source_tiles)
    m0 = tl.program_id(1) * MB
    part = (image * M + m0) // MB
    k = load_numbers(lane_of(key, part, pixel, source_tiles, MB * D, HALF), MB * D, HALF)
    v = load_numbers(lane_of(value, part, pixel, source_tiles, MB * D, HALF), MB * D, HALF)
    dk = filled(k[0], 0.0, MB * D)
    dv = filled(k[0], 0.0, MB * D)
    for step in range(offsets * frames):
        s, frame = step // frames, step % frames
        row = pixel // cols - crop - tl.load(steps + 2 * s)
        col = pixel % cols - crop - tl.load(steps + 2 * s + 1)
        seen = (row >= 0) & (row < token_rows) & (col >= 0) & (col < token_cols)
        seen = seen & (pixel < rows * cols)
        if tl.max(seen.to(tl.int32), axis=0) > 0:
            token, slot = tl.where(seen, row * token_cols + col, 0), image * frames + frame
            q, at, known, high, logs, dout, lane = load_tokens(
                query, factor, peak, total, grad, seed, slot, image, token, tokens, tiles, H, G, J,
                ALL, M, MB, R, D, HALF,
            )  # fmt: skip
            worth = load_numbers(lane_of(delta, slot, token, tiles, H * J, None), H * J, None)
            p = placements(q, place + (frame * offsets + s) * WP, H, J, ALL, D, PD)
            y = place_factors(p, high, logs, H, J, ALL)
            x = content_factors(contents(q, k, seen, G, MB, D), high, G, MB)
            now = relations + frame * H * J * M
            f = pose_factors(known, at, now, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
            r = worths(dout, v, lane, s, m0, frame, frames, H, M, MB, D, DROPS)
            ds = score_gradients(x, y, f, r, worth, H, J, ALL, MB)
            dk = add_key_gradients(dk, ds, q, H, G, J, ALL, MB, D)
            dv = add_value_gradients(
                dv, x, y, f, dout, lane, s, m0, frame, frames, H, J, ALL, M, MB, D, DROPS
            )
    dk_at = lane_of(d_key, part, pixel, source_tiles, MB * D, HALF)
    dv_at = lane_of(d_value, part, pixel, source_tiles, MB * D, HALF)
    store_numbers(dk_at, dk, MB * D, HALF)
    store_numbers(dv_at, dv, MB * D, HALF)
