"""The gradients of keys and values, gathered from the tokens that see them.

One lane is one pixel of one head; it walks over the offsets backwards and recomputes the weights
that the tokens there gave it (triton_gradients.py has the formulas).
"""

import triton
import triton.language as tl

from turnwise.attention.triton_gradients import (
    LN2,
    load_tokens,
    over_outputs,
    score_gradients,
    worths,
)
from turnwise.attention.triton_memory import lane_of, load_numbers, place_in_grid, store_numbers
from turnwise.attention.triton_pieces import (
    SIZES,
    content_factors,
    contents,
    filled,
    keeps,
    numbered,
    place_factors,
    placements,
    pose_factors,
    weights,
)


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
