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
"""

import triton
import triton.language as tl

OUTSIDE = tl.constexpr(-1.0e30)
LOG2E = tl.constexpr(1.4426950408889634)
SIZES = (  # arguments that a kernel is not compiled anew for
    "rows", "cols", "token_rows", "token_cols", "crop", "tokens", "pixels", "offsets", "frames",
    "heads", "batch", "first",
)  # fmt: skip


@triton.jit
def load_row(pointer, stride, count: tl.constexpr, mask):
    """The `count` numbers of each lane that stand `stride` apart."""
    row = ()
    for i in tl.static_range(count):
        row = row + (tl.load(pointer + i * stride, mask=mask, other=0.0),)
    return row


@triton.jit
def store_row(pointer, row, stride, count: tl.constexpr, mask):
    """Store `count` numbers of each lane, `stride` apart."""
    for i in tl.static_range(count):
        tl.store(pointer + i * stride, row[i], mask=mask)


@triton.jit
def load_channels(pointer, stride, count: tl.constexpr, mask, HALF: tl.constexpr):
    """The same for channels, which come in pairs if they are of 16 bits, two in one word."""
    row = ()
    if HALF is None:
        row = load_row(pointer, stride, count, mask)
    else:
        for i in tl.static_range(count // 2):
            word = tl.load(pointer + i * stride, mask=mask, other=0)
            low, high = word.to(tl.int16), (word >> 16).to(tl.int16)
            row = row + (
                low.to(HALF, bitcast=True).to(tl.float32),
                high.to(HALF, bitcast=True).to(tl.float32),
            )
    return row


@triton.jit
def load_queries(pointer, stride, count: tl.constexpr, mask, HALF: tl.constexpr):
    """Channels of queries, scaled so that scores are exponents of 2."""
    raw = load_channels(pointer, stride, count, mask, HALF)
    row = ()
    for i in tl.static_range(count):
        row = row + (raw[i] * LOG2E,)
    return row


@triton.jit
def store_heads(
    pointer, rows, first, head, pixel, mask, pixels, heads, COUNT: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Store row after row of D channels, WIDTH of them real, as (pose, pixel, head, channel)."""
    for i in tl.static_range(COUNT):
        for c in tl.static_range(WIDTH):
            at = pointer + (((first + i) * pixels + pixel) * heads + head) * WIDTH + c
            tl.store(at, rows[i * D + c].to(pointer.dtype.element_ty), mask=mask)


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
def place_in_grid(tokens, LANES: tl.constexpr):
    """Which slot (picture, head and frame) this program works on, and which tokens of it."""
    tiles = tl.cdiv(tokens, LANES)
    token = tl.program_id(0) % tiles * LANES + tl.arange(0, LANES)
    return (tl.program_id(0) // tiles).to(tl.int64), token, token < tokens


@triton.jit
def source_of(token, step, steps, rows, cols, token_cols, crop):
    """The pixel at offset number `step` from each token, and whether it is in the picture."""
    row = token // token_cols + crop + tl.load(steps + 2 * step)
    col = token % token_cols + crop + tl.load(steps + 2 * step + 1)
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    return row * cols + col, inside


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
    PD: tl.constexpr, stride,
):  # fmt: skip
    """placed[h·J + j] = q_g · P(h⁻¹δ); `place` points at the encoding of h = 0."""
    table = ()
    for h in tl.static_range(H):
        encoding = ()
        for c in tl.static_range(PD):
            encoding = encoding + (tl.load(place + h * stride + c),)
        for j in tl.static_range(J):
            start = tl.zeros_like(query[0])
            table = table + (dot(query, (j if ALL else h) * D, encoding, 0, PD, start),)
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
def known_factors(
    factor, stride, mask, G: tl.constexpr, R: tl.constexpr, M: tl.constexpr, MB: tl.constexpr
):
    """F of every query and relation, if all key poses are taken at once; else nothing yet."""
    row = ()
    if MB == M:
        row = load_row(factor, stride, G * R, mask)
    return row


@triton.jit
def pose_factors(
    f, factor, stride, mask, relations, m0, TABLE: tl.constexpr, H: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """F[(h·J + j)·MB + m] = factor of relation T(h, g, m0 + m), known or loaded now."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            for m in tl.static_range(MB):
                if MB == M:
                    entry = f[(j if ALL else h) * R + TABLE[(h * J + j) * M + m]]
                else:
                    r = tl.load(relations + (h * J + j) * M + m0 + m)
                    at = factor + ((j if ALL else h) * R + r) * stride
                    entry = tl.load(at, mask=mask, other=0.0)
                table = table + (entry,)
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
def kept(key, number, DROPS: tl.constexpr):
    """1 where dropout keeps the entry of this number, 0 where not; DROPS of 2³² are dropped."""
    bits = mixed(key + (tl.zeros_like(key) + number).to(tl.uint32) * 0x85EBCA6B)
    return (bits >= DROPS).to(tl.float32)
