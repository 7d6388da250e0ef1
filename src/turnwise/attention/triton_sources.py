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
from turnwise.attention.triton_pieces import (
    SIZES,
    content_factors,
    contents,
    filled,
    kept,
    load_channels,
    load_row,
    place_factors,
    place_in_grid,
    placements,
    pose_factors,
    store_heads,
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
    dv, x, y, f, dout, lane, number, apart, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """dv_m += Σ_h W[h, m] dout_h."""
    kept_weights = ()
    for h in tl.static_range(H):
        row = weights(x, y, f, h, J, ALL, M)
        for m in tl.static_range(M):
            weight = row[m]
            if DROPS > 0:
                weight *= kept(lane, number + m * apart + h, DROPS)
            kept_weights = kept_weights + (weight,)
    table = ()
    for m in tl.static_range(M):
        for c in tl.static_range(D):
            total = dv[m * D + c]
            for h in tl.static_range(H):
                total += kept_weights[h * M + m] * dout[h * D + c]
            table = table + (total,)
    return table


@triton.jit(do_not_specialize=SIZES)
def source_gradients(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed,
    d_key, d_value,
    rows, cols, token_rows, token_cols, crop, tokens, pixels, offsets, frames, heads, batch,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values of MB poses, gathered from all tokens that see them."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    image, pixel, alive = place_in_grid(pixels, LANES)
    m0 = tl.program_id(1) * MB
    start = (image * M + m0) * WORDS * pixels + pixel
    k = load_channels(key + start, pixels, MB * D, alive, HALF)
    v = load_channels(value + start, pixels, MB * D, alive, HALF)
    dk = filled(k[0], 0.0, MB * D)
    dv = filled(k[0], 0.0, MB * D)
    for step in range(offsets * frames):
        s, frame = step // frames, step % frames
        row = pixel // cols - crop - tl.load(steps + 2 * s)
        col = pixel % cols - crop - tl.load(steps + 2 * s + 1)
        seen = alive & (row >= 0) & (row < token_rows) & (col >= 0) & (col < token_cols)
        if tl.max(seen.to(tl.int32), axis=0) > 0:
            token, slot = row * token_cols + col, image * frames + frame
            at = factor + (image if ALL else slot) * G * R * tokens + token
            q, known, high, logs, dout, lane = load_tokens(
                query, at, peak, total, grad, seed, slot, image, token, seen, tokens, H, G, J,
                ALL, M, MB, R, D, HALF,
            )  # fmt: skip
            worth = load_row(delta + slot * H * J * tokens + token, tokens, H * J, seen)
            p_start = place + (frame * H * offsets + s) * PD
            p = placements(q, p_start, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(p, high, logs, H, J, ALL)
            x = content_factors(contents(q, k, seen, G, MB, D), high, G, MB)
            related = relations + frame * H * J * M
            f = pose_factors(known, at, tokens, seen, related, m0, TABLE, H, J, ALL, M, MB, R)
            number = ((s * M + m0) * frames + frame) * H
            r = worths(dout, v, lane, number, frames * H, H, MB, D, DROPS)
            ds = score_gradients(x, y, f, r, worth, H, J, ALL, MB)
            dk = add_key_gradients(dk, ds, q, H, G, J, ALL, MB, D)
            dv = add_value_gradients(
                dv, x, y, f, dout, lane, number, frames * H, H, J, ALL, MB, D, DROPS
            )
    one, head = image // heads * M + m0, image % heads
    store_heads(d_key, dk, one, head, pixel, alive, pixels, heads, MB, D, WIDTH)
    store_heads(d_value, dv, one, head, pixel, alive, pixels, heads, MB, D, WIDTH)
