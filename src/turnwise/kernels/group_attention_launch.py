"""Attention from frames on CUDA: lays the tensors out for the kernels, launches them, goes back.

Tensors come to the kernels in tiles (triton_memory.py): the layout is made by ordinary operations,
which torch.compile fuses with their neighbours, and two operators of our own do the rest.  Poses
are taken in frames: a few poses of the output at once.  With queries="all" every query meets every
output; with "own" each meets its own output, and a frame holds the queries of its outputs alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from turnwise.kernels import group_attention_backward as backward
from turnwise.kernels import group_attention_forward as forward
from turnwise.kernels.device import on_its_device

TILE = 32  # tokens
WORKSPACE = 2**27  # bytes that the shares of the places' gradient may take at once
HALVES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
LARGEST_AT_ONCE = 4  # poses whose channels fit in a lane's registers


def poses_in_frame(poses: int, largest: int = LARGEST_AT_ONCE) -> int:
    """How many poses one program takes at once: the largest divisor up to `largest`."""
    return next(n for n in range(largest, 0, -1) if poses % n == 0)


class Shape(NamedTuple):
    """Every size that the kernels must know; as a tuple of integers, an operator's argument."""

    all_queries: int  # 1 or 0
    outs: int  # output poses in a frame
    asking: int  # query poses in a frame
    poses: int  # key poses
    relations: int
    width: int  # channels of a head
    place_width: int
    frames: int
    rows: int
    cols: int
    crop: int

    @property
    def token_cols(self) -> int:
        return self.cols - 2 * self.crop

    @property
    def token_rows(self) -> int:
        return self.rows - 2 * self.crop

    @property
    def tokens(self) -> int:
        return self.token_rows * self.token_cols

    @property
    def tiles(self) -> int:
        return triton.cdiv(self.tokens, TILE)

    @property
    def pairs(self) -> int:
        """How many queries each output meets."""
        return self.asking if self.all_queries else 1

    @property
    def keys_at_once(self) -> int:
        """All key poses if the table of relations is compiled in, else a few."""
        if self.relations == 1 or self.poses <= LARGEST_AT_ONCE:
            return self.poses
        return poses_in_frame(self.poses, largest=2)

    def sizes(self, steps: Tensor, images: int) -> dict[str, int]:
        """What the kernels are told when they run."""
        names = ("rows", "cols", "token_cols", "crop", "tokens", "tiles", "frames")
        source_tiles = triton.cdiv(self.rows * self.cols, TILE)
        return {name: getattr(self, name) for name in names} | {
            "source_tiles": source_tiles, "offsets": len(steps), "images": images,
        }  # fmt: skip

    def constants(self, table: Sequence[int], kind: torch.dtype) -> dict[str, Any]:
        """What the kernels are compiled for."""
        outs, pairs, poses = self.outs, self.pairs, self.poses
        at_once = self.keys_at_once
        by_query = [table[i * poses : (i + 1) * poses] for i in range(len(table) // poses)]
        shared = all(by_query[i - i % pairs] == row for i, row in enumerate(by_query))
        return {
            "TABLE": tuple(table[: outs * pairs * poses]) if at_once == poses else (),
            "SHARED": shared,  # by all queries of an output
            "MB": at_once,
            "H": outs,
            "G": self.asking,
            "J": pairs,
            "ALL": bool(self.all_queries),
            "M": poses,
            "R": self.relations,
            "D": self.width,
            "PD": self.place_width,
            "HALF": HALVES.get(kind),
            "num_warps": 1,
            "num_stages": 1,
        }


def tiled(x: Tensor, parts: int) -> Tensor:
    """(batch, pose, pixel, head, dim) -> (batch·head·part, tile, word, lane, number).

    The poses are cut into `parts`; the poses and channels of one part are the numbers of a token.
    """
    x = x.unflatten(1, (parts, -1)).permute(0, 4, 1, 3, 2, 5).flatten(4).flatten(0, 2)
    in_word = 8 // x.element_size()
    x = F.pad(x, (0, -x.shape[2] % in_word, 0, -x.shape[1] % TILE))
    x = x.unflatten(2, (-1, in_word)).unflatten(1, (-1, TILE))
    return x.transpose(2, 3).contiguous()


def untiled(x: Tensor, batch: int, heads: int, shape: Shape) -> Tensor:
    """The output out of its tiles: (batch, pose, token, head, dim)."""
    x = x.transpose(2, 3).flatten(3).flatten(1, 2)  # (slot, token, number)
    x = x[:, : shape.tokens, : shape.outs * shape.width].unflatten(2, (shape.outs, -1))
    x = x.unflatten(0, (batch, heads, -1)).permute(0, 2, 4, 3, 1, 5)
    return x.flatten(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, place: Tensor, pose: Tensor, seed: Tensor,
    steps: Tensor, relations: Tensor, table: Sequence[int], drops: int, shape: Shape,
) -> Tensor:  # fmt: skip
    """Σ_g Σ_{m,δ} weights · values for every output pose.

    Shapes: query (batch, pose, token, head, dim); key, value the same over all pixels; place
    (out, offset, place_dim) and pose (batch, query pose, token, head, relation).
    """
    batch, heads = len(query), query.shape[3]
    parts = 1 if shape.all_queries else shape.frames
    chunks = shape.poses // shape.keys_at_once
    encoded = place.float().unflatten(0, (shape.frames, -1)).transpose(1, 2).flatten(2)
    scores = pose.float() - pose.detach().float().amax(dim=-1, keepdim=True)
    scores = F.pad(scores.transpose(1, 4).unflatten(4, (parts, -1)), (0, shape.asking % 2))
    scores = scores.permute(0, 4, 2, 3, 1, 5).flatten(4)  # (batch, part, token, head, r·g)
    output, _, _ = attend_in_tiles(
        tiled(query, parts), tiled(key, chunks), tiled(value, chunks),
        F.pad(encoded, (0, encoded.shape[-1] % 2)).contiguous(), tiled(scores, parts),
        seed, steps, relations, list(table), drops, list(shape),
    )  # fmt: skip
    return untiled(output, batch, heads, shape)


def _words(x: Tensor) -> Tensor:
    """Numbers as the 64-bit words that the kernels read."""
    return x.view(torch.int64)


def _empty(shape: Shape, images: int, count: int, like: Tensor, frames: bool = True) -> Tensor:
    """Tiles for `count` numbers per token and slot."""
    in_word = 8 // like.element_size()
    slots = images * (shape.frames if frames else 1)
    return like.new_empty((slots, shape.tiles, triton.cdiv(count, in_word), TILE, in_word))


@torch.library.custom_op("turnwise::attend_in_tiles", mutates_args=())
@on_its_device
def attend_in_tiles(
    query: Tensor, key: Tensor, value: Tensor, place: Tensor, pose: Tensor, seed: Tensor,
    steps: Tensor, relations: Tensor, table: list[int], drops: int, sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, and what the way back needs: the peaks of the contents, the softmax's totals."""
    shape, images = Shape(*sizes), _images(key, Shape(*sizes))
    output = _empty(shape, images, shape.outs * shape.width, query)
    peak = _empty(shape, images, shape.asking, place)
    total = _empty(shape, images, shape.outs * shape.pairs, place)
    given = {"query": query, "key": key, "factor": pose.exp(), "place": place}
    given = {name: _words(x) for name, x in (given | {"peak": peak, "total": total}).items()}
    more: dict[str, Any] = {"steps": steps, "relations": relations}
    more |= shape.sizes(steps, images) | shape.constants(table, query.dtype)
    programs = (shape.tiles * images * shape.frames,)
    forward.sum_weights[programs](**given, **more)
    forward.mix_values[programs](
        **given, **more, value=_words(value), output=_words(output), seed=seed, DROPS=drops
    )
    return output, peak, total


def _images(key: Tensor, shape: Shape) -> int:
    """Pictures times heads."""
    return len(key) * shape.keys_at_once // shape.poses


@attend_in_tiles.register_fake
def _(query, key, value, place, pose, seed, steps, relations, table, drops, sizes):  # type: ignore[no-untyped-def]
    shape, images = Shape(*sizes), _images(key, Shape(*sizes))
    return (
        _empty(shape, images, shape.outs * shape.width, query),
        _empty(shape, images, shape.asking, place),
        _empty(shape, images, shape.outs * shape.pairs, place),
    )


@torch.library.custom_op("turnwise::attend_in_tiles_backward", mutates_args=())
@on_its_device
def attend_in_tiles_backward(
    grad: Tensor, output: Tensor, peak: Tensor, total: Tensor, query: Tensor, key: Tensor,
    value: Tensor, place: Tensor, pose: Tensor, seed: Tensor, steps: Tensor, relations: Tensor,
    table: list[int], drops: int, sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key, value, place and pose."""
    shape, images = Shape(*sizes), _images(key, Shape(*sizes))
    delta = torch.empty_like(total)
    given = {"query": query, "key": key, "value": value, "factor": pose.exp(), "place": place}
    given |= {"grad": grad, "peak": peak, "total": total, "delta": delta}
    given = {name: _words(x) for name, x in given.items()}
    more: dict[str, Any] = {"steps": steps, "relations": relations, "seed": seed, "DROPS": drops}
    more |= shape.sizes(steps, images) | shape.constants(table, query.dtype)
    if shape.pairs > 1:
        backward.sum_worths[(shape.tiles * images * shape.frames,)](**given, **more)
    grads = _query_side(shape, given | more | {"output": _words(output)}, query, place, pose)
    d_key, d_value = torch.empty_like(key), torch.empty_like(value)
    programs = (more["source_tiles"] * images, shape.poses // shape.keys_at_once)
    backward.source_gradients[programs](
        **given, **more, d_key=_words(d_key), d_value=_words(d_value), token_rows=shape.token_rows
    )
    return grads[0], d_key, d_value, grads[1], grads[2]


def _query_side(
    shape: Shape, given: dict[str, Any], query: Tensor, place: Tensor, pose: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, place and pose.

    Where all queries meet every output, each frame of outputs has its part of the first and last.
    """
    images, parts = given["images"], shape.frames if shape.all_queries else 1
    output = given.pop("output")
    d_query = query.new_empty((parts, *query.shape))
    adds_up = shape.keys_at_once < shape.poses
    d_pose = (pose.new_zeros if adds_up else pose.new_empty)((parts, *pose.shape))
    given["d_pose"] = _words(d_pose)
    chunk = max(1, min(images, WORKSPACE // (shape.tiles * place.numel() * 4)))
    d_place = torch.zeros_like(place)
    for first in range(0, images, chunk):
        count = min(chunk, images - first)
        shares = place.new_zeros((count * shape.tiles, *place.shape))
        backward.query_gradients[(shape.tiles * count * shape.frames,)](
            **given, output=output, d_query=_words(d_query), d_place=shares, first=first
        )
        d_place += shares.sum(dim=0)
    if adds_up:
        backward.pose_gradients[(shape.tiles * images * shape.frames,)](**given)
    if parts == 1:
        return d_query[0], d_place, d_pose[0]
    return d_query.sum(dim=0), d_place, d_pose.sum(dim=0)


@attend_in_tiles_backward.register_fake
def _(grad, output, peak, total, query, key, value, place, pose, *rest):  # type: ignore[no-untyped-def]
    return tuple(map(torch.empty_like, (query, key, value, place, pose)))


def _remember(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.form = inputs[:8], inputs[8:]
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _go_back(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    output, peak, total, *tensors = ctx.saved_tensors
    grads = attend_in_tiles_backward(grad.contiguous(), output, peak, total, *tensors, *ctx.form)
    return (*grads, *[None] * 6)


attend_in_tiles.register_autograd(_go_back, setup_context=_remember)
