"""Attention from frames in little memory: matrix products over a few pictures and heads at a time.

Nothing of the size of the scores is kept: the way back computes the weights again.  The softmax
factorises over content, place and pose, exp(a + b + c) = X · Y · F, so its denominators are small
matrix products, and exponentials are taken of |G|² numbers instead of |G|³.  Images where all
products are too small for a floating-point number are weighed by a + b + c as a whole.

Letters:  i an image (one head of one picture), t token, s source;  h, g, m poses of output, query
          and key;  d channel.  A pair is a query that an output meets: all, or its own (J of them).
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

AT_ONCE = 2**19  # entries of the weights that are worked on at once: they should stay in the cache


class Form(NamedTuple):
    """What is to be computed, beside the tensors that have gradients."""

    sources: Sources
    table: Int64[Tensor, "out query key"]
    own: bool
    dropout: float
    seed: Int64[Tensor, "1"] | None


class Weights(NamedTuple):
    """Of a few images: A_j = X_j · Y_j · P_j, P = F / (J Σ X Y F); or A itself, if that is lost."""

    content: Float[Tensor, "token query source key"]  # X
    place: Float[Tensor, "token pair out source"]  # Y
    pose: Float[Tensor, "token pair out key"]  # P
    whole: Float[Tensor, "token pair out source key"] | None  # A

    def pair(self, j: int, own: bool) -> tuple[Tensor, Tensor]:
        """X_j and Y_j · P_j, both to be read as (token, out, source, key)."""
        content = self.content if own else self.content[:, j, None]
        return content, self.place[:, j, :, :, None] * self.pose[:, j, :, None, :]


def stream_attention(
    query: Float[Tensor, "image token query dim"],
    key: Float[Tensor, "image pixel key dim"],
    value: Float[Tensor, "image pixel key dim"],
    place: Float[Tensor, "out offset place_dim"],
    pose: Float[Tensor, "image token query relation"],
    form: Form,
) -> Float[Tensor, "image token out dim"]:
    """What `frames.attend_from_frames` computes; `pose` are the scores of the relations."""
    return _Stream.apply(query, key, value, place, pose, form)


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        tensors, form = given[:-1], given[-1]
        ctx.save_for_backward(*tensors)
        ctx.form = form
        query, _, value, place, _ = tensors
        output = query.new_empty((*query.shape[:2], len(place), query.shape[-1]))
        for some in _chunks(query, place, form):
            weights, _ = _weigh(some, tensors, form)
            total = _added(weights, form)
            _drop(some, query, form, total)
            mixed = total.flatten(2) @ _gathered(value[some], form)
            output[some] = mixed.view_as(output[some])
        return output.div_(1 - form.dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, form, grad = ctx.saved_tensors, ctx.form, grad / (1 - ctx.form.dropout)
        grads = tuple(torch.zeros_like(x) for x in tensors)
        for some in _chunks(tensors[0], tensors[3], form):
            _add_gradients(some, grad, tensors, grads, form)
        return (*grads, None)


def _chunks(query: Tensor, place: Tensor, form: Form) -> list[slice]:
    images, tokens = query.shape[:2]
    entries = tokens * len(place) * form.sources.pixel.shape[1] * form.table.shape[2]
    step = max(1, AT_ONCE // entries)
    return [slice(first, first + step) for first in range(0, images, step)]


def _gathered(x: Float[Tensor, "image pixel key dim"], form: Form) -> Tensor:
    """The sources of every token, (token, source·key, dim)."""
    rows = x.flatten(2).index_select(1, form.sources.pixel.flatten())
    return rows.view(-1, form.sources.pixel.shape[1] * x.shape[2], x.shape[3])


def _weigh(some: slice, tensors: tuple[Tensor, ...], form: Form) -> tuple[Weights, Tensor]:
    """The factors of the weights of these images, and their gathered keys."""
    keys = _gathered(tensors[1][some], form)
    content, placed, related = _scores(some, tensors, keys, form)
    content.sub_(content.amax(dim=(-2, -1), keepdim=True)).exp_()
    placed.sub_(placed.amax(dim=-1, keepdim=True)).exp_()
    factor = (related - related.amax(dim=-1, keepdim=True)).exp()
    by_key = (placed[:, 0, :, None] @ content)[:, None, :, 0] if form.own else placed @ content
    total = (by_key * factor).sum(dim=-1, keepdim=True)
    if _too_small(total):
        whole = _weigh_whole(*_scores(some, tensors, keys, form), form)
        return Weights(content, placed, factor, whole), keys
    factor /= factor.shape[1] * total
    return Weights(content, placed, factor, None), keys


def _too_small(total: Float[Tensor, "*shape"]) -> bool:
    """Whether products that count may have been lost: rounded to 0, or to a few bits."""
    return not bool((total > torch.finfo(total.dtype).tiny / torch.finfo(total.dtype).eps).all())


def _scores(
    some: slice, tensors: tuple[Tensor, ...], keys: Tensor, form: Form
) -> tuple[Tensor, Tensor, Tensor]:
    """The three parts of the scores: (t, g, s, m), (t, j, h, s) and (t, j, h, m)."""
    query, key, _, place, pose = tensors
    asked = query[some].flatten(0, 1)
    content = (asked @ keys.mT).unflatten(-1, (-1, key.shape[2]))
    content.view(-1, len(form.sources.pixel), *content.shape[1:]).masked_fill_(
        ~form.sources.inside[:, None, :, None], -torch.inf
    )
    placed = _placed(asked[..., : place.shape[-1]], place, form)
    return content, placed, _related(pose[some].flatten(0, 1), form)


def _weigh_whole(
    content: Tensor, placed: Tensor, related: Tensor, form: Form
) -> Float[Tensor, "token pair out source key"]:
    """A_j = softmax(a + b + c) / J over all sources and keys, written out."""
    content = content[:, None] if form.own else content[:, :, None]
    score = content + placed[..., None] + related[..., None, :]
    weight = score.flatten(-2).softmax(dim=-1).view_as(score)
    return weight / weight.shape[1]


def _placed(asked: Tensor, place: Tensor, form: Form) -> Float[Tensor, "token pair out source"]:
    """The place scores of every pair; over the whole picture each token has offsets of its own."""
    if form.sources.view.neighbourhood.window:
        if form.own:
            return (asked.transpose(0, 1) @ place.mT).transpose(0, 1)[:, None]
        return (asked @ place.flatten(0, 1).T).unflatten(-1, place.shape[:2])
    around = place[:, form.sources.offset]  # (h, t, s, c)
    asked = asked.unflatten(0, (-1, len(form.sources.pixel)))
    if form.own:
        return torch.einsum("ithc,htsc->iths", asked, around).flatten(0, 1)[:, None]
    return torch.einsum("itgc,htsc->itghs", asked, around).flatten(0, 1)


def _related(scores: Tensor, form: Form) -> Float[Tensor, "token pair out key"]:
    """The pose score of the relation of every output, query and key."""
    if form.own:
        own = torch.arange(len(form.table), device=scores.device)
        return scores[:, own[:, None], form.table[own, own]][:, None]
    asker = torch.arange(form.table.shape[1], device=scores.device)
    return scores[:, asker[:, None, None], form.table.transpose(0, 1)]


def _weight(weights: Weights, j: int, form: Form) -> Float[Tensor, "token out source key"]:
    """A_j."""
    if weights.whole is not None:
        return weights.whole[:, j]
    content, rest = weights.pair(j, form.own)
    return content * rest


def _added(weights: Weights, form: Form) -> Float[Tensor, "token out source key"]:
    """Σ_j A_j."""
    if weights.whole is not None:
        return weights.whole.sum(dim=1)
    total = _weight(weights, 0, form)
    for j in range(1, weights.place.shape[1]):
        content, rest = weights.pair(j, form.own)
        total.addcmul_(content, rest)
    return total


def _drop(some: slice, query: Tensor, form: Form, *tables: Tensor) -> None:
    """Put zeros into tables (token, out, source, key) where dropout takes a weight away."""
    if form.seed is None:
        return
    (_, outs, _, poses), tokens = tables[0].shape, query.shape[1]
    count, pairs = partial(torch.arange, device=query.device), (outs + 1) // 2
    images = count(len(query))[some]
    lane = (images[:, None] * tokens + count(tokens))[..., None, None, None]
    number = (numbered_offsets(form.sources)[:, None, :, None] * poses + count(poses)) * pairs
    kept = keep_mask(form.seed, lane, number + count(pairs)[:, None, None], form.dropout)
    kept = kept.movedim(-1, 3).flatten(2, 3)[:, :, :outs].flatten(0, 1).to(tables[0].dtype)
    for table in tables:
        table.mul_(kept)


def _add_gradients(
    some: slice, grad: Tensor, tensors: tuple[Tensor, ...], grads: tuple[Tensor, ...], form: Form
) -> None:
    """Fill the gradients of these images, and add their part to those of the places."""
    query, _, value, place, pose = tensors
    d_query, d_key, d_value, d_place, d_pose = grads
    weights, keys = _weigh(some, tensors, form)
    given = grad[some].flatten(0, 1)  # (t, h, d)
    scores = [_weight(weights, j, form) for j in range(weights.place.shape[1])]
    total = scores[0].clone() if len(scores) == 1 else sum(scores[1:], start=scores[0])
    worth = (given @ _gathered(value[some], form).mT).view_as(total)
    _drop(some, query, form, total, worth)
    _scatter(d_value, some, total.flatten(2).mT @ given, form)
    asked = query[some].flatten(0, 1)
    d_content = torch.zeros_like(weights.content)
    d_placed, d_related = torch.zeros_like(weights.place), torch.zeros_like(weights.pose)
    pairs = weights.place.shape[1]
    for j, score in enumerate(scores):  # A_j, then its gradient
        mean = pairs * (score * worth).sum(dim=(-2, -1), keepdim=True)
        score.mul_(worth - mean)
        if form.own:
            d_content = score
        else:
            d_content[:, j] = score.sum(dim=1)
        d_placed[:, j], d_related[:, j] = score.sum(dim=-1), score.sum(dim=-2)
    d_content = d_content.flatten(2)
    d_asked = d_content @ keys
    _scatter(d_key, some, d_content.mT @ asked, form)
    _add_place_gradients(d_asked, d_place, d_placed, asked, place, form)
    d_query[some] = d_asked.view_as(d_query[some])
    d_pose[some] = _unrelated(d_related, pose[some], form)


def _scatter(into: Tensor, some: slice, parts: Tensor, form: Form) -> None:
    """Bring the gradients of gathered sources home to their pixels; those outside are zero."""
    target, view = into[some], form.sources.view
    parts = parts.unflatten(1, (form.sources.pixel.shape[1], -1)).unflatten(0, (len(target), -1))
    if not view.neighbourhood.window:
        target.index_add_(1, form.sources.pixel.flatten(), parts.flatten(1, 2))
        return
    target = target.unflatten(1, (view.rows, view.cols))
    parts = parts.unflatten(1, (view.token_rows, view.token_cols))  # (i, row, col, s, m, d)
    for number, (down, right) in enumerate(_steps(view)):
        rows, home_rows = _overlap(view.token_rows, view.rows, view.crop + down)
        cols, home_cols = _overlap(view.token_cols, view.cols, view.crop + right)
        target[:, home_rows, home_cols] += parts[:, rows, cols, number]


@cache
def _steps(view: View) -> list[list[int]]:
    """The offsets in rows and columns."""
    return offset_to_steps(view.offsets()).tolist()


def _overlap(tokens: int, pixels: int, shift: int) -> tuple[slice, slice]:
    """Which tokens along a side have their pixel, `shift` farther, in the picture; and which."""
    first, last = max(0, -shift), max(0, -shift, min(tokens, pixels - shift))
    return slice(first, last), slice(first + shift, last + shift)


def _add_place_gradients(
    d_asked: Tensor, d_place: Tensor, d_placed: Tensor, asked: Tensor, place: Tensor, form: Form
) -> None:
    """The way back through `_placed`, into the queries and the places."""
    asked, d_asked = asked[..., : place.shape[-1]], d_asked[..., : place.shape[-1]]
    if not form.sources.view.neighbourhood.window:
        images = (-1, len(form.sources.pixel))
        asked, d_placed = asked.unflatten(0, images), d_placed.unflatten(0, images)
        how = ("h", "itjhs") if form.own else ("g", "itghs")
        score = d_placed[:, :, 0] if form.own else d_placed
        name = how[1].replace("j", "") if form.own else how[1]
        around = place[:, form.sources.offset]
        d_asked += torch.einsum(f"{name},htsc->it{how[0]}c", score, around).flatten(0, 1)
        parts = torch.einsum(f"{name},it{how[0]}c->htsc", score, asked)
        d_place.index_add_(1, form.sources.offset.flatten(), parts.flatten(1, 2))
    elif form.own:
        score = d_placed[:, 0].transpose(0, 1)  # (h, t, s)
        d_asked += (score @ place).transpose(0, 1)
        d_place += score.mT @ asked.transpose(0, 1)
    else:
        score = d_placed.flatten(2)  # (t, g, h·s)
        d_asked += score @ place.flatten(0, 1)
        d_place += (score.flatten(0, 1).T @ asked.flatten(0, 1)).view_as(place)


def _unrelated(d_related: Tensor, scores: Tensor, form: Form) -> Tensor:
    """The way back through `_related`: each relation gets what its outputs and keys say."""
    relations, outs = scores.shape[-1], len(form.table)
    if form.own:
        own = torch.arange(outs, device=scores.device)
        index = own[:, None] * relations + form.table[own, own]
        d_related = d_related[:, 0]
    else:
        asker = torch.arange(form.table.shape[1], device=scores.device)[:, None, None]
        index = asker * relations + form.table.transpose(0, 1)
    flat = scores.new_zeros((len(d_related), scores.shape[2] * relations))
    flat.index_add_(1, index.flatten(), d_related.flatten(1))
    return flat.view_as(scores)
