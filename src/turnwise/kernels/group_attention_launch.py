"""Launch the Triton kernels of group attention: two custom operators with gradients.

The kernels read tensors in tiles (see group_attention_forward.py).  Ordinary operations convert to
that layout, so torch.compile fuses the conversion with its neighbours.  Output group elements are
processed in chunks.  With queries="all" every query meets every output; with "own" each output
meets its own query, and a chunk holds only the queries of its outputs.
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
WORKSPACE = 2**27  # bytes of partial sums of the position gradient at once
HALVES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
MAX_CHUNK = 4  # group elements whose channels fit in a thread's registers


def largest_divisor(elements: int, largest: int = MAX_CHUNK) -> int:
    """Return the largest divisor of a number of group elements, up to `largest`."""
    return next(n for n in range(largest, 0, -1) if elements % n == 0)


class Shape(NamedTuple):
    """All sizes that the kernels depend on; a tuple of integers, so operators can take it."""

    all_queries: int  # 1 or 0
    outputs: int  # output elements in a chunk
    queries: int  # query elements in a chunk
    keys: int  # key elements
    relations: int
    head_dim: int  # channels of a head
    position_dim: int
    chunks: int
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
        """The number of queries that each output meets."""
        return self.queries if self.all_queries else 1

    @property
    def keys_at_once(self) -> int:
        """All key elements if the table of relations is compiled in, else a few."""
        if self.relations == 1 or self.keys <= MAX_CHUNK:
            return self.keys
        return largest_divisor(self.keys, largest=2)

    def sizes(self, steps: Tensor, items: int) -> dict[str, int]:
        """Return the sizes that the kernels take as run-time arguments."""
        names = ("rows", "cols", "token_cols", "crop", "tokens", "tiles", "chunks")
        source_tiles = triton.cdiv(self.rows * self.cols, TILE)
        return {name: getattr(self, name) for name in names} | {
            "source_tiles": source_tiles, "offsets": len(steps), "items": items,
        }  # fmt: skip

    def constants(self, table: Sequence[int], dtype: torch.dtype) -> dict[str, Any]:
        """Return the sizes that the kernels are compiled for."""
        outputs, pairs, keys = self.outputs, self.pairs, self.keys
        at_once = self.keys_at_once
        by_query = [table[i * keys : (i + 1) * keys] for i in range(len(table) // keys)]
        shared = all(by_query[i - i % pairs] == row for i, row in enumerate(by_query))
        return {
            "TABLE": tuple(table[: outputs * pairs * keys]) if at_once == keys else (),
            "SHARED": shared,  # by all queries of an output
            "MB": at_once,
            "H": outputs,
            "G": self.queries,
            "J": pairs,
            "ALL": bool(self.all_queries),
            "M": keys,
            "R": self.relations,
            "D": self.head_dim,
            "PD": self.position_dim,
            "HALF": HALVES.get(dtype),
            "num_warps": 1,
            "num_stages": 1,
        }


def to_tiles(x: Tensor, parts: int) -> Tensor:
    """Convert (batch, element, pixel, head, dim) to (batch·head·part, tile, word, thread, number).

    Axis 1 is split into `parts`; the elements and channels of one part are the numbers of a token.
    """
    x = x.unflatten(1, (parts, -1)).permute(0, 4, 1, 3, 2, 5).flatten(4).flatten(0, 2)
    in_word = 8 // x.element_size()
    x = F.pad(x, (0, -x.shape[2] % in_word, 0, -x.shape[1] % TILE))
    x = x.unflatten(2, (-1, in_word)).unflatten(1, (-1, TILE))
    return x.transpose(2, 3).contiguous()


def from_tiles(x: Tensor, batch: int, heads: int, shape: Shape) -> Tensor:
    """Convert the output from tiles to (batch, element, token, head, dim)."""
    x = x.transpose(2, 3).flatten(3).flatten(1, 2)  # (index, token, number)
    x = x[:, : shape.tokens, : shape.outputs * shape.head_dim].unflatten(2, (shape.outputs, -1))
    x = x.unflatten(0, (batch, heads, -1)).permute(0, 2, 4, 3, 1, 5)
    return x.flatten(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, orientation: Tensor, seed: Tensor,
    steps: Tensor, relations: Tensor, table: Sequence[int], drops: int, shape: Shape,
) -> Tensor:  # fmt: skip
    """Compute Σ_g Σ_{m,δ} weights · values for every output element.

    Shapes: query (batch, element, token, head, dim); key and value the same over all pixels;
    position (output, offset, position_dim), an encoding; orientation (batch, query element, token,
    head, relation), scores.
    """
    batch, heads = len(query), query.shape[3]
    parts = 1 if shape.all_queries else shape.chunks
    key_chunks = shape.keys // shape.keys_at_once
    positions = position.float().unflatten(0, (shape.chunks, -1)).transpose(1, 2).flatten(2)
    scores = orientation.float() - orientation.detach().float().amax(dim=-1, keepdim=True)
    scores = F.pad(scores.transpose(1, 4).unflatten(4, (parts, -1)), (0, shape.queries % 2))
    scores = scores.permute(0, 4, 2, 3, 1, 5).flatten(4)  # (batch, part, token, head, r·g)
    output, _, _ = attend_in_tiles(
        to_tiles(query, parts), to_tiles(key, key_chunks), to_tiles(value, key_chunks),
        F.pad(positions, (0, positions.shape[-1] % 2)).contiguous(), to_tiles(scores, parts),
        seed, steps, relations, list(table), drops, list(shape),
    )  # fmt: skip
    return from_tiles(output, batch, heads, shape)


def _words(x: Tensor) -> Tensor:
    """View numbers as the 64-bit words that the kernels read."""
    return x.view(torch.int64)


def _empty(shape: Shape, items: int, count: int, like: Tensor) -> Tensor:
    """Allocate tiles for `count` numbers per token and index."""
    in_word = 8 // like.element_size()
    words = triton.cdiv(count, in_word)
    return like.new_empty((items * shape.chunks, shape.tiles, words, TILE, in_word))


@torch.library.custom_op("turnwise::attend_in_tiles", mutates_args=())
@on_its_device
def attend_in_tiles(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, orientation: Tensor, seed: Tensor,
    steps: Tensor, relations: Tensor, table: list[int], drops: int, sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the output, and for the backward pass the content maxima and softmax totals."""
    shape, items = Shape(*sizes), _items(key, Shape(*sizes))
    output = _empty(shape, items, shape.outputs * shape.head_dim, query)
    peak = _empty(shape, items, shape.queries, position)
    total = _empty(shape, items, shape.outputs * shape.pairs, position)
    tensors = {"query": query, "key": key, "factor": orientation.exp(), "position": position}
    tensors = {name: _words(x) for name, x in (tensors | {"peak": peak, "total": total}).items()}
    arguments: dict[str, Any] = {"steps": steps, "relations": relations}
    arguments |= shape.sizes(steps, items) | shape.constants(table, query.dtype)
    programs = (shape.tiles * items * shape.chunks,)
    forward.softmax_totals[programs](**tensors, **arguments)
    forward.weighted_values[programs](
        **tensors, **arguments, value=_words(value), output=_words(output), seed=seed, DROPS=drops
    )
    return output, peak, total


def _items(key: Tensor, shape: Shape) -> int:
    """Return the number of images times heads."""
    return len(key) * shape.keys_at_once // shape.keys


@attend_in_tiles.register_fake
def _(query, key, value, position, orientation, seed, steps, relations, table, drops, sizes):  # type: ignore[no-untyped-def]
    shape, items = Shape(*sizes), _items(key, Shape(*sizes))
    return (
        _empty(shape, items, shape.outputs * shape.head_dim, query),
        _empty(shape, items, shape.queries, position),
        _empty(shape, items, shape.outputs * shape.pairs, position),
    )


@torch.library.custom_op("turnwise::attend_in_tiles_backward", mutates_args=())
@on_its_device
def attend_in_tiles_backward(
    grad: Tensor, output: Tensor, peak: Tensor, total: Tensor, query: Tensor, key: Tensor,
    value: Tensor, position: Tensor, orientation: Tensor, seed: Tensor, steps: Tensor,
    relations: Tensor, table: list[int], drops: int, sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, position and orientation."""
    shape, items = Shape(*sizes), _items(key, Shape(*sizes))
    delta = torch.empty_like(total)
    tensors = {"query": query, "key": key, "value": value, "factor": orientation.exp()}
    tensors |= {"position": position, "grad": grad, "peak": peak, "total": total, "delta": delta}
    tensors = {name: _words(x) for name, x in tensors.items()}
    arguments: dict[str, Any] = {"steps": steps, "relations": relations, "seed": seed}
    arguments |= {"DROPS": drops} | shape.sizes(steps, items) | shape.constants(table, query.dtype)
    if shape.pairs > 1:
        backward.softmax_deltas[(shape.tiles * items * shape.chunks,)](**tensors, **arguments)
    everything = tensors | arguments | {"output": _words(output)}
    d_query, d_position, d_orientation = _query_gradients(
        shape, everything, query, position, orientation
    )
    d_key, d_value = torch.empty_like(key), torch.empty_like(value)
    programs = (arguments["source_tiles"] * items, shape.keys // shape.keys_at_once)
    backward.source_gradients[programs](
        **tensors, **arguments, d_key=_words(d_key), d_value=_words(d_value),
        token_rows=shape.token_rows,
    )  # fmt: skip
    return d_query, d_key, d_value, d_position, d_orientation


def _query_gradients(
    shape: Shape, arguments: dict[str, Any], query: Tensor, position: Tensor, orientation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, position and orientation.

    If all queries meet every output, each chunk of outputs contributes to the first and the last.
    """
    items, parts = arguments["items"], shape.chunks if shape.all_queries else 1
    output = arguments.pop("output")
    d_query = query.new_empty((parts, *query.shape))
    accumulates = shape.keys_at_once < shape.keys
    allocate = orientation.new_zeros if accumulates else orientation.new_empty
    d_orientation = allocate((parts, *orientation.shape))
    arguments["d_orientation"] = _words(d_orientation)
    items_at_once = max(1, min(items, WORKSPACE // (shape.tiles * position.numel() * 4)))
    d_position = torch.zeros_like(position)
    for first in range(0, items, items_at_once):
        count = min(items_at_once, items - first)
        partial_sums = position.new_zeros((count * shape.tiles, *position.shape))
        backward.query_gradients[(shape.tiles * count * shape.chunks,)](
            **arguments,
            output=output,
            d_query=_words(d_query),
            d_position=partial_sums,
            first=first,
        )
        d_position += partial_sums.sum(dim=0)
    if accumulates:
        backward.orientation_gradients[(shape.tiles * items * shape.chunks,)](**arguments)
    if parts == 1:
        return d_query[0], d_position, d_orientation[0]
    return d_query.sum(dim=0), d_position, d_orientation.sum(dim=0)


@attend_in_tiles_backward.register_fake
def _(grad, output, peak, total, query, key, value, position, orientation, *rest):  # type: ignore[no-untyped-def]
    return tuple(map(torch.empty_like, (query, key, value, position, orientation)))


def _save_inputs(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.arguments = inputs[:8], inputs[8:]
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    output, peak, total, *tensors = ctx.saved_tensors
    saved = (output, peak, total, *tensors)
    grads = attend_in_tiles_backward(grad.contiguous(), *saved, *ctx.arguments)
    return (*grads, *[None] * 6)


attend_in_tiles.register_autograd(_backward, setup_context=_save_inputs)
