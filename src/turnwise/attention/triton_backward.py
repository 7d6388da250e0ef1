"""The backward pass of attention from frames on the side of the tokens; it recomputes every weight.

`sum_worths` finds Δ (triton_gradients.py has the formulas), `query_gradients` walks from each token
to its sources; `source_gradients` (triton_sources.py) goes from each source back to the tokens that
see it, so nothing is added up by atomics and two runs give the same bits.
"""

import triton
import triton.language as tl

from turnwise.attention.triton_gradients import (
    add_content_gradients,
    add_place_score_gradients,
    add_placed_gradients,
    add_pose_gradients,
    add_worths,
    load_tokens,
    meet_sources,
    score_gradients,
    store_place_shares,
)
from turnwise.attention.triton_pieces import (
    SIZES,
    filled,
    load_row,
    place_factors,
    place_in_grid,
    placements,
    source_of,
    store_heads,
    store_row,
)


@triton.jit(do_not_specialize=SIZES)
def sum_worths(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads, batch,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, LANES: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """delta[h, g] = Σ_{m,δ} A · r."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    factor += (image if ALL else slot) * G * R * tokens + token
    q, known, high, logs, dout, lane = load_tokens(
        query, factor, peak, total, grad, seed, slot, image, token, alive, tokens, H, G, J, ALL,
        M, MB, R, D, HALF,
    )  # fmt: skip
    relations, place = relations + frame * H * J * M, place + frame * H * offsets * PD
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            placed = placements(q, place + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(placed, high, logs, H, J, ALL)
            for m0 in range(0, M, MB):
                at = (image * M + m0) * WORDS * pixels + source
                number = ((s * M + m0) * frames + frame) * H
                _, x, f, r = meet_sources(
                    q, known, high, dout, lane, key + at, value + at, factor, relations, inside,
                    alive, tokens, pixels, number, frames * H, m0, TABLE, H, G, J, ALL, M, MB, R,
                    D, HALF, DROPS,
                )  # fmt: skip
                sums = add_worths(sums, x, y, f, r, H, J, ALL, MB)
    store_row(delta + slot * H * J * tokens + token, sums, tokens, H * J, alive)


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    query, key, value, factor, place, steps, relations, peak, total, grad, delta, seed,
    d_query, d_pose, d_place, first,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads, batch,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and pose scores, and this program's share of those of places."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    share = image * tl.cdiv(tokens, LANES) + tl.program_id(0) % tl.cdiv(tokens, LANES)
    share = d_place + (share * frames + frame) * H * offsets * PD
    slot, image = slot + first * frames, image + first
    factor += (image if ALL else slot) * G * R * tokens + token
    q, known, high, logs, dout, lane = load_tokens(
        query, factor, peak, total, grad, seed, slot, image, token, alive, tokens, H, G, J, ALL,
        M, MB, R, D, HALF,
    )  # fmt: skip
    worth = load_row(delta + slot * H * J * tokens + token, tokens, H * J, alive)
    relations, place = relations + frame * H * J * M, place + frame * H * offsets * PD
    d_pose += slot * G * R * tokens + token
    dq, df = filled(q[0], 0.0, G * D), filled(q[0], 0.0, G * R if MB == M else 0)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            placed = placements(q, place + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(placed, high, logs, H, J, ALL)
            dp = filled(q[0], 0.0, H * J)
            for m0 in range(0, M, MB):
                at = (image * M + m0) * WORDS * pixels + source
                number = ((s * M + m0) * frames + frame) * H
                k, x, f, r = meet_sources(
                    q, known, high, dout, lane, key + at, value + at, factor, relations, inside,
                    alive, tokens, pixels, number, frames * H, m0, TABLE, H, G, J, ALL, M, MB, R,
                    D, HALF, DROPS,
                )  # fmt: skip
                ds = score_gradients(x, y, f, r, worth, H, J, ALL, MB)
                dq = add_content_gradients(dq, ds, k, H, G, J, ALL, MB, D)
                dp = add_place_score_gradients(dp, ds, H * J, MB)
                df = add_pose_gradients(
                    df, d_pose, ds, tokens, alive, relations, m0, TABLE, H, G, J, ALL, M, MB, R
                )
            dq = add_placed_gradients(dq, dp, place + s * PD, offsets * PD, H, G, J, ALL, D, PD)
            store_place_shares(share + s * PD, dp, q, alive, offsets * PD, H, J, ALL, D, PD)
    one = frame * batch + image // heads if ALL else image // heads * frames + frame
    store_heads(d_query, dq, one * G, image % heads, token, alive, tokens, heads, G, D, WIDTH)
    store_row(d_pose, df, tokens, G * R if MB == M else 0, alive)
