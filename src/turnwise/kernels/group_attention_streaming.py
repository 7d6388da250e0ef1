"""Group attention on CPUs in little memory: matrix products over a few items at a time.

The attention weights are never stored; the backward pass recomputes them.  The softmax factorises
over content, position and orientation, exp(a + b + c) = X · Y · F, so its denominators are small
matrix products, and only |G|² exponentials are needed instead of |G|³.  If the products underflow,
the weights of a chunk are computed from a + b + c directly.

Letters:  i an item (a head of an image), t token, s source;  h, g, m group elements of output,
          query and key;  d channel.  A pair is a query that an output meets: all, or its own (J).
"""

from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnwise.geometry.grids import offset_to_steps
from turnwise.geometry.neighbourhoods import Sources, View
from turnwise.kernels.hashed_dropout import keep_mask, numbered_offsets

CHUNK_ENTRIES = 2**19  # attention weights computed at once; they should fit in the cache


class StreamingOptions(NamedTuple):
    """Everything that attention depends on besides the tensors that have gradients."""

    sources: Sources
    table: Int64[Tensor, "out query key"]
    own: bool
    dropout: float
    seed: Int64[Tensor, "1"] | None


class Weights(NamedTuple):
    """Weights A_j = X_j · Y_j · P_j with P = F / (J Σ X Y F); or A itself, on underflow."""

    content: Float[Tensor, "token query source key"]  # X
    position: Float[Tensor, "token pair out source"]  # Y
    orientation: Float[Tensor, "token pair out key"]  # P
    direct: Float[Tensor, "token pair out source key"] | None  # A

    def pair(self, j: int, own: bool) -> tuple[Tensor, Tensor]:
        """Return X_j and Y_j · P_j, both to be broadcast to (token, out, source, key)."""
        content = self.content if own else self.content[:, j, None]
        return content, self.position[:, j, :, :, None] * self.orientation[:, j, :, None, :]


def stream_attention(
    query: Float[Tensor, "item token query dim"],
    key: Float[Tensor, "item pixel key dim"],
    value: Float[Tensor, "item pixel key dim"],
    position: Float[Tensor, "out offset position_dim"],
    orientation: Float[Tensor, "item token query relation"],
    options: StreamingOptions,
) -> Float[Tensor, "item token out dim"]:
    """Compute `attention.group.attend_from_frames` in chunks of items.

    `orientation` holds the scores of all relations.
    """
    return _StreamingAttention.apply(query, key, value, position, orientation, options)


class _StreamingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        tensors, options = inputs[:-1], inputs[-1]
        ctx.save_for_backward(*tensors)
        ctx.options = options
        query, _, value, position, _ = tensors
        output = query.new_empty((*query.shape[:2], len(position), query.shape[-1]))
        for chunk in _chunks(query, position, options):
            weights, _ = _attention_weights(chunk, tensors, options)
            total = _sum_over_pairs(weights, options)
            _drop(chunk, query, options, total)
            result = total.flatten(2) @ _gather(value[chunk], options)
            output[chunk] = result.view_as(output[chunk])
        return output.div_(1 - options.dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, options, grad = ctx.saved_tensors, ctx.options, grad / (1 - ctx.options.dropout)
        grads = tuple(torch.zeros_like(x) for x in tensors)
        for chunk in _chunks(tensors[0], tensors[3], options):
            _add_gradients(chunk, grad, tensors, grads, options)
        return (*grads, None)


def _chunks(query: Tensor, position: Tensor, options: StreamingOptions) -> list[slice]:
    items, tokens = query.shape[:2]
    entries = tokens * len(position) * options.sources.pixel.shape[1] * options.table.shape[2]
    step = max(1, CHUNK_ENTRIES // entries)
    return [slice(first, first + step) for first in range(0, items, step)]


def _gather(x: Float[Tensor, "item pixel key dim"], options: StreamingOptions) -> Tensor:
    """Gather the sources of every token: (token, source·key, dim)."""
    rows = x.flatten(2).index_select(1, options.sources.pixel.flatten())
    return rows.view(-1, options.sources.pixel.shape[1] * x.shape[2], x.shape[3])


def _attention_weights(
    chunk: slice, tensors: tuple[Tensor, ...], options: StreamingOptions
) -> tuple[Weights, Tensor]:
    """Return the weights of a chunk of items, and their gathered keys."""
    keys = _gather(tensors[1][chunk], options)
    content, position_scores, orientation_scores = _scores(chunk, tensors, keys, options)
    content.sub_(content.amax(dim=(-2, -1), keepdim=True)).exp_()
    position_scores.sub_(position_scores.amax(dim=-1, keepdim=True)).exp_()
    factor = (orientation_scores - orientation_scores.amax(dim=-1, keepdim=True)).exp()
    if options.own:
        by_key = (position_scores[:, 0, :, None] @ content)[:, None, :, 0]
    else:
        by_key = position_scores @ content
    total = (by_key * factor).sum(dim=-1, keepdim=True)
    if _underflows(total):
        direct = _direct_weights(*_scores(chunk, tensors, keys, options), options)
        return Weights(content, position_scores, factor, direct), keys
    factor /= factor.shape[1] * total
    return Weights(content, position_scores, factor, None), keys


def _underflows(total: Float[Tensor, "*shape"]) -> bool:
    """Whether products may have been rounded to 0, or to a few bits."""
    return not bool((total > torch.finfo(total.dtype).tiny / torch.finfo(total.dtype).eps).all())


def _scores(
    chunk: slice, tensors: tuple[Tensor, ...], keys: Tensor, options: StreamingOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three terms of the scores: (t, g, s, m), (t, j, h, s) and (t, j, h, m)."""
    query, key, _, position, orientation = tensors
    query = query[chunk].flatten(0, 1)
    content = (query @ keys.mT).unflatten(-1, (-1, key.shape[2]))
    content.view(-1, len(options.sources.pixel), *content.shape[1:]).masked_fill_(
        ~options.sources.inside[:, None, :, None], -torch.inf
    )
    position_scores = _position_scores(query[..., : position.shape[-1]], position, options)
    return content, position_scores, _orientation_scores(orientation[chunk].flatten(0, 1), options)


def _direct_weights(
    content: Tensor, position_scores: Tensor, orientation_scores: Tensor, options: StreamingOptions
) -> Float[Tensor, "token pair out source key"]:
    """A_j = softmax(a + b + c) / J over all sources and keys, without factorising."""
    content = content[:, None] if options.own else content[:, :, None]
    score = content + position_scores[..., None] + orientation_scores[..., None, :]
    weight = score.flatten(-2).softmax(dim=-1).view_as(score)
    return weight / weight.shape[1]


def _position_scores(
    query: Tensor, position: Tensor, options: StreamingOptions
) -> Float[Tensor, "token pair out source"]:
    """Position scores of every pair; without a window each token has its own offsets."""
    if options.sources.view.neighbourhood.window:
        if options.own:
            return (query.transpose(0, 1) @ position.mT).transpose(0, 1)[:, None]
        return (query @ position.flatten(0, 1).T).unflatten(-1, position.shape[:2])
    encoding = position[:, options.sources.offset]  # (h, t, s, c)
    query = query.unflatten(0, (-1, len(options.sources.pixel)))
    if options.own:
        return torch.einsum("ithc,htsc->iths", query, encoding).flatten(0, 1)[:, None]
    return torch.einsum("itgc,htsc->itghs", query, encoding).flatten(0, 1)


def _orientation_scores(
    scores: Tensor, options: StreamingOptions
) -> Float[Tensor, "token pair out key"]:
    """Select the score of the relation of every output, query and key."""
    if options.own:
        own = torch.arange(len(options.table), device=scores.device)
        return scores[:, own[:, None], options.table[own, own]][:, None]
    query_index = torch.arange(options.table.shape[1], device=scores.device)
    return scores[:, query_index[:, None, None], options.table.transpose(0, 1)]


def _weight(
    weights: Weights, j: int, options: StreamingOptions
) -> Float[Tensor, "token out source key"]:
    """A_j."""
    if weights.direct is not None:
        return weights.direct[:, j]
    content, rest = weights.pair(j, options.own)
    return content * rest


def _sum_over_pairs(
    weights: Weights, options: StreamingOptions
) -> Float[Tensor, "token out source key"]:
    """Σ_j A_j."""
    if weights.direct is not None:
        return weights.direct.sum(dim=1)
    total = _weight(weights, 0, options)
    for j in range(1, weights.position.shape[1]):
        content, rest = weights.pair(j, options.own)
        total.addcmul_(content, rest)
    return total


def _drop(chunk: slice, query: Tensor, options: StreamingOptions, *tables: Tensor) -> None:
    """Zero the entries of tables (token, out, source, key) that dropout removes."""
    if options.seed is None:
        return
    (_, outputs, _, keys), tokens = tables[0].shape, query.shape[1]
    count, pairs = partial(torch.arange, device=query.device), (outputs + 1) // 2
    items = count(len(query))[chunk]
    index = (items[:, None] * tokens + count(tokens))[..., None, None, None]
    number = (numbered_offsets(options.sources)[:, None, :, None] * keys + count(keys)) * pairs
    kept = keep_mask(options.seed, index, number + count(pairs)[:, None, None], options.dropout)
    kept = kept.movedim(-1, 3).flatten(2, 3)[:, :, :outputs].flatten(0, 1).to(tables[0].dtype)
    for table in tables:
        table.mul_(kept)


def _add_gradients(
    chunk: slice,
    grad: Tensor,
    tensors: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
    options: StreamingOptions,
) -> None:
    """Write the gradients of these items, and add their share to the position gradient."""
    query, _, value, position, orientation = tensors
    d_query, d_key, d_value, d_position, d_orientation = grads
    weights, keys = _attention_weights(chunk, tensors, options)
    d_output = grad[chunk].flatten(0, 1)  # (t, h, d)
    scores = [_weight(weights, j, options) for j in range(weights.position.shape[1])]
    total = scores[0].clone() if len(scores) == 1 else sum(scores[1:], start=scores[0])
    d_weight = (d_output @ _gather(value[chunk], options).mT).view_as(total)
    _drop(chunk, query, options, total, d_weight)
    _scatter(d_value, chunk, total.flatten(2).mT @ d_output, options)
    query = query[chunk].flatten(0, 1)
    d_content = torch.zeros_like(weights.content)
    d_position_scores = torch.zeros_like(weights.position)
    d_orientation_scores = torch.zeros_like(weights.orientation)
    pairs = weights.position.shape[1]
    for j, score in enumerate(scores):  # A_j, then its gradient
        mean = pairs * (score * d_weight).sum(dim=(-2, -1), keepdim=True)
        score.mul_(d_weight - mean)
        if options.own:
            d_content = score
        else:
            d_content[:, j] = score.sum(dim=1)
        d_position_scores[:, j], d_orientation_scores[:, j] = score.sum(dim=-1), score.sum(dim=-2)
    d_content = d_content.flatten(2)
    d_query_rows = d_content @ keys
    _scatter(d_key, chunk, d_content.mT @ query, options)
    _add_position_gradients(d_query_rows, d_position, d_position_scores, query, position, options)
    d_query[chunk] = d_query_rows.view_as(d_query[chunk])
    d_orientation[chunk] = _orientation_gradients(d_orientation_scores, orientation[chunk], options)


def _scatter(into: Tensor, chunk: slice, parts: Tensor, options: StreamingOptions) -> None:
    """Add the gradients of gathered sources to their pixels; those outside are zero."""
    target, view = into[chunk], options.sources.view
    parts = parts.unflatten(1, (options.sources.pixel.shape[1], -1)).unflatten(0, (len(target), -1))
    if not view.neighbourhood.window:
        target.index_add_(1, options.sources.pixel.flatten(), parts.flatten(1, 2))
        return
    target = target.unflatten(1, (view.rows, view.cols))
    parts = parts.unflatten(1, (view.token_rows, view.token_cols))  # (i, row, col, s, m, d)
    for number, (down, right) in enumerate(_steps(view)):
        rows, pixel_rows = _overlap(view.token_rows, view.rows, view.crop + down)
        cols, pixel_cols = _overlap(view.token_cols, view.cols, view.crop + right)
        target[:, pixel_rows, pixel_cols] += parts[:, rows, cols, number]


@cache
def _steps(view: View) -> list[list[int]]:
    """Return the offsets as (rows, columns)."""
    return offset_to_steps(view.offsets()).tolist()


def _overlap(tokens: int, pixels: int, shift: int) -> tuple[slice, slice]:
    """Return the tokens along a side whose pixel, `shift` farther, exists; and those pixels."""
    first, last = max(0, -shift), max(0, -shift, min(tokens, pixels - shift))
    return slice(first, last), slice(first + shift, last + shift)


def _add_position_gradients(
    d_query_rows: Tensor,
    d_position: Tensor,
    d_position_scores: Tensor,
    query: Tensor,
    position: Tensor,
    options: StreamingOptions,
) -> None:
    """Backward pass of `_position_scores`, into the queries and the encodings."""
    query, d_query_rows = query[..., : position.shape[-1]], d_query_rows[..., : position.shape[-1]]
    if not options.sources.view.neighbourhood.window:
        items = (-1, len(options.sources.pixel))
        query, d_position_scores = query.unflatten(0, items), d_position_scores.unflatten(0, items)
        score = d_position_scores[:, :, 0] if options.own else d_position_scores
        axes, element = ("iths", "h") if options.own else ("itghs", "g")
        encoding = position[:, options.sources.offset]
        d_query_rows += torch.einsum(f"{axes},htsc->it{element}c", score, encoding).flatten(0, 1)
        parts = torch.einsum(f"{axes},it{element}c->htsc", score, query)
        d_position.index_add_(1, options.sources.offset.flatten(), parts.flatten(1, 2))
    elif options.own:
        score = d_position_scores[:, 0].transpose(0, 1)  # (h, t, s)
        d_query_rows += (score @ position).transpose(0, 1)
        d_position += score.mT @ query.transpose(0, 1)
    else:
        score = d_position_scores.flatten(2)  # (t, g, h·s)
        d_query_rows += score @ position.flatten(0, 1)
        d_position += (score.flatten(0, 1).T @ query.flatten(0, 1)).view_as(position)


def _orientation_gradients(
    d_orientation_scores: Tensor, scores: Tensor, options: StreamingOptions
) -> Tensor:
    """Backward pass of `_orientation_scores`: sum the gradients of each relation."""
    relations, outputs = scores.shape[-1], len(options.table)
    if options.own:
        own = torch.arange(outputs, device=scores.device)
        index = own[:, None] * relations + options.table[own, own]
        d_orientation_scores = d_orientation_scores[:, 0]
    else:
        query_index = torch.arange(options.table.shape[1], device=scores.device)[:, None, None]
        index = query_index * relations + options.table.transpose(0, 1)
    flat = scores.new_zeros((len(d_orientation_scores), scores.shape[2] * relations))
    flat.index_add_(1, index.flatten(), d_orientation_scores.flatten(1))
    return flat.view_as(scores)
