"""Around the products of a RotoConv on CUDA: windows in the basis, and the greatest answer.

A program takes some channels of some windows and has all taps, rows or products of them in
registers, so that each is read once and written once.

Letters:  t a tap of the K × K window;  i a row of the basis: row b of copy j of a block;
          p a product (a, b) of a block;  g an element, y_g its answer.
          C channels, in or out;  SIZE how many entries a program takes.
Memory:   maps (picture, row, col, C);  taps (window, t, C);  the rows of a block (b, window, j, C)
          and its products (b, window, a, C): as matrix products take and leave them.
          Windows count (picture, newrow, newcol), an entry e counts (window, channel).
Tables:   of a row or product: BLOCK, which tensor it is in; FIRST, how often all windows are
          before it there; STEP, how many vectors of channels a window has; SHIFT, which it is.
"""

import triton
import triton.language as tl


@triton.jit
def entries_here(windows, C: tl.constexpr, SIZE: tl.constexpr):
    """Windows, channels, and which of them exist; in 64 bits."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return e // C, e % C, e < tl.cast(windows, tl.int64) * C


@triton.jit
def places(m, rows, cols):
    """Picture, row and column of windows or pixels; in 32 bits, where division is far cheaper."""
    m = m.to(tl.int32)
    return (m // (rows * cols)).to(tl.int64), m // cols % rows, m % cols


@triton.jit
def place(
    tensors, windows, m, c, i: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Where row or product i of the windows m is."""
    before = tl.cast(windows, tl.int64) * FIRST[i]
    return tensors[BLOCK[i]] + ((before + m) * STEP[i] + SHIFT[i]) * C + c


@triton.jit
def load_all(
    tensors, windows, m, c, inside, MANY: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """One vector for each row or product."""
    vectors = ()
    for i in tl.static_range(MANY):
        here = place(tensors, windows, m, c, i, C, BLOCK, FIRST, STEP, SHIFT)
        vectors = vectors + (tl.load(here, inside).to(tl.float32),)
    return vectors


@triton.jit
def combined(vectors, TABLE: tl.constexpr, START: tl.constexpr, STRIDE: tl.constexpr,
             MANY: tl.constexpr):  # fmt: skip
    """Σ_j TABLE[START + j STRIDE] x[j]; what is zero is not even added."""
    total = tl.zeros_like(vectors[0])
    for j in tl.static_range(MANY):
        if TABLE[START + j * STRIDE] != 0.0:
            total += vectors[j] * TABLE[START + j * STRIDE]
    return total


@triton.jit
def windows_to_rows(
    maps, r0, r1, r2, r3, r4, windows, height, width, newrows, newcols, TABLE: tl.constexpr,
    BLOCK: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """x̂ = TABLE x for every window; beyond the edge the maps are zero."""
    m, c, inside = entries_here(windows, C, SIZE)
    picture, newrow, newcol = places(m, newrows, newcols)
    row, col = newrow * STRIDE - PADDING, newcol * STRIDE - PADDING
    taps = ()
    for t in tl.static_range(K * K):
        r, q = row + t // K, col + t % K
        there = inside & (r >= 0) & (r < height) & (q >= 0) & (q < width)
        tap = tl.load(maps + ((picture * height + r) * width + q) * C + c, there, other=0.0)
        taps = taps + (tap.to(tl.float32),)
    rows = (r0, r1, r2, r3, r4)
    for i in tl.static_range(K * K):
        here = place(rows, windows, m, c, i, C, BLOCK, FIRST, STEP, SHIFT)
        total = combined(taps, TABLE, i * K * K, 1, K * K)
        tl.store(here, total.to(r0.dtype.element_ty), inside)


@triton.jit
def rows_to_taps(
    taps, r0, r1, r2, r3, r4, windows, TABLE: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of the windows, TABLEᵀ times that of the rows."""
    m, c, inside = entries_here(windows, C, SIZE)
    rows = (r0, r1, r2, r3, r4)
    vectors = load_all(rows, windows, m, c, inside, K * K, C, BLOCK, FIRST, STEP, SHIFT)
    for t in tl.static_range(K * K):
        total = combined(vectors, TABLE, t, K * K, K * K)
        here = taps + (m * (K * K) + t) * C + c
        tl.store(here, total.to(taps.dtype.element_ty), inside)


@triton.jit
def fold(
    taps, maps, pixels, height, width, newrows, newcols, K: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Each pixel gets the sum of what windows have for it."""
    m, c, inside = entries_here(pixels, C, SIZE)
    picture, row, col = places(m, height, width)
    row, col = row + PADDING, col + PADDING
    total = tl.zeros([SIZE], tl.float32)
    for down in tl.static_range((K + STRIDE - 1) // STRIDE):
        for right in tl.static_range((K + STRIDE - 1) // STRIDE):
            newrow, newcol = row // STRIDE - down, col // STRIDE - right
            r, q = row - newrow * STRIDE, col - newcol * STRIDE
            there = inside & (newrow >= 0) & (newrow < newrows) & (r < K)
            there = there & (newcol >= 0) & (newcol < newcols) & (q < K)
            window = (picture * newrows + newrow) * newcols + newcol
            tap = tl.load(taps + (window * (K * K) + r * K + q) * C + c, there, other=0.0)
            total += tap.to(tl.float32)
    tl.store(maps + m * C + c, total.to(maps.dtype.element_ty), inside)


@triton.jit
def greatest_answer(
    best, which, p0, p1, p2, p3, p4, windows, ANSWERS: tl.constexpr, G: tl.constexpr,
    MANY: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    SHIFT: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """max_g y_g and its g, the first of equals, y = ANSWERS P; not a number wins."""
    m, c, inside = entries_here(windows, C, SIZE)
    products = load_all(
        (p0, p1, p2, p3, p4), windows, m, c, inside, MANY, C, BLOCK, FIRST, STEP, SHIFT
    )
    greatest = combined(products, ANSWERS, 0, 1, MANY)
    winner = tl.zeros([SIZE], tl.int32)
    for g in tl.static_range(1, G):
        answer = combined(products, ANSWERS, g * MANY, 1, MANY)
        wins = (answer > greatest) | (answer != answer)
        greatest, winner = tl.where(wins, answer, greatest), tl.where(wins, g, winner)
    tl.store(best + m * C + c, greatest.to(best.dtype.element_ty), inside)
    tl.store(which + m * C + c, winner.to(tl.int8), inside)


@triton.jit
def greatest_answer_backward(
    d_best, which, p0, p1, p2, p3, p4, windows, ANSWERS: tl.constexpr, G: tl.constexpr,
    MANY: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    SHIFT: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The products' gradients: those of the answer that won."""
    m, c, inside = entries_here(windows, C, SIZE)
    gradient = tl.load(d_best + m * C + c, inside).to(tl.float32)
    winner = tl.load(which + m * C + c, inside).to(tl.int32)
    products = (p0, p1, p2, p3, p4)
    for p in tl.static_range(MANY):
        factor = tl.zeros([SIZE], tl.float32)
        for g in tl.static_range(G):
            if ANSWERS[g * MANY + p] != 0.0:
                factor = tl.where(winner == g, ANSWERS[g * MANY + p], factor)
        here = place(products, windows, m, c, p, C, BLOCK, FIRST, STEP, SHIFT)
        tl.store(here, (factor * gradient).to(p0.dtype.element_ty), inside)
