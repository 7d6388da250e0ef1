"""Attention on the group, with relative positions in the frame of the output's orientation.

A feature belongs to a pose (h, t): an orientation h (a group element) at a pixel t.  The output
(h, t) sees a source at offset δ as h⁻¹δ and its orientation m as h⁻¹m; rotating the image changes
neither.  backend="plain" reads like the formula and is the reference for the others, which compute
the same in less memory (kernels/group_attention_streaming.py) or on a GPU (Triton).

Letters:  b batch, n head, t token (pixel of the output), s source (pixel of the neighbourhood);
          h, g, m the orientations of output, query and key;  d, c channels of a head.
"""

import warnings
from functools import cache, partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.errors import require_known
from turnwise.geometry.neighbourhoods import Sources
from turnwise.kernels.group_attention_streaming import StreamingOptions, stream_attention
from turnwise.kernels.hashed_dropout import draw_seed, drop_threshold, keep_mask, numbered_offsets

QUERIES = ("all", "own")
BACKENDS = ("auto", "plain", "streaming", "triton")
HAS_TRITON = find_spec("triton") is not None


class Encodings(NamedTuple):
    """The positional encodings that a query is multiplied with, beside the keys.

    `position[h, δ]` encodes h⁻¹δ; `orientation[table[h, g, m]]` encodes the relation of the
    orientations of output, query and key.  The first channels of a query are multiplied with the
    position, its last channels with the orientation.
    """

    position: Float[Tensor, "out offset position_dim"]
    orientation: Float[Tensor, "relation orientation_dim"]
    table: Int64[Tensor, "out query key"]  # on the CPU: the kernels are compiled for it


def attend_from_frames(
    query: Float[Tensor, "batch query token head dim"],
    key: Float[Tensor, "batch key pixel head dim"],
    value: Float[Tensor, "batch key pixel head dim"],
    encodings: Encodings,
    sources: Sources,
    *,
    queries: str = "all",
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch out token head dim"]:
    """out_t^h = mean_g Σ_{s,m} σ(q_t^g·k_s^m + q_t^g·P(h⁻¹(s − t)) + q_t^g·E[T(h, g, m)]) v_s^m

    The softmax σ runs over all sources s and keys m together.  queries="all" is the formula above,
    as published, of cost |G|³; queries="own" keeps g = h alone, of cost |G|².  Lifting from an
    image is the same with one query and one key orientation.  Scale the query beforehand.

    Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision";
              Xu et al. 2023, "E(2)-Equivariant Vision Transformer".
    Symbols:  P is `encodings.position`, E `encodings.orientation`, T `encodings.table`.
              Equivariant if and only if T(Rh, Rg, Rm) = T(h, g, m) for every R.
    Departs:  a mean over g, not a sum; dropout acts on the weights after the mean, not before it.
    """
    require_known(queries, QUERIES, "queries")
    require_known(backend, BACKENDS, "backend")
    seed = draw_seed(query.device) if dropout else None
    if backend == "auto":
        backend = _best_backend(query)
    backends = {"plain": _plain, "streaming": _streaming, "triton": _triton}
    return backends[backend](query, key, value, encodings, sources, queries, seed, dropout)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """The formula, term by term."""
    keys, values = key[:, :, sources.pixel], value[:, :, sources.pixel]  # (b, m, t, s, n, d)
    position = encodings.position[:, sources.offset]  # (h, t, s, c)
    orientation = encodings.orientation[encodings.table.to(query.device)]  # (h, g, m, c)
    position_query, orientation_query = query.split(
        [position.shape[-1], orientation.shape[-1]], dim=-1
    )
    if queries == "own":
        own = torch.arange(len(orientation), device=orientation.device)
        content_score = torch.einsum("bhtnd,bmtsnd->bnhtms", query, keys)
        position_score = torch.einsum("bhtnc,htsc->bnhts", position_query, position)
        orientation_score = torch.einsum(
            "bhtnc,hmc->bnhtm", orientation_query, orientation[own, own]
        )
        weight = _softmax(content_score, position_score, orientation_score, sources)
    else:
        content_score = torch.einsum("bgtnd,bmtsnd->bngtms", query, keys)[:, :, None]
        position_score = torch.einsum("bgtnc,htsc->bnhgts", position_query, position)
        orientation_score = torch.einsum("bgtnc,hgmc->bnhgtm", orientation_query, orientation)
        weight = _softmax(content_score, position_score, orientation_score, sources).mean(dim=3)
    if seed is not None:
        weight = weight * _keep_mask(weight, sources, seed, dropout) / (1 - dropout)
    return torch.einsum("bnhtms,bmtsnd->bhtnd", weight, values)


def _softmax(
    content_score: Tensor, position_score: Tensor, orientation_score: Tensor, sources: Sources
) -> Tensor:
    """Return the weights of all (m, s); sources outside the image have none."""
    score = (
        content_score + position_score[..., None, :] + orientation_score[..., None]
    )  # (…, t, m, s)
    score = score.masked_fill(~sources.inside[:, None], -torch.inf)
    return score.flatten(-2).softmax(dim=-1).view_as(score)


def _keep_mask(weight: Tensor, sources: Sources, seed: Tensor, rate: float) -> Tensor:
    """Return which weights (b, n, h, t, m, s) dropout keeps, numbered as in the kernels."""
    batch, heads, outputs, tokens, keys, _ = weight.shape
    count = partial(torch.arange, device=weight.device)
    index = count(batch * heads * tokens).view(batch, heads, 1, tokens, 1, 1)
    pairs = (outputs + 1) // 2
    number = numbered_offsets(sources)[:, None, :] * keys + count(keys)[:, None]  # (t, m, s)
    kept = keep_mask(seed, index, number * pairs + count(pairs).view(pairs, 1, 1, 1), rate)
    return kept.movedim(-1, 3).flatten(2, 3)[:, :, :outputs]


def _streaming(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """Compute the same image by image, in little memory, and in float32 at least."""
    position, orientation, table = encodings
    wide = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        query_items, keys, values = (
            x.to(wide).permute(0, 3, 2, 1, 4).flatten(0, 1).contiguous()
            for x in (query, key, value)
        )
        scores = query_items[..., position.shape[-1] :] @ orientation.to(wide).T
        options = StreamingOptions(sources, table.to(query.device), queries == "own", dropout, seed)
        output = stream_attention(query_items, keys, values, position.to(wide), scores, options)
    return output.unflatten(0, (len(query), query.shape[3])).permute(0, 3, 2, 1, 4).to(query.dtype)


def _best_backend(query: Tensor) -> str:
    """Return the Triton kernels where they can run, and plain operations in a traced graph."""
    if _triton_supports(query):
        return "triton"
    if query.is_cuda and not HAS_TRITON and not torch.compiler.is_compiling():
        warnings.warn(
            "Triton is not installed, so group attention runs without kernels, which is slower; "
            "install it with `pip install triton`.",
            stacklevel=2,
        )
    return "plain" if torch.compiler.is_compiling() else "streaming"


def _triton_supports(query: Tensor) -> bool:
    """Return whether the kernels can run: on CUDA, in 32 or 16 bits."""
    return query.is_cuda and query.dtype is not torch.float64 and HAS_TRITON


def _triton(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """Compute the same with the kernels, which take the keys in chunks."""
    from turnwise.kernels.group_attention_launch import Shape, attend, largest_divisor

    position, orientation, table = encodings
    scores = _orientation_scores(query[..., position.shape[-1] :], orientation)
    entries, relations, own = _table_on_device(table, query.device)
    if queries == "own":
        scores = scores.gather(4, own[:, None, None].expand(*scores.shape[:4], -1))
        entries = tuple(range(table.shape[2])) * len(table)  # the relation is the index of the key
    chunks, view = len(position) // largest_divisor(len(position)), sources.view
    shape = Shape(
        all_queries=int(queries == "all"),
        outputs=len(position) // chunks,
        queries=query.shape[1] // (1 if queries == "all" else chunks),
        keys=key.shape[1],
        relations=scores.shape[-1],
        head_dim=query.shape[-1],
        position_dim=position.shape[-1],
        chunks=chunks,
        rows=view.rows,
        cols=view.cols,
        crop=view.crop,
    )
    seed = sources.pixel.new_zeros(1) if seed is None else seed
    output = attend(
        query, key, value, position, scores, seed, sources.steps, relations, entries,
        drop_threshold(dropout), shape,
    )  # fmt: skip
    summed = encodings.table.shape[1] if queries == "all" else 1
    return output / (summed * (1 - dropout))


def _orientation_scores(
    query: Float[Tensor, "batch query token head orientation_dim"],
    orientation: Float[Tensor, "relation orientation_dim"],
) -> Float[Tensor, "batch query token head relation"]:
    """Return q·E; a compiler fuses this short sum with its neighbours, but no matrix product."""
    if torch.compiler.is_compiling():
        return (query.unsqueeze(-2).float() * orientation.float()).sum(dim=-1)
    return torch.einsum("bgtnc,rc->bgtnr", query, orientation)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _table_on_device(
    table: Int64[Tensor, "out query key"], device: torch.device
) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Return the table as integers, as a tensor on `device`, and the part for own queries."""
    with torch.inference_mode(False):
        entries = tuple(table.flatten().tolist())
        return entries, *_table_tensors(entries, table.shape, device)


@cache
def _table_tensors(
    entries: tuple[int, ...], shape: torch.Size, device: torch.device
) -> tuple[Tensor, Tensor]:
    table = torch.tensor(entries, device=device)
    own = table.view(shape).diagonal().T if shape[0] == shape[1] else table  # [h, m]
    return table.int(), own.contiguous()
