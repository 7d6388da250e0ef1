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
from turnwise.attention.triton_memory import lane_of, load_numbers, place_in_grid, store_numbers
from turnwise.attention.triton_pieces import (
    SIZES,
    dot,
    filled,
    place_factors,
    placements,
    source_of,
)


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
