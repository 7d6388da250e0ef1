"""Triton kernels of RotoConv2d: windows in the basis of irreps, and the maximum over the group.

They run before and after the matrix products.  A program handles some channels of some windows and
keeps all their taps, rows or products in registers, so each value is read and written once.

Letters:  t a tap of the K × K window;  i a row of the basis: row b of copy j of a block;
          p a product (a, b) of a block;  g a group element, y_g its response.
          C channels, in or out;  COUNT rows or products;  SIZE entries of a program.
Memory:   maps (batch, row, col, C);  taps (window, t, C);  the rows of a block (b, window, j, C)
          and its products (b, window, a, C), as the matrix products read and write them.
          A window m counts (batch, newrow, newcol), an entry e counts (window, channel).
Tables:   for each row or product: BLOCK, the tensor that holds it; FIRST, how many times all
          windows precede it there; STEP, vectors of C channels per window; SHIFT, its index there.
"""

import triton
import triton.language as tl


@triton.jit
def program_entries(windows, C: tl.constexpr, SIZE: tl.constexpr):
    """Return the windows and channels of this program, and which of them exist; in 64 bits."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return e // C, e % C, e < tl.cast(windows, tl.int64) * C


@triton.jit
def split_index(m, rows, cols):
    """Return image, row and column of windows or pixels; divided in 32 bits, which is faster."""
    m = m.to(tl.int32)
    return (m // (rows * cols)).to(tl.int64), m // cols % rows, m % cols


@triton.jit
def pointer_to(
    tensors, windows, m, c, i: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return pointers to row or product i of the windows m."""
    before = tl.cast(windows, tl.int64) * FIRST[i]
    return tensors[BLOCK[i]] + ((before + m) * STEP[i] + SHIFT[i]) * C + c


@triton.jit
def load_all(
    tensors, windows, m, c, inside, COUNT: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Load one vector for each row or product."""
    vectors = ()
    for i in tl.static_range(COUNT):
        pointer = pointer_to(tensors, windows, m, c, i, C, BLOCK, FIRST, STEP, SHIFT)
        vectors = vectors + (tl.load(pointer, inside).to(tl.float32),)
    return vectors


@triton.jit
def combine(vectors, TABLE: tl.constexpr, START: tl.constexpr, STRIDE: tl.constexpr,
            COUNT: tl.constexpr):  # fmt: skip
    """Σ_j TABLE[START + j STRIDE] x[j], without the terms that are zero."""
    total = tl.zeros_like(vectors[0])
    for j in tl.static_range(COUNT):
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
    """x̂ = TABLE x for every window of maps padded with zeros."""
    m, c, inside = program_entries(windows, C, SIZE)
    image, newrow, newcol = split_index(m, newrows, newcols)
    row, col = newrow * STRIDE - PADDING, newcol * STRIDE - PADDING
    taps = ()
    for t in tl.static_range(K * K):
        r, q = row + t // K, col + t % K
        exists = inside & (r >= 0) & (r < height) & (q >= 0) & (q < width)
        tap = tl.load(maps + ((image * height + r) * width + q) * C + c, exists, other=0.0)
        taps = taps + (tap.to(tl.float32),)
    rows = (r0, r1, r2, r3, r4)
    for i in tl.static_range(K * K):
        pointer = pointer_to(rows, windows, m, c, i, C, BLOCK, FIRST, STEP, SHIFT)
        total = combine(taps, TABLE, i * K * K, 1, K * K)
        tl.store(pointer, total.to(r0.dtype.element_ty), inside)


@triton.jit
def rows_to_taps(
    taps, r0, r1, r2, r3, r4, windows, TABLE: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, STEP: tl.constexpr, SHIFT: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of the windows: TABLEᵀ times that of the rows."""
    m, c, inside = program_entries(windows, C, SIZE)
    rows = (r0, r1, r2, r3, r4)
    vectors = load_all(rows, windows, m, c, inside, K * K, C, BLOCK, FIRST, STEP, SHIFT)
    for t in tl.static_range(K * K):
        total = combine(vectors, TABLE, t, K * K, K * K)
        pointer = taps + (m * (K * K) + t) * C + c
        tl.store(pointer, total.to(taps.dtype.element_ty), inside)


@triton.jit
def fold(
    taps, maps, pixels, height, width, newrows, newcols, K: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Sum, for each pixel, the taps of all windows that contain it."""
    m, c, inside = program_entries(pixels, C, SIZE)
    image, row, col = split_index(m, height, width)
    row, col = row + PADDING, col + PADDING
    total = tl.zeros([SIZE], tl.float32)
    for down in tl.static_range((K + STRIDE - 1) // STRIDE):
        for right in tl.static_range((K + STRIDE - 1) // STRIDE):
            newrow, newcol = row // STRIDE - down, col // STRIDE - right
            r, q = row - newrow * STRIDE, col - newcol * STRIDE
            exists = inside & (newrow >= 0) & (newrow < newrows) & (r < K)
            exists = exists & (newcol >= 0) & (newcol < newcols) & (q < K)
            window = (image * newrows + newrow) * newcols + newcol
            tap = tl.load(taps + (window * (K * K) + r * K + q) * C + c, exists, other=0.0)
            total += tap.to(tl.float32)
    tl.store(maps + m * C + c, total.to(maps.dtype.element_ty), inside)


@triton.jit
def max_response(
    best, which, p0, p1, p2, p3, p4, windows, TABLE: tl.constexpr, G: tl.constexpr,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    SHIFT: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """max_g y_g and its g, with y = TABLE P; the first of equals, and NaN before any number."""
    m, c, inside = program_entries(windows, C, SIZE)
    products = load_all(
        (p0, p1, p2, p3, p4), windows, m, c, inside, COUNT, C, BLOCK, FIRST, STEP, SHIFT
    )
    largest = combine(products, TABLE, 0, 1, COUNT)
    winner = tl.zeros([SIZE], tl.int32)
    for g in tl.static_range(1, G):
        response = combine(products, TABLE, g * COUNT, 1, COUNT)
        wins = (response > largest) | (response != response)
        largest, winner = tl.where(wins, response, largest), tl.where(wins, g, winner)
    tl.store(best + m * C + c, largest.to(best.dtype.element_ty), inside)
    tl.store(which + m * C + c, winner.to(tl.int8), inside)


@triton.jit
def max_response_backward(
    d_best, which, p0, p1, p2, p3, p4, windows, TABLE: tl.constexpr, G: tl.constexpr,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    SHIFT: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradients of the products: only the largest response has one."""
    m, c, inside = program_entries(windows, C, SIZE)
    gradient = tl.load(d_best + m * C + c, inside).to(tl.float32)
    winner = tl.load(which + m * C + c, inside).to(tl.int32)
    products = (p0, p1, p2, p3, p4)
    for p in tl.static_range(COUNT):
        factor = tl.zeros([SIZE], tl.float32)
        for g in tl.static_range(G):
            if TABLE[g * COUNT + p] != 0.0:
                factor = tl.where(winner == g, TABLE[g * COUNT + p], factor)
        pointer = pointer_to(products, windows, m, c, p, C, BLOCK, FIRST, STEP, SHIFT)
        tl.store(pointer, (factor * gradient).to(p0.dtype.element_ty), inside)
