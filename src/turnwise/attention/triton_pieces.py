"""What the Triton kernels of attention from frames have in common.

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
"""

import triton
import triton.language as tl

from turnwise.attention.triton_memory import TILE, load_everywhere, load_numbers, unpacked

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
