"""The gradient of the pose scores in large groups, whose relations do not fit into registers.

One lane is one token; it takes a few key poses at a time, walks over the offsets for each, and
writes each relation's gradient when it is complete (triton_gradients.py has the formulas).
"""

import triton
import triton.language as tl

from turnwise.attention.triton_gradients import load_tokens, meet_sources, score_gradients
from turnwise.attention.triton_memory import (
    TILE,
    lane_of,
    load_numbers,
    packed,
    place_in_grid,
    unpacked,
)
from turnwise.attention.triton_pieces import (
    SIZES,
    filled,
    place_factors,
    placements,
    related,
    source_of,
)


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
