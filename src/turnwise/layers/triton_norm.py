"""The norm of a token and the way into irreps, in one step on CUDA.

A program takes a token, all of it: C channels in each of G poses.  On the way back it takes every
`programs`-th token, for the gradients of weight and bias are sums over all of them.

    n = (x − mean) / deviation,   y = n · w + b,   ŷ = Q y
    dx = (w dy − mean(w dy) − n mean(n w dy)) / deviation,   dy = Qᵀ dŷ

Letters and memory: see triton_irreps.py;  WIDE, a power of 2, holds C;  `scale` is 1 / deviation.
"""

import triton
import triton.language as tl

from turnwise.layers.triton_irreps import (
    added,
    load_poses,
    load_rows,
    mixed,
    store_poses,
    store_rows,
)


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
