"""Triton kernels of group attention: the backward pass, which recomputes every weight.

With A the weights, r[h, m] = dout_h · v_m the gradient of a weight, and Δ[h, g] = Σ_{m,δ} A·r, the
gradient of a score is  ds = A · (r − Δ).  Its sum over h belongs to content, over m to position,
over δ to orientation.

    softmax_deltas         Δ; only where an output meets several queries
    query_gradients        from each token to its sources: queries, positions, and in small groups
                           orientations
    orientation_gradients  in large groups, whose relations do not fit into registers
    source_gradients       from each source to the tokens that see it: keys and values

No kernel uses atomics, so two runs give identical bits.  Letters and memory layout are those of
group_attention_forward.py.
"""

import triton
import triton.language as tl

from turnwise.kernels.group_attention_forward import (
    SIZES,
    TILE,
    content_factors,
    content_scores,
    dot,
    dropout_key,
    dropout_number,
    full,
    keep_mask,
    load_broadcast,
    load_factors,
    load_floats,
    load_queries,
    orientation_factors,
    pack_floats,
    position_factors,
    position_scores,
    program_indices,
    relation_index,
    source_pixel,
    store_floats,
    token_pointer,
    unpack_floats,
    weights,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def weight_gradients(
    grad, v, drop_key, s, m0, chunk, chunks, H: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """r[h·MB + m] = dout_h · v_m, or 0 where dropout removes the weight."""
    keep = ()
    if DROPS > 0:
        for m in tl.static_range(MB):
            number, first = dropout_number(s, m0 + m, chunk, chunks, H, M)
            keep = keep + keep_mask(drop_key, number, first, H, DROPS)
    table = ()
    for h in tl.static_range(H):
        for m in tl.static_range(MB):
            gradient = dot(grad, h * D, v, m * D, D, tl.zeros_like(v[0]))
            if DROPS > 0:
                gradient = tl.where(keep[m * H + h], gradient, 0.0)
            table = table + (gradient,)
    return table


@triton.jit
def score_gradients(
    x, y, f, r, delta, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr
):
    """ds[(h·J + j)·M + m] = A · (r − Δ)."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            for m in tl.static_range(M):
                weight = x[(j if ALL else h) * M + m] * (y[h * J + j] * f[(h * J + j) * M + m])
                table = table + (weight * (r[h * M + m] - delta[h * J + j]),)
    return table


@triton.jit
def sum_over_outputs(
    ds, g: tl.constexpr, m: tl.constexpr, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr,
):  # fmt: skip
    """Σ_h ds[h, g, m]: the gradient of the content score q_g · k_m."""
    total = ds[(0 * J + g) * M + m] if ALL else ds[g * M + m]
    if ALL:
        for h in tl.static_range(1, H):
            total += ds[(h * J + g) * M + m]
    return total


@triton.jit
def add_position_score_gradients(dp, ds, count: tl.constexpr, M: tl.constexpr):
    """dp += Σ_m ds: the gradient of q_g · P(h⁻¹δ), for each of the `count` pairs (h, g)."""
    table = ()
    for i in tl.static_range(count):
        total = dp[i]
        for m in tl.static_range(M):
            total += ds[i * M + m]
        table = table + (total,)
    return table


@triton.jit
def add_orientation_gradients(
    df, ds, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Add to each relation r of a query g the gradients of the scores that use it.

    Only if the relations are compiled in; otherwise `orientation_gradients` does it.
    """
    GP: tl.constexpr = G + G % 2
    table = ()
    if MB == M:
        for r in tl.static_range(R):
            for g in tl.static_range(GP):
                total = df[r * GP + g]
                for h in tl.static_range(H):
                    for m in tl.static_range(M):
                        if (ALL or h == g) and g < G:  # noqa: SIM102 - constants
                            if TABLE[(h * J + (g if ALL else 0)) * M + m] == r:
                                total += ds[(h * J + (g if ALL else 0)) * M + m]
                table = table + (total,)
    return table


@triton.jit
def add_content_gradients(
    dq, ds, k, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_m (Σ_h ds) k_m."""
    table = ()
    for g in tl.static_range(G):
        dc = ()
        for m in tl.static_range(M):
            dc = dc + (sum_over_outputs(ds, g, m, H, J, ALL, M),)
        for c in tl.static_range(D):
            total = dq[g * D + c]
            for m in tl.static_range(M):
                total += dc[m] * k[m * D + c]
            table = table + (total,)
    return table


@triton.jit
def add_position_gradients(
    dq, dp, position, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    D: tl.constexpr, PD: tl.constexpr,
):  # fmt: skip
    """dq_g += Σ_h dp[h, g] P(h⁻¹δ), in the channels that meet the position encoding."""
    encoding = load_broadcast(position, H * PD)
    table = ()
    for g in tl.static_range(G):
        for c in tl.static_range(D):
            total = dq[g * D + c]
            if c < PD:
                for h in tl.static_range(H):
                    if ALL:
                        total += dp[h * J + g] * encoding[h * PD + c]
                    elif h == g:
                        total += dp[h] * encoding[h * PD + c]
            table = table + (total,)
    return table


@triton.jit
def store_position_partials(
    pointer, dp, q, valid, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, D: tl.constexpr,
    PD: tl.constexpr,
):  # fmt: skip
    """Store a partial sum of the gradient of P(h⁻¹δ): Σ_g dp[h, g] q_g over this program."""
    for h in tl.static_range(H):
        for c in tl.static_range(PD):
            part = tl.zeros_like(q[0])
            for j in tl.static_range(J):
                part += dp[h * J + j] * q[(j if ALL else h) * D + c]
            part = tl.sum(tl.where(valid, part, 0.0), axis=0)
            tl.store(pointer + h * PD + c, part * LN2)


@triton.jit
def add_deltas(
    sums, x, y, f, r, H: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr
):
    """Δ += Σ_m A · r."""
    table = ()
    for h in tl.static_range(H):
        for j in tl.static_range(J):
            added = tl.zeros_like(x[0])
            for m in tl.static_range(M):
                weight = f[(h * J + j) * M + m] * x[(j if ALL else h) * M + m]
                added += weight * r[h * M + m]
            table = table + (sums[h * J + j] + added * y[h * J + j],)
    return table


@triton.jit
def load_tokens(
    query, factor, peak, total, grad, seed, index, item, token, tokens, tiles, H: tl.constexpr,
    G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Load what a thread keeps of its token: q, F, maxima, totals, gradient, dropout key."""
    query_index = item if ALL else index
    q = load_queries(token_pointer(query, query_index, token, tiles, G * D, HALF), G * D, HALF)
    factor = token_pointer(factor, query_index, token, tiles, R * (G + G % 2), None)
    factors = load_factors(factor, G, R, M, MB)
    c_max = load_floats(token_pointer(peak, index, token, tiles, G, None), G, None)
    log_totals = load_floats(token_pointer(total, index, token, tiles, H * J, None), H * J, None)
    dout = load_floats(token_pointer(grad, index, token, tiles, H * D, HALF), H * D, HALF)
    drop_key = dropout_key(tl.load(seed), item * tokens + token)
    return q, factor, factors, c_max, log_totals, dout, drop_key


@triton.jit
def load_sources(
    q, factors, c_max, dout, drop_key, key, value, factor, relations, item, source, tiles, inside,
    s, m0, chunk, chunks, TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Load the keys of MB group elements at one offset; return them with X, F and r."""
    part = (item * M + m0) // MB
    k = load_floats(token_pointer(key, part, source, tiles, MB * D, HALF), MB * D, HALF)
    x = content_factors(content_scores(q, k, inside, G, MB, D), c_max, G, MB)
    f = orientation_factors(factors, factor, relations, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
    v = load_floats(token_pointer(value, part, source, tiles, MB * D, HALF), MB * D, HALF)
    return k, x, f, weight_gradients(dout, v, drop_key, s, m0, chunk, chunks, H, M, MB, D, DROPS)


@triton.jit(do_not_specialize=SIZES)
def softmax_deltas(
    query, key, value, factor, position, steps, relations, peak, total, grad, delta, seed,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """delta[h, g] = Σ_{m,δ} A · r."""
    index, token = program_indices(tiles)
    chunk, item = index % chunks, index // chunks
    q, factor, factors, c_max, log_totals, dout, drop_key = load_tokens(
        query, factor, peak, total, grad, seed, index, item, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    relations += chunk * H * J * M
    position += chunk * offsets * ((H * PD + 1) // 2)
    sums = full(q[0], 0.0, H * J)
    for s in range(offsets):
        source, inside = source_pixel(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = position_scores(q, position + s * ((H * PD + 1) // 2), H, J, ALL, D, PD)
            y = position_factors(p, c_max, log_totals, H, J, ALL)
            for m0 in range(0, M, MB):
                _, x, f, r = load_sources(
                    q, factors, c_max, dout, drop_key, key, value, factor, relations, item, source,
                    source_tiles, inside, s, m0, chunk, chunks, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                sums = add_deltas(sums, x, y, f, r, H, J, ALL, MB)
    store_floats(token_pointer(delta, index, token, tiles, H * J, None), sums, H * J, None)


@triton.jit
def load_deltas(
    output, delta, dout, index, token, tiles, H: tl.constexpr, J: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Load Δ if an output meets many queries; otherwise Δ is the output times its gradient."""
    pointer = token_pointer(delta, index, token, tiles, H * J, None)
    row = ()
    if J > 1:
        row = load_floats(pointer, H * J, None)
    else:
        out = load_floats(token_pointer(output, index, token, tiles, H * D, HALF), H * D, HALF)
        for h in tl.static_range(H):
            row = row + (dot(out, h * D, dout, h * D, D, tl.zeros_like(out[0])),)
        store_floats(pointer, row, H, None)
    return row


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    query, key, value, factor, position, steps, relations, peak, total, grad, output, delta, seed,
    d_query, d_orientation, d_position, first,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries and (in small groups) orientations; partial sums for positions."""
    GP: tl.constexpr = G + G % 2
    WP: tl.constexpr = (H * PD + 1) // 2
    index, token = program_indices(tiles)
    chunk, item = index % chunks, index // chunks
    partial = (item * tiles + tl.program_id(0) % tiles) * chunks + chunk
    partial = d_position + partial * offsets * 2 * WP
    index, item = index + first * chunks, item + first
    q, factor, factors, c_max, log_totals, dout, drop_key = load_tokens(
        query, factor, peak, total, grad, seed, index, item, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    deltas = load_deltas(output, delta, dout, index, token, tiles, H, J, D, HALF)
    relations += chunk * H * J * M
    position += chunk * offsets * WP
    dq, df = full(q[0], 0.0, G * D), full(q[0], 0.0, R * GP if MB == M else 0)
    for s in range(offsets):
        source, inside = source_pixel(token, s, steps, rows, cols, token_cols, crop)
        inside = inside & (token < tokens)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            p = position_scores(q, position + s * WP, H, J, ALL, D, PD)
            y = position_factors(p, c_max, log_totals, H, J, ALL)
            dp = full(q[0], 0.0, H * J)
            for m0 in range(0, M, MB):
                k, x, f, r = load_sources(
                    q, factors, c_max, dout, drop_key, key, value, factor, relations, item, source,
                    source_tiles, inside, s, m0, chunk, chunks, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                ds = score_gradients(x, y, f, r, deltas, H, J, ALL, MB)
                dq = add_content_gradients(dq, ds, k, H, G, J, ALL, MB, D)
                dp = add_position_score_gradients(dp, ds, H * J, MB)
                df = add_orientation_gradients(df, ds, TABLE, H, G, J, ALL, M, MB, R)
            dq = add_position_gradients(dq, dp, position + s * WP, H, G, J, ALL, D, PD)
            store_position_partials(partial + s * 2 * WP, dp, q, token < tokens, H, J, ALL, D, PD)
    part = chunk * items + item if ALL else index
    store_floats(token_pointer(d_query, part, token, tiles, G * D, HALF), dq, G * D, HALF)
    if MB == M:
        store_floats(
            token_pointer(d_orientation, part, token, tiles, R * GP, None), df, R * GP, None
        )


@triton.jit
def add_pair(pointer, low, high):
    """Add two floats to those of a 64-bit word."""
    before = unpack_floats(tl.load(pointer))
    tl.store(pointer, pack_floats(before[0] + low, before[1] + high))


@triton.jit
def store_relations(
    d_orientation, ds, relations, m0, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Add ds[(h·J + j)·MB + m] to its relation; each thread writes only its own entries."""
    HALF_ROW: tl.constexpr = (G + G % 2) // 2 * TILE
    zero = tl.zeros_like(ds[0])
    for i in tl.static_range(H * MB if ALL else MB):
        for j in tl.static_range(0, J if ALL else H, 2):
            own = ds[(i // MB * J + j) * MB + i % MB] if ALL else ds[j * MB + i]
            other = zero
            if j + 1 < (J if ALL else H):
                other = ds[(i // MB * J + j + 1) * MB + i % MB] if ALL else ds[(j + 1) * MB + i]
            if j == 0 or not SHARED:
                at = d_orientation + relation_index(relations, i, j, m0, J, ALL, M, MB) * HALF_ROW
            add_pair(at + j // 2 * TILE, own, other if SHARED else zero)
            if not SHARED:
                at = (
                    d_orientation
                    + relation_index(relations, i, j + 1, m0, J, ALL, M, MB) * HALF_ROW
                )
                add_pair(at + j // 2 * TILE, zero, other)


@triton.jit(do_not_specialize=SIZES)
def orientation_gradients(
    query, key, value, factor, position, steps, relations, peak, total, grad, delta, seed,
    d_orientation,
    rows, cols, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """d_orientation[g, r] = Σ ds over all outputs, keys and offsets in relation r to g."""
    WP: tl.constexpr = (H * PD + 1) // 2
    index, token = program_indices(tiles)
    chunk, item = index % chunks, index // chunks
    q, factor, factors, c_max, log_totals, dout, drop_key = load_tokens(
        query, factor, peak, total, grad, seed, index, item, token, tokens, tiles, H, G, J, ALL, M,
        MB, R, D, HALF,
    )  # fmt: skip
    deltas = load_floats(token_pointer(delta, index, token, tiles, H * J, None), H * J, None)
    relations += chunk * H * J * M
    position += chunk * offsets * WP
    part_of_query = chunk * items + item if ALL else index
    d_orientation = token_pointer(d_orientation, part_of_query, token, tiles, R * (G + G % 2), None)
    for m0 in range(0, M, MB):
        total_ds = full(q[0], 0.0, H * J * MB)
        for s in range(offsets):
            source, inside = source_pixel(token, s, steps, rows, cols, token_cols, crop)
            inside = inside & (token < tokens)
            if tl.max(inside.to(tl.int32), axis=0) > 0:
                p = position_scores(q, position + s * WP, H, J, ALL, D, PD)
                y = position_factors(p, c_max, log_totals, H, J, ALL)
                _, x, f, r = load_sources(
                    q, factors, c_max, dout, drop_key, key, value, factor, relations, item, source,
                    source_tiles, inside, s, m0, chunk, chunks, TABLE, H, G, J, ALL, M, MB, D, HALF,
                    SHARED, DROPS,
                )  # fmt: skip
                ds = score_gradients(x, y, f, r, deltas, H, J, ALL, MB)
                sums = ()
                for i in tl.static_range(H * J * MB):
                    sums = sums + (total_ds[i] + ds[i],)
                total_ds = sums
        store_relations(d_orientation, total_ds, relations, m0, H, G, J, ALL, M, MB, SHARED)


@triton.jit
def add_key_gradients(
    dk, ds, q, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dk_m += Σ_g (Σ_h ds) q_g; ln 2 undoes the scale log₂(e) of the queries."""
    table = ()
    for m in tl.static_range(M):
        dc = ()
        for g in tl.static_range(G):
            dc = dc + (sum_over_outputs(ds, g, m, H, J, ALL, M) * LN2,)
        for c in tl.static_range(D):
            total = dk[m * D + c]
            for g in tl.static_range(G):
                total += dc[g] * q[g * D + c]
            table = table + (total,)
    return table


@triton.jit
def add_value_gradients(
    dv, x, y, f, dout, drop_key, s, m0, chunk, chunks, H: tl.constexpr, J: tl.constexpr,
    ALL: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """dv_m += Σ_h W[h, m] dout_h."""
    w = ()
    for h in tl.static_range(H):
        w = w + weights(x, y, f, h, J, ALL, MB)
    table = ()
    for m in tl.static_range(MB):
        kept = ()
        for h in tl.static_range(H):
            kept = kept + (w[h * MB + m],)
        if DROPS > 0:
            number, first = dropout_number(s, m0 + m, chunk, chunks, H, M)
            keep = keep_mask(drop_key, number, first, H, DROPS)
            kept = ()
            for h in tl.static_range(H):
                kept = kept + (tl.where(keep[h], w[h * MB + m], 0.0),)
        for c in tl.static_range(D):
            total = dv[m * D + c]
            for h in tl.static_range(H):
                total += kept[h] * dout[h * D + c]
            table = table + (total,)
    return table


@triton.jit(do_not_specialize=SIZES)
def source_gradients(
    query, key, value, factor, position, steps, relations, peak, total, grad, delta, seed,
    d_key, d_value,
    rows, cols, token_rows, token_cols, crop, tokens, tiles, source_tiles, offsets, chunks, items,
    TABLE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, J: tl.constexpr, ALL: tl.constexpr,
    M: tl.constexpr, MB: tl.constexpr, R: tl.constexpr, D: tl.constexpr, PD: tl.constexpr,
    HALF: tl.constexpr, SHARED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values of MB group elements, from all tokens that see them."""
    WP: tl.constexpr = (H * PD + 1) // 2
    item, pixel = program_indices(source_tiles)
    m0 = tl.program_id(1) * MB
    part = (item * M + m0) // MB
    k = load_floats(token_pointer(key, part, pixel, source_tiles, MB * D, HALF), MB * D, HALF)
    v = load_floats(token_pointer(value, part, pixel, source_tiles, MB * D, HALF), MB * D, HALF)
    dk = full(k[0], 0.0, MB * D)
    dv = full(k[0], 0.0, MB * D)
    for step in range(offsets * chunks):
        s, chunk = step // chunks, step % chunks
        row = pixel // cols - crop - tl.load(steps + 2 * s)
        col = pixel % cols - crop - tl.load(steps + 2 * s + 1)
        seen = (row >= 0) & (row < token_rows) & (col >= 0) & (col < token_cols)
        seen = seen & (pixel < rows * cols)
        if tl.max(seen.to(tl.int32), axis=0) > 0:
            token, index = tl.where(seen, row * token_cols + col, 0), item * chunks + chunk
            q, at, factors, c_max, log_totals, dout, drop_key = load_tokens(
                query, factor, peak, total, grad, seed, index, item, token, tokens, tiles, H, G, J,
                ALL, M, MB, R, D, HALF,
            )  # fmt: skip
            deltas = load_floats(
                token_pointer(delta, index, token, tiles, H * J, None), H * J, None
            )
            p = position_scores(q, position + (chunk * offsets + s) * WP, H, J, ALL, D, PD)
            y = position_factors(p, c_max, log_totals, H, J, ALL)
            x = content_factors(content_scores(q, k, seen, G, MB, D), c_max, G, MB)
            now = relations + chunk * H * J * M
            f = orientation_factors(factors, at, now, m0, TABLE, H, G, J, ALL, M, MB, SHARED)
            r = weight_gradients(dout, v, drop_key, s, m0, chunk, chunks, H, M, MB, D, DROPS)
            ds = score_gradients(x, y, f, r, deltas, H, J, ALL, MB)
            dk = add_key_gradients(dk, ds, q, H, G, J, ALL, MB, D)
            dv = add_value_gradients(
                dv, x, y, f, dout, drop_key, s, m0, chunk, chunks, H, J, ALL, M, MB, D, DROPS
            )
    dk_at = token_pointer(d_key, part, pixel, source_tiles, MB * D, HALF)
    dv_at = token_pointer(d_value, part, pixel, source_tiles, MB * D, HALF)
    store_floats(dk_at, dk, MB * D, HALF)
    store_floats(dv_at, dv, MB * D, HALF)
