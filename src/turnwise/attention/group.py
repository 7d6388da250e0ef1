"""Attention on the group: every output looks at its sources from its own frame.

A feature stands at a pixel in a pose (pixel × group element).  An output in pose h sees a source at
offset δ where h⁻¹δ is, and its pose m as h⁻¹m; so when the picture turns, everything it sees stays
what it was.  backend="plain" reads like the formula and is the oracle of the others, which give
the same numbers in less memory (streaming.py) or on a GPU (triton_launch.py).

Letters:  b batch, n head, t token (pixel of the output), s source (pixel of the neighbourhood);
          h, g, m the poses of output, query and key;  d, c channels of a head.
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
from turnwise.kernels.group_attention_streaming import Form, stream_attention
from turnwise.kernels.hashed_dropout import draw_seed, drop_threshold, keep_mask, numbered_offsets

QUERIES = ("all", "own")
BACKENDS = ("auto", "plain", "streaming", "triton")
HAS_TRITON = find_spec("triton") is not None


class Encodings(NamedTuple):
    """What the query is told of place and pose, beside the content of the source.

    `place[h, δ]` encodes h⁻¹δ; `pose[table[h, g, m]]` encodes how output, query and key stand to
    each other.  The first channels of a query meet the place, its last channels the pose.
    """

    place: Float[Tensor, "out offset place_dim"]
    pose: Float[Tensor, "relation pose_dim"]
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

    The softmax σ runs over all sources s and poses m together.  queries="all" is the formula above,
    as published, of cost |G|³; queries="own" keeps g = h alone, of cost |G|².  Lifting from a
    picture is the same with one query and one key pose.  Scale the query beforehand.

    Paper:    Romero & Cordonnier 2021, "Group Equivariant Stand-Alone Self-Attention for Vision";
              Xu et al. 2023, "E(2)-Equivariant Vision Transformer".
    Symbols:  P is `encodings.place`, E `encodings.pose`, T `encodings.table`.  Equivariant if and
              only if T(Rh, Rg, Rm) = T(h, g, m) for every R.
    Departs:  a mean over g, not a sum; dropout takes away what an output hears of a source, after
              the mean, not before it.
    """
    require_known(queries, QUERIES, "queries")
    require_known(backend, BACKENDS, "backend")
    seed = draw_seed(query.device) if dropout else None
    if backend == "auto":
        backend = _best_backend(query)
    ways = {"plain": _plain, "streaming": _by_streaming, "triton": _by_triton}
    return ways[backend](query, key, value, encodings, sources, queries, seed, dropout)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """The formula, term by term."""
    keys, values = key[:, :, sources.pixel], value[:, :, sources.pixel]  # (b, m, t, s, n, d)
    place = encodings.place[:, sources.offset]  # (h, t, s, c)
    pose = encodings.pose[encodings.table.to(query.device)]  # (h, g, m, c)
    placed, posed = query.split([place.shape[-1], pose.shape[-1]], dim=-1)
    if queries == "own":
        own = torch.arange(len(pose), device=pose.device)
        content = torch.einsum("bhtnd,bmtsnd->bnhtms", query, keys)
        where = torch.einsum("bhtnc,htsc->bnhts", placed, place)
        stance = torch.einsum("bhtnc,hmc->bnhtm", posed, pose[own, own])
        weight = _softmax(content, where, stance, sources)
    else:
        content = torch.einsum("bgtnd,bmtsnd->bngtms", query, keys)[:, :, None]
        where = torch.einsum("bgtnc,htsc->bnhgts", placed, place)
        stance = torch.einsum("bgtnc,hgmc->bnhgtm", posed, pose)
        weight = _softmax(content, where, stance, sources).mean(dim=3)
    if seed is not None:
        weight = weight * _kept(weight, sources, seed, dropout) / (1 - dropout)
    return torch.einsum("bnhtms,bmtsnd->bhtnd", weight, values)


def _softmax(content: Tensor, where: Tensor, stance: Tensor, sources: Sources) -> Tensor:
    """The weights of all (m, s), with what lies outside the picture left out."""
    score = content + where[..., None, :] + stance[..., None]  # (…, t, m, s)
    score = score.masked_fill(~sources.inside[:, None], -torch.inf)
    return score.flatten(-2).softmax(dim=-1).view_as(score)


def _kept(weight: Tensor, sources: Sources, seed: Tensor, rate: float) -> Tensor:
    """Which weights (b, n, h, t, m, s) dropout keeps; numbered as the kernels number them."""
    batch, heads, outs, tokens, poses, _ = weight.shape
    count = partial(torch.arange, device=weight.device)
    lane = count(batch * heads * tokens).view(batch, heads, 1, tokens, 1, 1)
    pairs = (outs + 1) // 2
    number = numbered_offsets(sources)[:, None, :] * poses + count(poses)[:, None]  # (t, m, s)
    kept = keep_mask(seed, lane, number * pairs + count(pairs).view(pairs, 1, 1, 1), rate)
    return kept.movedim(-1, 3).flatten(2, 3)[:, :, :outs]


def _by_streaming(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """The same image by image, in little memory; 16-bit numbers are widened on the way."""
    place, pose, table = encodings
    wide = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        asked, keys, values = (
            x.to(wide).permute(0, 3, 2, 1, 4).flatten(0, 1).contiguous()
            for x in (query, key, value)
        )
        posed = asked[..., place.shape[-1] :] @ pose.to(wide).T
        form = Form(sources, table.to(query.device), queries == "own", dropout, seed)
        output = stream_attention(asked, keys, values, place.to(wide), posed, form)
    return output.unflatten(0, (len(query), query.shape[3])).permute(0, 3, 2, 1, 4).to(query.dtype)


def _best_backend(query: Tensor) -> str:
    """Kernels where they can run; a graph that is traced gets plain operations."""
    if _triton_can(query):
        return "triton"
    if query.is_cuda and not HAS_TRITON and not torch.compiler.is_compiling():
        warnings.warn(
            "Triton is not installed, so group attention runs in ordinary operations, which is "
            "slower; `pip install triton` brings the kernels.",
            stacklevel=2,
        )
    return "plain" if torch.compiler.is_compiling() else "streaming"


def _triton_can(query: Tensor) -> bool:
    """Whether the kernels can run: on CUDA, in 32 or 16 bits."""
    return query.is_cuda and query.dtype is not torch.float64 and HAS_TRITON


def _by_triton(
    query: Tensor, key: Tensor, value: Tensor, encodings: Encodings, sources: Sources,
    queries: str, seed: Tensor | None, dropout: float,
) -> Tensor:  # fmt: skip
    """The same by the kernels, which take the poses in frames."""
    from turnwise.kernels.group_attention_launch import Shape, attend, poses_in_frame

    place, pose, table = encodings
    posed = _pose_scores(query[..., place.shape[-1] :], pose)
    entries, relations, own = _on_device(table, query.device)
    if queries == "own":
        posed = posed.gather(4, own[:, None, None].expand(*posed.shape[:4], -1))
        entries = tuple(range(table.shape[2])) * len(table)  # the relation is the key's number
    frames, view = len(place) // poses_in_frame(len(place)), sources.view
    shape = Shape(
        all_queries=int(queries == "all"),
        outs=len(place) // frames,
        asking=query.shape[1] // (1 if queries == "all" else frames),
        poses=key.shape[1],
        relations=posed.shape[-1],
        width=query.shape[-1],
        place_width=place.shape[-1],
        frames=frames,
        rows=view.rows,
        cols=view.cols,
        crop=view.crop,
    )
    seed = sources.pixel.new_zeros(1) if seed is None else seed
    output = attend(
        query, key, value, place, posed, seed, sources.steps, relations, entries,
        drop_threshold(dropout), shape,
    )  # fmt: skip
    summed = encodings.table.shape[1] if queries == "all" else 1
    return output / (summed * (1 - dropout))


def _pose_scores(
    query: Float[Tensor, "batch query token head pose_dim"],
    pose: Float[Tensor, "relation pose_dim"],
) -> Float[Tensor, "batch query token head relation"]:
    """q·E; a compiler fuses so short a sum with its neighbours, but not a product of matrices."""
    if torch.compiler.is_compiling():
        return (query.unsqueeze(-2).float() * pose.float()).sum(dim=-1)
    return torch.einsum("bgtnc,rc->bgtnr", query, pose)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _on_device(
    table: Int64[Tensor, "out query key"], device: torch.device
) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """The relations as numbers, as a tensor where the kernels are, and those of own queries."""
    with torch.inference_mode(False):
        entries = tuple(table.flatten().tolist())
        return entries, *_as_tensors(entries, table.shape, device)


@cache
def _as_tensors(
    entries: tuple[int, ...], shape: torch.Size, device: torch.device
) -> tuple[Tensor, Tensor]:
    table = torch.tensor(entries, device=device)
    own = table.view(shape).diagonal().T if shape[0] == shape[1] else table  # [h, m]
    return table.int(), own.contiguous()
