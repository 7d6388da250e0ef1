"""Attention from frames on CUDA: lays the tensors out for the kernels, launches them, goes back.

The kernels read channels with the token fastest, so that the lanes of a warp read neighbouring
memory, and 16-bit channels in pairs.  Poses are taken in frames: with queries="all" one frame holds
all poses, and every query meets every output; with "own" a frame is a few poses, each of which
meets its own output, and frames are worked on side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from turnwise.attention import triton_backward, triton_forward, triton_sources
from turnwise.geometry.grids import offset_to_steps
from turnwise.geometry.sources import Neighbourhood, View

LANES = 32
WORKSPACE = 2**27  # bytes that the shares of the places' gradient may take at once
HALVES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


LARGEST_AT_ONCE = 4  # poses whose channels fit in a lane's registers


def poses_in_frame(poses: int, largest: int = LARGEST_AT_ONCE) -> int:
    """How many poses one program takes at once: the largest divisor up to `largest`."""
    return next(n for n in range(largest, 0, -1) if poses % n == 0)


@dataclass(frozen=True)
class Shape:
    """Every size that the kernels must know."""

    batch: int
    heads: int
    frames: int
    outs: int  # output poses in a frame
    asking: int  # query poses in a frame
    poses: int  # key poses
    relations: int
    width: int  # channels of a head
    place_width: int
    all_queries: bool
    half: Any  # the 16-bit type of the channels, or None
    view: View

    @property
    def tokens(self) -> int:
        return self.view.token_rows * self.view.token_cols

    @property
    def slots(self) -> int:
        return self.batch * self.heads * self.frames

    @property
    def tiles(self) -> int:
        return triton.cdiv(self.tokens, LANES)

    @property
    def pairs(self) -> int:
        """How many queries each output meets."""
        return self.asking if self.all_queries else 1

    def arguments(self, device: torch.device) -> dict[str, Any]:
        """What the kernels are told when they run."""
        view = self.view
        return {
            "steps": _steps(view, device),
            "rows": view.rows,
            "cols": view.cols,
            "token_cols": view.token_cols,
            "crop": view.crop,
            "tokens": self.tokens,
            "pixels": view.rows * view.cols,
            "offsets": len(_steps(view, device)),
            "frames": self.frames,
            "heads": self.heads,
            "batch": self.batch,
        }

    @property
    def in_registers(self) -> bool:
        """Whether all key poses are taken at once, and the table of relations compiled in."""
        if self.relations == 1:
            return True
        return self.poses <= (2 if self.all_queries else LARGEST_AT_ONCE)

    def constants(self, table: Tensor) -> dict[str, Any]:
        """What the kernels are compiled for."""
        entries = self.outs * self.pairs * self.poses if self.in_registers else 0
        return {
            "TABLE": tuple(table.flatten()[:entries].tolist()),  # the same in every frame
            "MB": self.poses if self.in_registers else poses_in_frame(self.poses, largest=2),
            "H": self.outs,
            "G": self.asking,
            "J": self.pairs,
            "ALL": self.all_queries,
            "M": self.poses,
            "R": self.relations,
            "D": self.width + self.width % 2,
            "PD": self.place_width,
            "HALF": self.half,
            "LANES": LANES,
            "num_warps": 1,
            "num_stages": 1,
        }


@cache
def _steps(view: View, device: torch.device) -> Tensor:
    return offset_to_steps(view.offsets()).to(device, torch.int32).contiguous()


def _shape(
    query: Tensor, key: Tensor, place: Tensor, pose: Tensor, all_queries: bool, where: list[Any]
) -> Shape:
    window, shape, rows, cols, crop = where
    frames, outs, _, place_width = place.shape
    return Shape(
        batch=len(query),
        heads=query.shape[3],
        frames=frames,
        outs=outs,
        asking=query.shape[1] // (1 if all_queries else frames),
        poses=key.shape[1],
        relations=pose.shape[3],
        width=query.shape[4],
        place_width=place_width,
        all_queries=all_queries,
        half=HALVES.get(query.dtype),
        view=View(Neighbourhood(window, shape), rows, cols, crop),
    )


def _laid_out(x: Tensor) -> Tensor:
    """(batch, pose, pixel, head, dim) with the pixel last, 16-bit channels in pairs of a word."""
    x = F.pad(x, (0, x.shape[-1] % 2))
    if x.dtype not in HALVES:
        return x.permute(0, 3, 1, 4, 2).contiguous()
    pairs = x.unflatten(-1, (-1, 2)).permute(0, 3, 1, 4, 2, 5).contiguous()
    return pairs.view(torch.int32)


def _factors(pose: Tensor) -> Tensor:
    """exp of the pose scores, at most 1; the largest of each query cancels in the softmax."""
    return torch.exp(pose - pose.amax(dim=3, keepdim=True))


@torch.library.custom_op("turnwise::attend_from_frames", mutates_args=())
def attend(
    query: Tensor, key: Tensor, value: Tensor, place: Tensor, pose: Tensor, seed: Tensor,
    table: Tensor, drops: int, all_queries: bool, window: int, shape: str, rows: int, cols: int,
    crop: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Σ_g Σ_{m,δ} weights · values for every output pose, and what the way back needs.

    Shapes: query (batch, pose, token, head, dim); key, value the same over all pixels; place
    (frame, out, offset, place_dim) and pose (batch, head, query pose, relation, token) in float32.
    """
    of = _shape(query, key, place, pose, all_queries, [window, shape, rows, cols, crop])
    peak = place.new_empty((of.slots, of.asking, of.tokens))
    total = place.new_empty((of.slots, of.outs, of.pairs, of.tokens))
    output = query.new_empty((of.batch, of.frames * of.outs, of.tokens, of.heads, of.width))
    q, k, v = map(_laid_out, (query, key, value))
    given: dict[str, Any] = {"query": q, "key": k, "factor": _factors(pose), "place": place}
    given |= {"relations": _relations(table, query.device), "peak": peak, "total": total}
    given |= {**of.arguments(query.device), **of.constants(table)}
    programs = (of.tiles * of.slots,)
    triton_forward.sum_weights[programs](**given)
    triton_forward.mix_values[programs](
        **given, value=v, output=output, seed=seed, WIDTH=of.width, DROPS=drops
    )
    return output, peak, total


@attend.register_fake
def _(query, key, value, place, pose, seed, table, drops, all_queries, *where):  # type: ignore[no-untyped-def]
    of = _shape(query, key, place, pose, all_queries, list(where))
    return (
        query.new_empty((of.batch, of.frames * of.outs, of.tokens, of.heads, of.width)),
        place.new_empty((of.slots, of.asking, of.tokens)),
        place.new_empty((of.slots, of.outs, of.pairs, of.tokens)),
    )


@torch.library.custom_op("turnwise::attend_from_frames_backward", mutates_args=())
def attend_backward(
    grad: Tensor, output: Tensor, peak: Tensor, total: Tensor, query: Tensor, key: Tensor,
    value: Tensor, place: Tensor, pose: Tensor, seed: Tensor, table: Tensor, drops: int,
    all_queries: bool, window: int, shape: str, rows: int, cols: int, crop: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key, value, place and pose."""
    of = _shape(query, key, place, pose, all_queries, [window, shape, rows, cols, crop])
    q, k, v, dout = map(_laid_out, (query, key, value, grad))
    given: dict[str, Any] = {"query": q, "key": k, "value": v, "place": place}
    given |= {"factor": _factors(pose), "grad": dout, "peak": peak, "total": total}
    given |= {"seed": seed, "DROPS": drops, "WIDTH": of.width}
    given |= {**of.arguments(query.device), **of.constants(table)}
    given["relations"] = _relations(table, query.device)
    given["delta"] = _worths(of, output, grad, given)
    d_query, d_place, d_pose = _query_side(of, given, query, pose)
    d_key, d_value = _fresh(key), _fresh(value)
    programs = (triton.cdiv(rows * cols, LANES) * of.batch * of.heads, of.poses // given["MB"])
    triton_sources.source_gradients[programs](
        **given, d_key=d_key, d_value=d_value, token_rows=of.view.token_rows
    )
    return d_query, d_key, d_value, d_place, d_pose


def _relations(table: Tensor, device: torch.device) -> Tensor:
    return table.to(device, torch.int32, non_blocking=True).contiguous()


def _fresh(x: Tensor) -> Tensor:
    """An empty tensor like `x` in row-major order, in which the kernels write."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _worths(of: Shape, output: Tensor, grad: Tensor, given: dict[str, Any]) -> Tensor:
    """Δ; with one query for each output it is the output times its gradient."""
    if of.pairs == 1:
        by_token = (output.float() * grad.float()).sum(dim=-1)  # (batch, pose, token, head)
        return by_token.permute(0, 3, 1, 2).contiguous().view_as(given["total"])
    delta = torch.empty_like(given["total"])
    given = {name: value for name, value in given.items() if name != "WIDTH"}
    triton_backward.sum_worths[(of.tiles * of.slots,)](**given, delta=delta)
    return delta


def _query_side(
    of: Shape, given: dict[str, Any], query: Tensor, pose: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, place and pose.

    Where all queries meet every output, each frame of outputs has its part of the first and last.
    """
    place, images = given["place"], of.batch * of.heads
    parts = of.frames if of.all_queries else 1
    d_query = query.new_empty((parts, *query.shape))
    d_pose = pose.new_zeros((images, parts, pose[0, 0].numel()))
    chunk = max(1, min(images, WORKSPACE // (of.tiles * place.numel() * 4)))
    d_place = torch.zeros_like(place)
    for first in range(0, images, chunk):
        count = min(chunk, images - first)
        shares = place.new_zeros((count * of.tiles, *place.shape))
        triton_backward.query_gradients[(of.tiles * count * of.frames,)](
            **given, d_query=d_query, d_pose=d_pose, d_place=shares, first=first
        )
        d_place += shares.sum(dim=0)
    return d_query.sum(dim=0) if parts > 1 else d_query[0], d_place, d_pose.sum(dim=1).view_as(pose)


@attend_backward.register_fake
def _(grad, output, peak, total, query, key, value, place, pose, *rest):  # type: ignore[no-untyped-def]
    return tuple(map(_fresh, (query, key, value, place, pose)))


def _remember(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.geometry = inputs[:7], inputs[7:]
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _go_back(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    output, peak, total, *tensors = ctx.saved_tensors
    grads = attend_backward(grad.contiguous(), output, peak, total, *tensors, *ctx.geometry)
    return (*grads, *[None] * (2 + len(ctx.geometry)))


attend.register_autograd(_go_back, setup_context=_remember)
