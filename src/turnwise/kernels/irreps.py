"""Between poses and irreps on CUDA: every number is read once and written once.

A program takes some channels of some tokens, in all poses or in all rows of irreps: |G| vectors,
which it mixes in registers by the matrix of the basis, compiled in.  So a change of the basis reads
and writes what a copy does, and  Q gelu(Qᵀ x̂ + b)  what gelu alone does.

Letters:  g a pose;  row of Q: first the numbers, then the planes (p, b), b = 0 or 1.
          G how many poses;  N how many numbers;  C channels;  SIZE channels in a program.
Memory:   poses (token, g, C);  numbers (row, token, C);  planes (p, token, b, C): as the products
          with the blocks take and leave them.  An entry e counts (token, channel).

The norm of a token and the way into irreps, in one step on CUDA.

A program takes a token, all of it: C channels in each of G poses.  On the way back it takes every
`programs`-th token, for the gradients of weight and bias are sums over all of them.

    n = (x − mean) / deviation,   y = n · w + b,   ŷ = Q y
    dx = (w dy − mean(w dy) − n mean(n w dy)) / deviation,   dy = Qᵀ dŷ

Letters and memory: see triton_irreps.py;  WIDE, a power of 2, holds C;  `scale` is 1 / deviation.
"""

import triton
import triton.language as tl


@triton.jit
def load_poses(x, e, inside, G: tl.constexpr, C: tl.constexpr):
    """One vector for each pose."""
    first = x + e // C * (G * C) + e % C
    poses = ()
    for g in tl.static_range(G):
        poses = poses + (tl.load(first + g * C, inside).to(tl.float32),)
    return poses


@triton.jit
def store_poses(x, poses, e, inside, G: tl.constexpr, C: tl.constexpr):
    first = x + e // C * (G * C) + e % C
    for g in tl.static_range(G):
        tl.store(first + g * C, poses[g].to(x.dtype.element_ty), inside)


@triton.jit
def load_rows(
    numbers, planes, e, inside, entries, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """One vector for each row of the basis."""
    rows = ()
    for row in tl.static_range(N):
        rows = rows + (tl.load(numbers + row * entries + e, inside).to(tl.float32),)
    first = planes + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        place = first + row // 2 * 2 * entries + row % 2 * C
        rows = rows + (tl.load(place, inside).to(tl.float32),)
    return rows


@triton.jit
def store_rows(
    numbers, planes, rows, e, inside, entries, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    for row in tl.static_range(N):
        tl.store(numbers + row * entries + e, rows[row].to(numbers.dtype.element_ty), inside)
    first = planes + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        place = first + row // 2 * 2 * entries + row % 2 * C
        tl.store(place, rows[N + row].to(planes.dtype.element_ty), inside)


@triton.jit
def mixed(vectors, MATRIX: tl.constexpr, G: tl.constexpr):
    """y[i] = Σ_j MATRIX[i, j] x[j]; what is zero is not even added."""
    result = ()
    for i in tl.static_range(G):
        total = tl.zeros_like(vectors[0])
        for j in tl.static_range(G):
            if MATRIX[i * G + j] != 0.0:
                total += vectors[j] * MATRIX[i * G + j]
        result = result + (total,)
    return result


@triton.jit
def entries_here(entries, SIZE: tl.constexpr):
    """Which entries this program takes, which of them exist, and how many do; in 64 bits."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return e, e < entries, tl.cast(entries, tl.int64)


@triton.jit
def to_rows(
    x, numbers, planes, entries, Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """x̂ = Q x."""
    e, inside, entries = entries_here(entries, SIZE)
    rows = mixed(load_poses(x, e, inside, G, C), Q, G)
    store_rows(numbers, planes, rows, e, inside, entries, G, N, C)


@triton.jit
def to_poses(
    x, numbers, planes, bias, stream, entries, BIAS: tl.constexpr, STREAM: tl.constexpr,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """x = s + Qᵀ x̂ + b, each of s and b only where there is one."""
    e, inside, entries = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    if BIAS:
        poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    if STREAM:
        poses = summed(poses, load_poses(stream, e, inside, G, C), G)
    store_poses(x, poses, e, inside, G, C)


@triton.jit
def summed(left, right, G: tl.constexpr):
    """Pose by pose."""
    sums = ()
    for g in tl.static_range(G):
        sums = sums + (left[g] + right[g],)
    return sums


@triton.jit
def added(poses, b, G: tl.constexpr):
    """One vector, to every pose."""
    sums = ()
    for g in tl.static_range(G):
        sums = sums + (poses[g] + b,)
    return sums


@triton.jit
def below(x):
    """Φ(x), how much of a normal distribution lies below x, to 1e-7; and exp(−x²/2).

    Abramowitz & Stegun 1964, 7.1.26: an exponential, a quotient and a polynomial; erf takes more
    instructions than what it reads and writes takes time.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.2316418882 * tl.abs(x))
    series = 0.1274147959 + t * (-0.1422483683 + t * (0.7107068705 + t * -0.7265760135))
    series = t * (series + t * t * t * t * 0.5307027145)
    outer = series * bell  # Φ(−|x|)
    return tl.where(x < 0, outer, 1.0 - outer), bell


@triton.jit
def gelu_rows(
    numbers, planes, bias, new_numbers, new_planes, entries, Q: tl.constexpr, QT: tl.constexpr,
    G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Q gelu(Qᵀ x̂ + b)."""
    e, inside, entries = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    active = ()
    for g in tl.static_range(G):
        active = active + (poses[g] * below(poses[g])[0],)
    store_rows(new_numbers, new_planes, mixed(active, Q, G), e, inside, entries, G, N, C)


@triton.jit
def gelu_rows_backward(
    numbers, planes, bias, new_numbers, new_planes, d_numbers, d_planes, entries,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Q (gelu'(Qᵀ x̂ + b) · Qᵀ dŷ), with gelu'(x) = Φ(x) + x φ(x)."""
    e, inside, entries = entries_here(entries, SIZE)
    poses = mixed(load_rows(numbers, planes, e, inside, entries, G, N, C), QT, G)
    poses = added(poses, tl.load(bias + e % C).to(tl.float32), G)
    d_poses = mixed(load_rows(d_numbers, d_planes, e, inside, entries, G, N, C), QT, G)
    grads = ()
    for g in tl.static_range(G):
        x = poses[g]
        share, bell = below(x)
        slope = share + x * bell * 0.3989422804014327
        grads = grads + (d_poses[g] * slope,)
    store_rows(new_numbers, new_planes, mixed(grads, Q, G), e, inside, entries, G, N, C)


@triton.jit
def over_token(vectors, inside, G: tl.constexpr, C: tl.constexpr):
    """The mean over all poses and channels."""
    total = tl.zeros_like(vectors[0])
    for g in tl.static_range(G):
        total += vectors[g]
    return tl.sum(tl.where(inside, total, 0.0)) / (G * C)


@triton.jit
def times(left, right, G: tl.constexpr):
    """Pose by pose."""
    products = ()
    for g in tl.static_range(G):
        products = products + (left[g] * right[g],)
    return products


@triton.jit
def scaled(vectors, factor, G: tl.constexpr):
    """One factor, for every pose."""
    products = ()
    for g in tl.static_range(G):
        products = products + (vectors[g] * factor,)
    return products


@triton.jit
def norm_to_rows(
    x, weight, bias, numbers, planes, means, scales, tokens, eps, Q: tl.constexpr,
    QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """ŷ = Q norm(x); mean and scale are kept for the way back."""
    token, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    e, inside, entries = token * C + c, c < C, tl.cast(tokens, tl.int64) * C
    poses = load_poses(x, e, inside, G, C)
    mean = over_token(poses, inside, G, C)
    centred = added(poses, -mean, G)
    scale = 1.0 / tl.sqrt(over_token(times(centred, centred, G), inside, G, C) + eps)
    w = tl.load(weight + c, inside).to(tl.float32)
    b = tl.load(bias + c, inside).to(tl.float32)
    normed = added(scaled(centred, scale * w, G), b, G)
    store_rows(numbers, planes, mixed(normed, Q, G), e, inside, entries, G, N, C)
    tl.store(means + token, mean)
    tl.store(scales + token, scale)


@triton.jit
def norm_to_rows_backward(
    x, weight, means, scales, d_numbers, d_planes, d_x, d_weights, d_biases, tokens, programs,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and this program's share of those of weight and bias."""
    first, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    inside, entries = c < C, tl.cast(tokens, tl.int64) * C
    w = tl.load(weight + c, inside).to(tl.float32)
    d_weight, d_bias = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    for token in range(first, tokens, programs):
        e = token * C + c
        scale = tl.load(scales + token)
        poses = load_poses(x, e, inside, G, C)
        normed = scaled(added(poses, -tl.load(means + token), G), scale, G)
        rows = load_rows(d_numbers, d_planes, e, inside, entries, G, N, C)
        d_normed = mixed(rows, QT, G)
        for g in tl.static_range(G):
            d_weight += d_normed[g] * normed[g]
            d_bias += d_normed[g]
        d_normed = scaled(d_normed, w, G)
        along = over_token(times(d_normed, normed, G), inside, G, C)
        centred = added(d_normed, -over_token(d_normed, inside, G, C), G)
        grads = ()
        for g in tl.static_range(G):
            grads = grads + ((centred[g] - normed[g] * along) * scale,)
        store_poses(d_x, grads, e, inside, G, C)
    tl.store(d_weights + first * C + c, d_weight, inside)
    tl.store(d_biases + first * C + c, d_bias, inside)
