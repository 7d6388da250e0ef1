"""Triton kernels for features in irreps: change of basis, gelu, and the norm of a token.

One program handles some channels of some tokens.  It keeps their |G| group elements, or rows of
irreps, in registers and multiplies them there by the basis matrix, which is compiled in.  So a
change of basis reads and writes no more than a copy, and  Q gelu(Qᵀ x̂ + b)  no more than a gelu.
The norm needs one program per token.  In its backward pass a program handles every `programs`-th
token, because the gradients of weight and bias are sums over all tokens:

    n = (x − mean) / std,   y = n · w + b,   ŷ = Q y
    dx = (w dy − mean(w dy) − n mean(n w dy)) / std,   dy = Qᵀ dŷ

Letters:  g a group element;  row of Q: first the 1-D irreps, then the 2-D irreps (p, b), b = 0, 1.
          G group elements;  N 1-D irreps;  C channels;  SIZE channels of a program, or WIDE, the
          power of 2 that holds C;  `scale` is 1 / std.
Memory:   x (token, g, C);  dim1 (row, token, C);  dim2 (p, token, b, C), as the matrix
          products with the blocks read and write them.  An entry e counts (token, channel).
"""

import triton
import triton.language as tl


@triton.jit
def load_features(x, e, inside, G: tl.constexpr, C: tl.constexpr):
    """Load one vector for each group element."""
    first = x + e // C * (G * C) + e % C
    features = ()
    for g in tl.static_range(G):
        features = features + (tl.load(first + g * C, inside).to(tl.float32),)
    return features


@triton.jit
def store_features(x, features, e, inside, G: tl.constexpr, C: tl.constexpr):
    first = x + e // C * (G * C) + e % C
    for g in tl.static_range(G):
        tl.store(first + g * C, features[g].to(x.dtype.element_ty), inside)


@triton.jit
def load_rows(
    dim1, dim2, e, inside, entries, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Load one vector for each row of the basis."""
    rows = ()
    for row in tl.static_range(N):
        rows = rows + (tl.load(dim1 + row * entries + e, inside).to(tl.float32),)
    first = dim2 + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        pointer = first + row // 2 * 2 * entries + row % 2 * C
        rows = rows + (tl.load(pointer, inside).to(tl.float32),)
    return rows


@triton.jit
def store_rows(
    dim1, dim2, rows, e, inside, entries, G: tl.constexpr, N: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    for row in tl.static_range(N):
        tl.store(dim1 + row * entries + e, rows[row].to(dim1.dtype.element_ty), inside)
    first = dim2 + e // C * (2 * C) + e % C
    for row in tl.static_range(G - N):
        pointer = first + row // 2 * 2 * entries + row % 2 * C
        tl.store(pointer, rows[N + row].to(dim2.dtype.element_ty), inside)


@triton.jit
def multiply_matrix(vectors, MATRIX: tl.constexpr, G: tl.constexpr):
    """y[i] = Σ_j MATRIX[i, j] x[j], without the terms that are zero."""
    result = ()
    for i in tl.static_range(G):
        total = tl.zeros_like(vectors[0])
        for j in tl.static_range(G):
            if MATRIX[i * G + j] != 0.0:
                total += vectors[j] * MATRIX[i * G + j]
        result = result + (total,)
    return result


@triton.jit
def program_entries(entries, SIZE: tl.constexpr):
    """Return the entries of this program, which of them exist, and their number; in 64 bits."""
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return e, e < entries, tl.cast(entries, tl.int64)


@triton.jit
def to_irreps(
    x, dim1, dim2, entries, Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """x̂ = Q x."""
    e, inside, entries = program_entries(entries, SIZE)
    rows = multiply_matrix(load_features(x, e, inside, G, C), Q, G)
    store_rows(dim1, dim2, rows, e, inside, entries, G, N, C)


@triton.jit
def from_irreps(
    x, dim1, dim2, bias, residual, entries, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """x = residual + Qᵀ x̂ + b; residual and b are optional."""
    e, inside, entries = program_entries(entries, SIZE)
    rows = load_rows(dim1, dim2, e, inside, entries, G, N, C)
    features = multiply_matrix(rows, QT, G)
    if BIAS:
        features = add_vector(features, tl.load(bias + e % C).to(tl.float32), G)
    if RESIDUAL:
        features = add(features, load_features(residual, e, inside, G, C), G)
    store_features(x, features, e, inside, G, C)


@triton.jit
def add(left, right, G: tl.constexpr):
    """Add elementwise."""
    sums = ()
    for g in tl.static_range(G):
        sums = sums + (left[g] + right[g],)
    return sums


@triton.jit
def add_vector(features, b, G: tl.constexpr):
    """Add one vector to the features of every group element."""
    sums = ()
    for g in tl.static_range(G):
        sums = sums + (features[g] + b,)
    return sums


@triton.jit
def normal_cdf(x):
    """Return Φ(x), the normal distribution function, to 1e-7; and exp(−x²/2).

    Abramowitz & Stegun 1964, 7.1.26: an exponential, a quotient and a polynomial.  The instructions
    of erf would take longer than the memory traffic of the kernel.
    """
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.2316418882 * tl.abs(x))
    series = 0.1274147959 + t * (-0.1422483683 + t * (0.7107068705 + t * -0.7265760135))
    series = t * (series + t * t * t * t * 0.5307027145)
    outer = series * bell  # Φ(−|x|)
    return tl.where(x < 0, outer, 1.0 - outer), bell


@triton.jit
def gelu(
    dim1, dim2, bias, new_dim1, new_dim2, entries, Q: tl.constexpr, QT: tl.constexpr,
    G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Q gelu(Qᵀ x̂ + b)."""
    e, inside, entries = program_entries(entries, SIZE)
    features = multiply_matrix(load_rows(dim1, dim2, e, inside, entries, G, N, C), QT, G)
    features = add_vector(features, tl.load(bias + e % C).to(tl.float32), G)
    active = ()
    for g in tl.static_range(G):
        active = active + (features[g] * normal_cdf(features[g])[0],)
    store_rows(new_dim1, new_dim2, multiply_matrix(active, Q, G), e, inside, entries, G, N, C)


@triton.jit
def gelu_backward(
    dim1, dim2, bias, new_dim1, new_dim2, d_dim1, d_dim2, entries,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Q (gelu'(Qᵀ x̂ + b) · Qᵀ dŷ), with gelu'(x) = Φ(x) + x φ(x)."""
    e, inside, entries = program_entries(entries, SIZE)
    features = multiply_matrix(load_rows(dim1, dim2, e, inside, entries, G, N, C), QT, G)
    features = add_vector(features, tl.load(bias + e % C).to(tl.float32), G)
    d_features = multiply_matrix(load_rows(d_dim1, d_dim2, e, inside, entries, G, N, C), QT, G)
    grads = ()
    for g in tl.static_range(G):
        x = features[g]
        cdf, bell = normal_cdf(x)
        slope = cdf + x * bell * 0.3989422804014327
        grads = grads + (d_features[g] * slope,)
    store_rows(new_dim1, new_dim2, multiply_matrix(grads, Q, G), e, inside, entries, G, N, C)


@triton.jit
def token_mean(vectors, inside, G: tl.constexpr, C: tl.constexpr):
    """Return the mean over all group elements and channels."""
    total = tl.zeros_like(vectors[0])
    for g in tl.static_range(G):
        total += vectors[g]
    return tl.sum(tl.where(inside, total, 0.0)) / (G * C)


@triton.jit
def multiply(left, right, G: tl.constexpr):
    """Multiply elementwise."""
    products = ()
    for g in tl.static_range(G):
        products = products + (left[g] * right[g],)
    return products


@triton.jit
def scale_all(vectors, factor, G: tl.constexpr):
    """Multiply every vector by one factor."""
    products = ()
    for g in tl.static_range(G):
        products = products + (vectors[g] * factor,)
    return products


@triton.jit
def norm_to_irreps(
    x, weight, bias, dim1, dim2, means, scales, tokens, eps, Q: tl.constexpr,
    QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """ŷ = Q norm(x); stores mean and scale for the backward pass."""
    token, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    e, inside, entries = token * C + c, c < C, tl.cast(tokens, tl.int64) * C
    features = load_features(x, e, inside, G, C)
    mean = token_mean(features, inside, G, C)
    centred = add_vector(features, -mean, G)
    scale = 1.0 / tl.sqrt(token_mean(multiply(centred, centred, G), inside, G, C) + eps)
    w = tl.load(weight + c, inside).to(tl.float32)
    b = tl.load(bias + c, inside).to(tl.float32)
    normed = add_vector(scale_all(centred, scale * w, G), b, G)
    store_rows(dim1, dim2, multiply_matrix(normed, Q, G), e, inside, entries, G, N, C)
    tl.store(means + token, mean)
    tl.store(scales + token, scale)


@triton.jit
def norm_to_irreps_backward(
    x, weight, means, scales, d_dim1, d_dim2, d_x, d_weights, d_biases, tokens, programs,
    Q: tl.constexpr, QT: tl.constexpr, G: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and partial sums of the gradients of weight and bias."""
    first, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    inside, entries = c < C, tl.cast(tokens, tl.int64) * C
    w = tl.load(weight + c, inside).to(tl.float32)
    d_weight, d_bias = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    for token in range(first, tokens, programs):
        e = token * C + c
        scale = tl.load(scales + token)
        features = load_features(x, e, inside, G, C)
        normed = scale_all(add_vector(features, -tl.load(means + token), G), scale, G)
        rows = load_rows(d_dim1, d_dim2, e, inside, entries, G, N, C)
        d_normed = multiply_matrix(rows, QT, G)
        for g in tl.static_range(G):
            d_weight += d_normed[g] * normed[g]
            d_bias += d_normed[g]
        d_normed = scale_all(d_normed, w, G)
        along = token_mean(multiply(d_normed, normed, G), inside, G, C)
        centred = add_vector(d_normed, -token_mean(d_normed, inside, G, C), G)
        grads = ()
        for g in tl.static_range(G):
            grads = grads + ((centred[g] - normed[g] * along) * scale,)
        store_features(d_x, grads, e, inside, G, C)
    tl.store(d_weights + first * C + c, d_weight, inside)
    tl.store(d_biases + first * C + c, d_bias, inside)
