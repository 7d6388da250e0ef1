"""The forward pass of attention from frames as two Triton kernels.

One lane of a warp is one token (pixel of the output) of one head; the queries of all its poses live
in registers, and the lane walks over the offsets of the neighbourhood.  The softmax factorises:

    exp2(content[g, m, δ] + place[h, g, δ] + pose[h, g, m]) = X[g, m] · Y[h, g] · F[h, g, m]

so a step over δ costs |G|² exponentials and |G|³ multiplications, and nothing of the size of the
scores is ever written.  `sum_weights` finds the logarithm of the softmax's denominators,
`mix_values` the output; the backward pass (triton_backward.py) uses the same pieces.

Letters:  h, g, m poses of output, query, key;  c a channel;  δ an offset, number s;  r a relation.
          H, G, M, R how many there are;  J = G queries meet every output (ALL), or J = 1, its own;
          D channels of a head, of which the first PD meet the place.
Tuples of tensors are small arrays in registers, row by row: query[g·D + c].
"""

import triton
import triton.language as tl

OUTSIDE = tl.constexpr(-1.0e30)
LOG2E = tl.constexpr(1.4426950408889634)
SIZES = (  # arguments that a kernel is not compiled anew for
    "rows", "cols", "token_rows", "token_cols", "crop", "tokens", "pixels", "offsets", "frames",
    "heads", "first",
)  # fmt: skip


@triton.jit
def load_row(pointer, stride, count: tl.constexpr, mask):
    """The `count` numbers of each lane that stand `stride` apart."""
    row = ()
    for i in tl.static_range(count):
        row = row + (tl.load(pointer + i * stride, mask=mask, other=0.0),)
    return row


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
def weights(
    x, y, f, h: tl.constexpr, TABLE: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Σ_g X[g, m] · Y[h, g] · F[h, g, m] for every m."""
    row = ()
    for m in tl.static_range(M):
        total = tl.zeros_like(x[0])
        for j in tl.static_range(J):
            pose = f[(j if ALL else h) * R + TABLE[(h * J + j) * M + m]]
            total += x[(j if ALL else h) * M + m] * (y[h * J + j] * pose)
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


@triton.jit(do_not_specialize=SIZES)
def sum_weights(
    query, key, factor, place, steps, peak, total,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr, HALF: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """peak[g] = max content;  total[h, g] = log₂ Σ_{m,δ} exp2(score)."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    q = load_queries(query + slot * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    f = load_row(factor + slot * G * R * tokens + token, tokens, G * R, alive)
    k_start, p_start = key + image * M * WORDS * pixels, place + frame * H * offsets * PD
    high = filled(q[0], OUTSIDE, G)
    reach = filled(q[0], OUTSIDE, H * J)
    sums = filled(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            k = load_channels(k_start + source, pixels, M * D, inside, HALF)
            c = contents(q, k, inside, G, M, D)
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            new_high = raised(high, c, G, M)
            x = content_factors(c, new_high, G, M)
            new_reach = ()
            new_sums = ()
            for h in tl.static_range(H):
                for j in tl.static_range(J):
                    top = tl.maximum(reach[h * J + j], p[h * J + j])
                    fresh = tl.zeros_like(top)
                    for m in tl.static_range(M):
                        pose = f[(j if ALL else h) * R + TABLE[(h * J + j) * M + m]]
                        fresh += pose * x[(j if ALL else h) * M + m]
                    fade = high[j if ALL else h] - new_high[j if ALL else h]
                    fade = tl.exp2(fade + (reach[h * J + j] - top))
                    fresh *= tl.exp2(p[h * J + j] - top)
                    new_reach = new_reach + (top,)
                    new_sums = new_sums + (sums[h * J + j] * fade + fresh,)
            high = new_high
            reach = new_reach
            sums = new_sums
    for g in tl.static_range(G):
        tl.store(peak + (slot * G + g) * tokens + token, high[g], mask=alive)
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            value = tl.log2(sums[h * J + j]) + high[j if ALL else h] + reach[h * J + j]
            tl.store(total + ((slot * H + h) * J + j) * tokens + token, value, mask=alive)


@triton.jit(do_not_specialize=SIZES)
def mix_values(
    query, key, value, factor, place, steps, peak, total, output, seed,
    rows, cols, token_cols, crop, tokens, pixels, offsets, frames, heads,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr, HALF: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """output[h] = Σ_g Σ_{m,δ} X · Y · F · v, in the layout of the model."""
    WORDS: tl.constexpr = D if HALF is None else D // 2
    slot, token, alive = place_in_grid(tokens, LANES)
    frame, image = slot % frames, slot // frames
    q = load_queries(query + slot * G * WORDS * tokens + token, tokens, G * D, alive, HALF)
    f = load_row(factor + slot * G * R * tokens + token, tokens, G * R, alive)
    high = load_row(peak + slot * G * tokens + token, tokens, G, alive)
    logs = load_row(total + slot * H * J * tokens + token, tokens, H * J, alive)
    k_start, v_start = key + image * M * WORDS * pixels, value + image * M * WORDS * pixels
    p_start = place + frame * H * offsets * PD
    lane = lane_key(tl.load(seed), image * tokens + token)
    out = filled(q[0], 0.0, H * D)
    for s in range(offsets):
        source, inside = source_of(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & alive
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            k = load_channels(k_start + source, pixels, M * D, inside, HALF)
            x = content_factors(contents(q, k, inside, G, M, D), high, G, M)
            p = placements(q, p_start + s * PD, H, J, ALL, D, PD, offsets * PD)
            y = place_factors(p, high, logs, H, J, ALL)
            v = load_channels(v_start + source, pixels, M * D, inside, HALF)
            new_out = ()
            for h in tl.static_range(H):
                w = weights(x, y, f, h, TABLE, J, ALL, M, R)
                if DROPS > 0:
                    left = ()
                    for m in tl.static_range(M):
                        number = ((s * M + m) * frames + frame) * H + h
                        left = left + (w[m] * kept(lane, number, DROPS),)
                    w = left
                for c in tl.static_range(D):
                    entry = out[h * D + c]
                    for m in tl.static_range(M):
                        entry += w[m] * v[m * D + c]
                    new_out = new_out + (entry,)
            out = new_out
    first = (image // heads * frames + frame) * H
    store_heads(output, out, first, image % heads, token, alive, tokens, heads, H, D, WIDTH)
