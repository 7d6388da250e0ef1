"""How the Triton kernels read and write: tiles of 32 tokens, numbers packed into 64-bit words.

A tensor of K numbers per token is kept as (slot, tile, word, lane): a word holds two numbers of 32
bits or four of 16, and the 32 lanes of a warp read 32 neighbouring words.  The words of one token
are a constant distance apart, so that a load costs an instruction and no address arithmetic.
Tiles are padded to their full size; nothing that is written there is ever looked at.

What the Triton kernels of attention from frames have in common.

One lane of a warp is one token (pixel of the output) of one head; the queries of all its poses live
in registers, and the lane walks over the offsets of the neighbourhood.  The softmax factorises:

    exp2(content[g, m, δ] + place[h, g, δ] + pose[h, g, m]) = X[g, m] · Y[h, g] · F[h, g, m]

so a step over δ costs |G|² exponentials and |G|³ multiplications, and nothing of the size of the
scores is ever written.

Letters:  h, g, m poses of output, query, key;  c a channel;  δ an offset, number s;  r a relation.
          H, G, M, R how many there are;  J = G queries meet every output (ALL), or J = 1, its own;
          D channels of a head, of which the first PD meet the place.
Tuples of tensors are small arrays in registers, row by row: query[g·D + c].  Key poses are taken MB
at a time: all at once in small groups, whose table of relations is compiled in, else in a loop.
Memory is in tiles of 32 tokens (triton_memory.py).

The forward pass of attention from frames: two Triton kernels.

`sum_weights` finds the logarithm of the softmax's denominators, `mix_values` the output.  Letters
and layouts as in triton_pieces.py.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(32)


@triton.jit
def place_in_grid(tiles):
    """Which slot (picture, head and frame) this program works on, and which tokens of it."""
    return (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * TILE + tl.arange(
        0, 32
    )


@triton.jit
def lane_of(pointer, slot, token, tiles, count: tl.constexpr, HALF: tl.constexpr):
    """Where the first word of each token stands, in a tensor of `count` numbers per token."""
    WORDS: tl.constexpr = (count + 1) // 2 if HALF is None else (count + 3) // 4
    return pointer + slot * tiles * (WORDS * TILE) + (token // TILE * (WORDS * TILE) + token % TILE)


@triton.jit
def unpacked(word):
    """The two floats in a word."""
    low = word.to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def packed(low, high):
    """Two floats as a word."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpacked_halves(word, HALF: tl.constexpr):
    """The two numbers of 16 bits in a word of 32, as floats; bfloat16 is the upper half of one."""
    if tl.bfloat16 == HALF:
        low = (word << 16).to(tl.float32, bitcast=True)
        high = (word & -65536).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
        high = (word >> 16).to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def packed_halves(low, high, HALF: tl.constexpr):
    """Two floats, rounded to 16 bits, as a word of 32."""
    low = low.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low | (high.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def load_numbers(pointer, count: tl.constexpr, HALF: tl.constexpr):
    """`count` numbers of each lane, and what else is in their last word."""
    row = ()
    if HALF is None:
        for i in tl.static_range((count + 1) // 2):
            row = row + unpacked(tl.load(pointer + i * TILE))
    else:
        for i in tl.static_range((count + 3) // 4):
            word = tl.load(pointer + i * TILE)
            row = row + unpacked_halves(word.to(tl.int32), HALF)
            row = row + unpacked_halves((word >> 32).to(tl.int32), HALF)
    return row


@triton.jit
def store_numbers(pointer, row, count: tl.constexpr, HALF: tl.constexpr):
    """Store `count` numbers of each lane; their last word is filled up with zeros."""
    WIDE: tl.constexpr = 2 if HALF is None else 4
    for _ in tl.static_range(WIDE):
        row = row + (tl.zeros_like(row[0]),)
    for i in tl.static_range((count + WIDE - 1) // WIDE):
        if HALF is None:
            word = packed(row[2 * i], row[2 * i + 1])
        else:
            low = packed_halves(row[4 * i], row[4 * i + 1], HALF).to(tl.int64) & 0xFFFFFFFF
            high = packed_halves(row[4 * i + 2], row[4 * i + 3], HALF).to(tl.int64)
            word = low | (high << 32)
        tl.store(pointer + i * TILE, word)


@triton.jit
def load_everywhere(pointer, count: tl.constexpr):
    """`count` floats that are the same for every lane, from consecutive words."""
    row = ()
    for i in tl.static_range((count + 1) // 2):
        row = row + unpacked(tl.load(pointer + i))
    return row


OUTSIDE = tl.constexpr(-1.0e30)
LOG2E = tl.constexpr(1.4426950408889634)
SIZES = (  # arguments that a kernel is not compiled anew for
    "rows", "cols", "token_rows", "token_cols", "crop", "tokens", "tiles", "source_tiles",
    "offsets", "frames", "images", "first",
)  # fmt: skip


@triton.jit
def load_queries(pointer, count: tl.constexpr, HALF: tl.constexpr):
    """Channels of queries, scaled so that scores are exponents of 2."""
    raw = load_numbers(pointer, count, HALF)
    row = ()
    for i in tl.static_range(count):
        row = row + (raw[i] * LOG2E,)
    return row


@triton.jit
def filled(like, value, count: tl.constexpr):
    """`count` vectors of one value."""
    row = ()
    for _ in tl.static_range(count):
        row = row + (tl.zeros_like(like) + value,)
    return row


@triton.jit
def dot(a, a_start: tl.constexpr, b, b_start: tl.constexpr, count: tl.constexpr, start):
    """start + Σ a[a_start + i] · b[b_start + i]."""
    total = start
    for i in tl.static_range(count):
        total += a[a_start + i] * b[b_start + i]
    return total


@triton.jit
def source_of(token, step, steps, rows, cols, token_cols, crop):
    """The pixel at offset number `step` from each token (pixel 0 if outside), and if it exists."""
    row = token // token_cols + crop + tl.load(steps + 2 * step)
    col = token % token_cols + crop + tl.load(steps + 2 * step + 1)
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return tl.where(inside, row * cols + col, 0), inside


@triton.jit
def contents(query, key, inside, G: tl.constexpr, M: tl.constexpr, D: tl.constexpr):
    """content[g·M + m] = q_g · k_m, far below every score where the source is outside."""
    start = tl.where(inside, 0.0, OUTSIDE)
    table = ()
    for g in tl.static_range(G):
        for m in tl.static_range(M):
            table = table + (dot(query, g * D, key, m * D, D, start),)
    return table


@triton.jit
def placements(
    query, place, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, D: tl.constexpr,
    PD: tl.constexpr,
):  # fmt: skip
    """placed[h·J + j] = q_g · P(h⁻¹δ); `place` points at the encodings of this offset."""
    encoding = load_everywhere(place, H * PD)
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            start = tl.zeros_like(query[0])
            table = table + (dot(query, (j if ALL else h) * D, encoding, h * PD, PD, start),)
    return table


@triton.jit
def raised(high, content, G: tl.constexpr, M: tl.constexpr):
    """The largest content of each query so far."""
    row = ()
    for g in tl.static_range(G):
        top = high[g]
        for m in tl.static_range(M):
            top = tl.maximum(top, content[g * M + m])
        row = row + (top,)
    return row


@triton.jit
def content_factors(content, high, G: tl.constexpr, M: tl.constexpr):
    """X[g·M + m] = exp2(content − peak)."""
    table = ()
    for g in tl.static_range(G):
        for m in tl.static_range(M):
            table = table + (tl.exp2(content[g * M + m] - high[g]),)
    return table


@triton.jit
def place_factors(
    placed, high, logs, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr
):  # fmt: skip
    """Y[h·J + j] = exp2(placed + peak − total): with it X · Y · F are the softmax's weights."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            shift = high[j if ALL else h] - logs[h * J + j]
            table = table + (tl.exp2(placed[h * J + j] + shift),)
    return table


@triton.jit
def known_factors(factor, G: tl.constexpr, R: tl.constexpr, M: tl.constexpr, MB: tl.constexpr):
    """F[r·GP + g] of every relation and query, if all key poses are taken at once; else nothing."""
    row = ()
    if MB == M:
        row = load_numbers(factor, R * (G + G % 2), None)
    return row


@triton.jit
def related(
    relations, i: tl.constexpr, j: tl.constexpr, m0, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """T(h, g, m0 + m) of entry i = h·MB + m; with own queries i = m, and the relation is the key's.

    Past the last query there is only padding: any relation will do.
    """
    if ALL:
        r = tl.load(relations + (i // MB * J + (j if j < J else 0)) * M + m0 + i % MB)
    else:
        r = m0 + i
    return r


@triton.jit
def pose_factors(
    f, factor, relations, m0, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """F[(h·J + j)·MB + m] = factor of relation T(h, g, m0 + m), known or loaded now."""
    GP: tl.constexpr = G + G % 2
    table = ()
    if MB == M:
        for h in tl.static_range(H):
            for j in tl.static_range(J):
                for m in tl.static_range(MB):
                    entry = f[TABLE[(h * J + j) * M + m] * GP + (j if ALL else h)]
                    table = table + (entry,)
    else:
        rows = ()  # by h, m, j; with own queries by m, h
        for i in tl.static_range(H * MB if ALL else MB):
            for j in tl.static_range(0, J if ALL else H, 2):
                if j == 0 or not SHARED:
                    at = factor + related(relations, i, j, m0, J, ALL, M, MB) * (GP // 2 * TILE)
                pair = unpacked(tl.load(at + j // 2 * TILE))
                if not SHARED:
                    at = factor + related(relations, i, j + 1, m0, J, ALL, M, MB) * (GP // 2 * TILE)
                    pair = (pair[0], unpacked(tl.load(at + j // 2 * TILE))[1])
                rows = rows + pair
        for h in tl.static_range(H):
            for j in tl.static_range(J):
                for m in tl.static_range(MB):
                    if ALL:
                        table = table + (rows[(h * MB + m) * GP + j],)
                    else:
                        table = table + (rows[m * GP + h],)
    return table


@triton.jit
def weights(
    x, y, f, h: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Σ_g X[g, m] · Y[h, g] · F[h, g, m] for every m."""
    row = ()
    for m in tl.static_range(M):
        total = tl.zeros_like(x[0])
        for j in tl.static_range(J):
            total += x[(j if ALL else h) * M + m] * (y[h * J + j] * f[(h * J + j) * M + m])
        row = row + (total,)
    return row


@triton.jit
def mixed(bits):
    """A good hash of 32 bits to 32 bits."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def lane_key(seed, lane):
    """What dropout's random bits depend on beside the entry's number: the seed and the lane."""
    return mixed(seed.to(tl.uint32) + lane.to(tl.uint32) * 0x9E3779B9)


@triton.jit
def keeps(key, number, first, H: tl.constexpr, DROPS: tl.constexpr):
    """Which of the outputs `first` + h dropout lets hear the source of this number.

    Two outputs share the 32 bits of a hash; DROPS of 2¹⁶ are dropped.
    """
    row = ()
    if H % 2 == 0:
        for i in tl.static_range(H // 2):
            bits = mixed(key + (number + first // 2 + i).to(tl.uint32) * 0x85EBCA6B)
            row = row + ((bits & 0xFFFF) >= DROPS, (bits >> 16) >= DROPS)
    else:
        for h in tl.static_range(H):
            out = first + h
            bits = mixed(key + (number + out // 2).to(tl.uint32) * 0x85EBCA6B)
            row = row + (((bits >> (16 * (out % 2)).to(tl.uint32)) & 0xFFFF) >= DROPS,)
    return row


@triton.jit
def numbered(s, m, frame, frames, H: tl.constexpr, M: tl.constexpr):
    """Dropout's number of source (s, m), and which output this frame begins with."""
    return (s * M + m) * ((frames * H + 1) // 2), frame * H


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
