"""The forward pass of attention from frames: two Triton kernels.

`sum_weights` finds the logarithm of the softmax's denominators, `mix_values` the output.  Letters
and layouts as in triton_pieces.py.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_pieces import (
    OUTSIDE,
    SIZES,
    content_factors,
    contents,
    filled,
    kept,
    known_factors,
    lane_key,
    load_channels,
    load_queries,
    load_row,
    place_factors,
    place_in_grid,
    placements,
    pose_factors,
    raised,
    source_of,
    store_heads,
    store_row,
    weights,
)


@triton.jit
def add_weights(
    c, high, new_high, p, reach, sums, f, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    G: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The sums of weights and the largest place scores with one more step, rescaled."""
    x = content_factors(c, new_high, G, M)
    new_reach = ()
    new_sums = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            top = tl.maximum(reach[h * J + j], p[h * J + j])
            fresh = tl.zeros_like(top)
            for m in tl.static_range(M):
                fresh += f[(h * J + j) * M + m] * x[(j if ALL else h) * M + m]
            fade = high[j if ALL else h] - new_high[j if ALL else h]
            fade = tl.exp2(fade + (reach[h * J + j] - top))
            fresh *= tl.exp2(p[h * J + j] - top)
            new_reach = new_reach + (top,)
            new_sums = new_sums + (sums[h * J + j] * fade + fresh,)
    return new_reach, new_sums


@triton.jit(do_not_specialize=SIZES)
def sum_weights(
    query, key, factor, place, steps, relations, peak, total,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads, batch,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """peak[g] = max content;  total[h, g] = log₂ Σ_{m,δ} exp2(score)."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    asker = image if ALL else slot
    q = load_queries(query + asker * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    factor += asker * G * R * tokens + token
    known = known_factors(factor, tokens, alive, G, R, M, MB)
    relations += frame * H * J * M
    p_start = place + frame * H * offsets * PD
    high = filled(q[0], OUTSIDE, G)
    reach = filled(q[0], OUTSIDE, H * J)
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            for m0 in range(0, M, MB):
                at = key + (image * M + m0) * WORDS * pixels + source
                k = load_channels(at, pixels, MB * D, inside, HALF)
                c = contents(q, k, inside, G, MB, D)
                f = pose_factors(
                    known, factor, tokens, alive, relations, m0, TABLE, H, J, ALL, M, MB, R
                )
                new_high = raised(high, c, G, MB)
                reach, sums = add_weights(c, high, new_high, p, reach, sums, f, H, J, ALL, G, MB)
                high = new_high
    store_row(peak + slot * G * tokens + token, high, tokens, G, alive)
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            value = tl.log2(sums[h * J + j]) + high[j if ALL else h] + reach[h * J + j]
            tl.store(total + ((slot * H + h) * J + j) * tokens + token, value, mask=alive)


@triton.jit
def add_values(
    out, x, y, f, v, lane, number, apart, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """out_h += Σ_m W[h, m] v_m; `number` is dropout's of h = m = 0, of two poses m `apart`."""
    table = ()
    for h in tl.static_range(H):
        w = weights(x, y, f, h, J, ALL, M)
        if DROPS > 0:
            left = ()
            for m in tl.static_range(M):
                left = left + (w[m] * kept(lane, number + m * apart + h, DROPS),)
            w = left
        for c in tl.static_range(D):
            entry = out[h * D + c]
            for m in tl.static_range(M):
                entry += w[m] * v[m * D + c]
            table = table + (entry,)
    return table


@triton.jit(do_not_specialize=SIZES)
def mix_values(
    query, key, value, factor, place, steps, relations, peak, total, output, seed,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads, batch,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """output[h] = Σ_g Σ_{m,δ} X · Y · F · v, in the layout of the model."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    asker = image if ALL else slot
    q = load_queries(query + asker * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    factor += asker * G * R * tokens + token
    known = known_factors(factor, tokens, alive, G, R, M, MB)
    relations += frame * H * J * M
    high = load_row(peak + slot * G * tokens + token, tokens, G, alive)
    logs = load_row(total + slot * H * J * tokens + token, tokens, H * J, alive)
    p_start = place + frame * H * offsets * PD
    lane = lane_key(tl.load(seed), image * tokens + token)
    out = filled(q[0], 0.0, H * D)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(p, high, logs, H, J, ALL)
            for m0 in range(0, M, MB):
                at = (image * M + m0) * WORDS * pixels + source
                k = load_channels(key + at, pixels, MB * D, inside, HALF)
                x = content_factors(contents(q, k, inside, G, MB, D), high, G, MB)
                f = pose_factors(
                    known, factor, tokens, alive, relations, m0, TABLE, H, J, ALL, M, MB, R
                )
                v = load_channels(value + at, pixels, MB * D, inside, HALF)
                number = ((s * M + m0) * frames + frame) * H
                out = add_values(out, x, y, f, v, lane, number, frames * H, H, J, ALL, MB, D, DROPS)
    first = (image // heads * frames + frame) * H
    store_heads(output, out, first, image % heads, token, alive, tokens, heads, H, D, WIDTH)
