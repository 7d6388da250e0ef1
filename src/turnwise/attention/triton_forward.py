"""The forward pass of attention from frames: two Triton kernels.

`sum_weights` finds the logarithm of the softmax's denominators, `mix_values` the output.  Letters
and layouts as in triton_pieces.py.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_memory import lane_of, load_numbers, place_in_grid, store_numbers
from turnwise.attention.triton_pieces import (
    OUTSIDE,
    SIZES,
    content_factors,
    contents,
    filled,
    keeps,
    known_factors,
    lane_key,
    load_queries,
    numbered,
    place_factors,
    placements,
    pose_factors,
    raised,
    source_of,
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
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """peak[g] = max content;  total[h, g] = log₂ Σ_{m,δ} exp2(score)."""
    slot, token = place_in_grid(tiles)
    frame, image = slot % frames, slot // frames
    asker = image if ALL else slot
    q = load_queries(lane_of(query, asker, token, tiles, G * D, HALF), G * D, HALF)
    factor = lane_of(factor, asker, token, tiles, R * (G + G % 2), None)
    known = known_factors(factor, G, R, M, MB)
    relations += frame * H * J * M
    place += frame * offsets * ((H * PD + 1) // 2)
    high = filled(q[0], OUTSIDE, G)
    reach = filled(q[0], OUTSIDE, H * J)
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = placements(q, place + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            for m0 in range(0, M, MB):
                part = (image * M + m0) // MB
                k = load_numbers(
                    lane_of(key, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                c = contents(q, k, inside, G, MB, D)
                f = pose_factors(known, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
                new_high = raised(high, c, G, MB)
                reach, sums = add_weights(c, high, new_high, p, reach, sums, f, H, J, ALL, G, MB)
                high = new_high
    store_numbers(lane_of(peak, slot, token, tiles, G, None), high, G, None)
    logs = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            value = tl.log2(sums[h * J + j]) + high[j if ALL else h] + reach[h * J + j]
            logs = logs + (value,)
    store_numbers(lane_of(total, slot, token, tiles, H * J, None), logs, H * J, None)


@triton.jit
def add_values(
    out, x, y, f, v, lane, s, m0, frame, frames, H: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """out_h += Σ_m W[h, m] v_m, where dropout leaves the weight."""
    keep = ()
    if DROPS > 0:
        for m in tl.static_range(MB):
            number, first = numbered(s, m0 + m, frame, frames, H, M)
            keep = keep + keeps(lane, number, first, H, DROPS)
    table = ()
    for h in tl.static_range(H):
        w = weights(x, y, f, h, J, ALL, MB)
        if DROPS > 0:
            left = ()
            for m in tl.static_range(MB):
                left = left + (tl.where(keep[m * H + h], w[m], 0.0),)
            w = left
        for c in tl.static_range(D):
            entry = out[h * D + c]
            for m in tl.static_range(MB):
                entry += w[m] * v[m * D + c]
            table = table + (entry,)
    return table


@triton.jit(do_not_specialize=SIZES)
def mix_values(
    query, key, value, factor, place, steps, relations, peak, total, output, seed,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, frames, images,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """output[h] = Σ_g Σ_{m,δ} X · Y · F · v."""
    slot, token = place_in_grid(tiles)
    frame, image = slot % frames, slot // frames
    asker = image if ALL else slot
    q = load_queries(lane_of(query, asker, token, tiles, G * D, HALF), G * D, HALF)
    factor = lane_of(factor, asker, token, tiles, R * (G + G % 2), None)
    known = known_factors(factor, G, R, M, MB)
    relations += frame * H * J * M
    place += frame * offsets * ((H * PD + 1) // 2)
    high = load_numbers(lane_of(peak, slot, token, tiles, G, None), G, None)
    logs = load_numbers(lane_of(total, slot, token, tiles, H * J, None), H * J, None)
    lane = lane_key(tl.load(seed), image * tokens + token)
    out = filled(q[0], 0.0, H * D)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = placements(q, place + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            y = place_factors(p, high, logs, H, J, ALL)
            for m0 in range(0, M, MB):
                part = (image * M + m0) // MB
                k = load_numbers(
                    lane_of(key, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                x = content_factors(contents(q, k, inside, G, MB, D), high, G, MB)
                f = pose_factors(known, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
                v = load_numbers(
                    lane_of(value, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                out = add_values(
                    out, x, y, f, v, lane, s, m0, frame, frames, H, J, ALL, M, MB, D, DROPS
                )
    store_numbers(lane_of(output, slot, token, tiles, H * D, HALF), out, H * D, HALF)
