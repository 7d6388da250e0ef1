"""Triton kernels of group attention: memory access, shared functions and the forward pass.

Memory.  A tensor with K numbers per token is stored as (index, tile, word, thread): tiles have 32
tokens, and a 64-bit word holds two numbers of 32 bits or four of 16.  The 32 threads of a warp read
32 consecutive words.  The words of one token are a constant distance apart, so a load takes one
instruction and no address arithmetic.  Tiles are padded to full size; the padding is never read.

Work.  One thread handles one token (output pixel) of one item (a head of an image).  It keeps the
queries of all group elements in registers and loops over the offsets of the neighbourhood.  The
softmax factorises:

    exp2(content[g, m, δ] + position[h, g, δ] + orientation[h, g, m])
        = X[g, m] · Y[h, g] · F[h, g, m]

so one offset costs |G|² exponentials and |G|³ multiplications.  The scores are never stored.
`softmax_totals` computes the logarithms of the denominators, `weighted_values` the output.

Letters:  h, g, m group elements of output, query, key;  c a channel;  δ an offset, number s;
          r a relation T(h, g, m).  H, G, M, R are their counts;  J = G queries meet every output
          (ALL), or J = 1 (each output's own query).
          D channels of a head; the first PD of them meet the position encoding.
Tuples of tensors are small arrays in registers, row by row: query[g·D + c].  Output elements are
processed in chunks.  Keys are processed MB group elements at a time: all at once in small groups,
whose table of relations is compiled in, otherwise in a loop.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(32)


@triton.jit
def program_indices(tiles):
    """Return the index (item and chunk) that this program handles, and its tokens."""
    token = tl.program_id(0) % tiles * TILE + tl.arange(0, 32)
    return (tl.program_id(0) // tiles).to(tl.int64), token


@triton.jit
def token_pointer(pointer, index, token, tiles, count: tl.constexpr, HALF: tl.constexpr):
    """Return a pointer to the first word of each token; `count` numbers per token."""
    WORDS: tl.constexpr = (count + 1) // 2 if HALF is None else (count + 3) // 4
    first = pointer + index * tiles * (WORDS * TILE)
    return first + (token // TILE * (WORDS * TILE) + token % TILE)


@triton.jit
def unpack_floats(word):
    """Unpack the two floats of a 64-bit word."""
    low = word.to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def pack_floats(low, high):
    """Pack two floats into a 64-bit word."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpack_halves(word, HALF: tl.constexpr):
    """Unpack two 16-bit numbers of a 32-bit word to floats; bfloat16 is the upper half of one."""
    if tl.bfloat16 == HALF:
        low = (word << 16).to(tl.float32, bitcast=True)
        high = (word & -65536).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
        high = (word >> 16).to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def pack_halves(low, high, HALF: tl.constexpr):
    """Round two floats to 16 bits and pack them into a 32-bit word."""
    low = low.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low | (high.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def load_floats(pointer, count: tl.constexpr, HALF: tl.constexpr):
    """Load `count` numbers per thread, and the padding in their last word."""
    row = ()
    if HALF is None:
        for i in tl.static_range((count + 1) // 2):
            row = row + unpack_floats(tl.load(pointer + i * TILE))
    else:
        for i in tl.static_range((count + 3) // 4):
            word = tl.load(pointer + i * TILE)
            row = row + unpack_halves(word.to(tl.int32), HALF)
            row = row + unpack_halves((word >> 32).to(tl.int32), HALF)
    return row


@triton.jit
def store_floats(pointer, row, count: tl.constexpr, HALF: tl.constexpr):
    """Store `count` numbers per thread; the last word is padded with zeros."""
    WIDE: tl.constexpr = 2 if HALF is None else 4
    for _ in tl.static_range(WIDE):
        row = row + (tl.zeros_like(row[0]),)
    for i in tl.static_range((count + WIDE - 1) // WIDE):
        if HALF is None:
            word = pack_floats(row[2 * i], row[2 * i + 1])
        else:
            low = pack_halves(row[4 * i], row[4 * i + 1], HALF).to(tl.int64) & 0xFFFFFFFF
            high = pack_halves(row[4 * i + 2], row[4 * i + 3], HALF).to(tl.int64)
            word = low | (high << 32)
        tl.store(pointer + i * TILE, word)


@triton.jit
def load_broadcast(pointer, count: tl.constexpr):
    """Load `count` floats that are the same for every thread, from consecutive words."""
    row = ()
    for i in tl.static_range((count + 1) // 2):
        row = row + unpack_floats(tl.load(pointer + i))
    return row


OUTSIDE = tl.constexpr(-1.0e30)
LOG2E = tl.constexpr(1.4426950408889634)
SIZES = (  # arguments that a kernel is not compiled anew for
    "rows", "cols", "token_rows", "token_cols", "crop", "tokens", "tiles", "source_tiles",
    "offsets", "chunks", "items", "first",
)  # fmt: skip


@triton.jit
def load_queries(pointer, count: tl.constexpr, HALF: tl.constexpr):
    """Load query channels, scaled by log₂(e) so that scores are exponents of 2."""
    raw = load_floats(pointer, count, HALF)
    row = ()
    for i in tl.static_range(count):
        row = row + (raw[i] * LOG2E,)
    return row


@triton.jit
def full(like, value, count: tl.constexpr):
    """Return `count` vectors of one value."""
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
def source_pixel(token, step, steps, rows, cols, token_cols, crop):
    """Return the pixel at offset `step` from each token (0 if outside), and whether it exists."""
    row = token // token_cols + crop + tl.load(steps + 2 * step)
    col = token % token_cols + crop + tl.load(steps + 2 * step + 1)
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return tl.where(inside, row * cols + col, 0), inside


@triton.jit
def content_scores(query, key, inside, G: tl.constexpr, M: tl.constexpr, D: tl.constexpr):
    """content[g·M + m] = q_g · k_m, far below every other score if the source is outside."""
    start = tl.where(inside, 0.0, OUTSIDE)
    table = ()
    for g in tl.static_range(G):
        for m in tl.static_range(M):
            table = table + (dot(query, g * D, key, m * D, D, start),)
    return table


@triton.jit
def position_scores(
    query, position, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, D: tl.constexpr,
    PD: tl.constexpr,
):  # fmt: skip
    """p[h·J + j] = q_g · P(h⁻¹δ); `position` points at the encodings of δ."""
    encoding = load_broadcast(position, H * PD)
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            start = tl.zeros_like(query[0])
            table = table + (dot(query, (j if ALL else h) * D, encoding, h * PD, PD, start),)
    return table


@triton.jit
def running_max(c_max, content, G: tl.constexpr, M: tl.constexpr):
    """Update the largest content score of each query."""
    row = ()
    for g in tl.static_range(G):
        top = c_max[g]
        for m in tl.static_range(M):
            top = tl.maximum(top, content[g * M + m])
        row = row + (top,)
    return row


@triton.jit
def content_factors(content, c_max, G: tl.constexpr, M: tl.constexpr):
    """X[g·M + m] = exp2(content − c_max)."""
    table = ()
    for g in tl.static_range(G):
        for m in tl.static_range(M):
            table = table + (tl.exp2(content[g * M + m] - c_max[g]),)
    return table


@triton.jit
def position_factors(
    p, c_max, log_totals, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr
):  # fmt: skip
    """Y[h·J + j] = exp2(p + c_max − log total), so that X · Y · F are the softmax weights."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            shift = c_max[j if ALL else h] - log_totals[h * J + j]
            table = table + (tl.exp2(p[h * J + j] + shift),)
    return table


@triton.jit
def load_factors(factor, G: tl.constexpr, R: tl.constexpr, M: tl.constexpr, MB: tl.constexpr):
    """Load F[r·GP + g] of all relations and queries if all keys are processed at once."""
    row = ()
    if MB == M:
        row = load_floats(factor, R * (G + G % 2), None)
    return row


@triton.jit
def relation_index(
    relations, i: tl.constexpr, j: tl.constexpr, m0, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr,
):  # fmt: skip
    """Return T(h, g, m0 + m) of entry i = h·MB + m; with own queries i = m, and it is the key's.

    Beyond the last query there is only padding: any relation will do.
    """
    if ALL:
        r = tl.load(relations + (i // MB * J + (j if j < J else 0)) * M + m0 + i % MB)
    else:
        r = m0 + i
    return r


@triton.jit
def orientation_factors(
    f, factor, relations, m0, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """F[(h·J + j)·MB + m]: the factor of relation T(h, g, m0 + m), in registers or loaded now."""
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
                    relation = relation_index(relations, i, j, m0, J, ALL, M, MB)
                    at = factor + relation * (GP // 2 * TILE)
                pair = unpack_floats(tl.load(at + j // 2 * TILE))
                if not SHARED:
                    relation = relation_index(relations, i, j + 1, m0, J, ALL, M, MB)
                    at = factor + relation * (GP // 2 * TILE)
                    pair = (pair[0], unpack_floats(tl.load(at + j // 2 * TILE))[1])
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
def hashed(bits):
    """Hash 32 bits to 32 bits, as `hashed_dropout` does."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def dropout_key(seed, index):
    """Hash the seed and the (item, token) index: the first half of a dropout hash."""
    return hashed(seed.to(tl.uint32) + index.to(tl.uint32) * 0x9E3779B9)


@triton.jit
def keep_mask(key, number, first, H: tl.constexpr, DROPS: tl.constexpr):
    """Return which of the outputs `first` + h keep the source with this number.

    Two outputs share the 32 bits of a hash; DROPS of 2¹⁶ are dropped.
    """
    row = ()
    if H % 2 == 0:
        for i in tl.static_range(H // 2):
            bits = hashed(key + (number + first // 2 + i).to(tl.uint32) * 0x85EBCA6B)
            row = row + ((bits & 0xFFFF) >= DROPS, (bits >> 16) >= DROPS)
    else:
        for h in tl.static_range(H):
            out = first + h
            bits = hashed(key + (number + out // 2).to(tl.uint32) * 0x85EBCA6B)
            row = row + (((bits >> (16 * (out % 2)).to(tl.uint32)) & 0xFFFF) >= DROPS,)
    return row


@triton.jit
def dropout_number(s, m, chunk, chunks, H: tl.constexpr, M: tl.constexpr):
    """Return the dropout number of source (s, m), and the first output of this chunk."""
    return (s * M + m) * ((chunks * H + 1) // 2), chunk * H


@triton.jit
def update_sums(
    c, c_max, new_c_max, p, p_max, sums, f, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    G: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Add one offset to the sums of weights and position maxima, and rescale them."""
    x = content_factors(c, new_c_max, G, M)
    new_p_max = ()
    new_sums = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            top = tl.maximum(p_max[h * J + j], p[h * J + j])
            added = tl.zeros_like(top)
            for m in tl.static_range(M):
                added += f[(h * J + j) * M + m] * x[(j if ALL else h) * M + m]
            rescale = c_max[j if ALL else h] - new_c_max[j if ALL else h]
            rescale = tl.exp2(rescale + (p_max[h * J + j] - top))
            added *= tl.exp2(p[h * J + j] - top)
            new_p_max = new_p_max + (top,)
            new_sums = new_sums + (sums[h * J + j] * rescale + added,)
    return new_p_max, new_sums


@triton.jit(do_not_specialize=SIZES)
def softmax_totals(
    query, key, factor, position, steps, relations, peak, total,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """peak[g] = max content;  total[h, g] = log₂ Σ_{m,δ} exp2(score)."""
    index, token = program_indices(tiles)
    chunk, item = index % chunks, index // chunks
    query_index = item if ALL else index
    q = load_queries(token_pointer(query, query_index, token, tiles, G * D, HALF), G * D, HALF)
    factor = token_pointer(factor, query_index, token, tiles, R * (G + G % 2), None)
    factors = load_factors(factor, G, R, M, MB)
    relations += chunk * H * J * M
    position += chunk * offsets * ((H * PD + 1) // 2)
    c_max = full(q[0], OUTSIDE, G)
    p_max = full(q[0], OUTSIDE, H * J)
    sums = full(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_pixel(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = position_scores(q, position + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            for m0 in range(0, M, MB):
                part = (item * M + m0) // MB
                k = load_floats(
                    token_pointer(key, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                c = content_scores(q, k, inside, G, MB, D)
                f = orientation_factors(
                    factors, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED
                )
                new_c_max = running_max(c_max, c, G, MB)
                p_max, sums = update_sums(c, c_max, new_c_max, p, p_max, sums, f, H, J, ALL, G, MB)
                c_max = new_c_max
    store_floats(token_pointer(peak, index, token, tiles, G, None), c_max, G, None)
    log_totals = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            value = tl.log2(sums[h * J + j]) + c_max[j if ALL else h] + p_max[h * J + j]
            log_totals = log_totals + (value,)
    store_floats(token_pointer(total, index, token, tiles, H * J, None), log_totals, H * J, None)


@triton.jit
def add_values(
    out, x, y, f, v, drop_key, s, m0, chunk, chunks, H: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """out_h += Σ_m W[h, m] v_m, without the weights that dropout removes."""
    keep = ()
    if DROPS > 0:
        for m in tl.static_range(MB):
            number, first = dropout_number(s, m0 + m, chunk, chunks, H, M)
            keep = keep + keep_mask(drop_key, number, first, H, DROPS)
    table = ()
    for h in tl.static_range(H):
        w = weights(x, y, f, h, J, ALL, MB)
        if DROPS > 0:
            kept = ()
            for m in tl.static_range(MB):
                kept = kept + (tl.where(keep[m * H + h], w[m], 0.0),)
            w = kept
        for c in tl.static_range(D):
            entry = out[h * D + c]
            for m in tl.static_range(MB):
                entry += w[m] * v[m * D + c]
            table = table + (entry,)
    return table


@triton.jit(do_not_specialize=SIZES)
def weighted_values(
    query, key, value, factor, position, steps, relations, peak, total, output, seed,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """output[h] = Σ_g Σ_{m,δ} X · Y · F · v."""
    index, token = program_indices(tiles)
    chunk, item = index % chunks, index // chunks
    query_index = item if ALL else index
    q = load_queries(token_pointer(query, query_index, token, tiles, G * D, HALF), G * D, HALF)
    factor = token_pointer(factor, query_index, token, tiles, R * (G + G % 2), None)
    factors = load_factors(factor, G, R, M, MB)
    relations += chunk * H * J * M
    position += chunk * offsets * ((H * PD + 1) // 2)
    c_max = load_floats(token_pointer(peak, index, token, tiles, G, None), G, None)
    log_totals = load_floats(token_pointer(total, index, token, tiles, H * J, None), H * J, None)
    drop_key = dropout_key(tl.load(seed), item * tokens + token)
    out = full(q[0], 0.0, H * D)
    for s in range(offsets):
        source, inside = source_pixel(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = position_scores(q, position + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            y = position_factors(p, c_max, log_totals, H, J, ALL)
            for m0 in range(0, M, MB):
                part = (item * M + m0) // MB
                k = load_floats(
                    token_pointer(key, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                x = content_factors(content_scores(q, k, inside, G, MB, D), c_max, G, MB)
                f = orientation_factors(
                    factors, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED
                )
                v = load_floats(
                    token_pointer(value, part, source, source_tiles, MB * D, HALF), MB * D, HALF
                )
                out = add_values(
                    out, x, y, f, v, drop_key, s, m0, chunk, chunks, H, J, ALL, M, MB, D, DROPS
                )
    store_floats(token_pointer(output, index, token, tiles, H * D, HALF), out, H * D, HALF)
