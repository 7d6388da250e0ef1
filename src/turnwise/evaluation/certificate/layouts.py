"""How a tensor inside a network may turn with the picture, guessed from its shape.

A reading brings a tensor into the form (batch, pose, row, col, channel), with as many poses as a
group has elements or one, and one row and column where there is no grid.  There every element acts
alike: it permutes the poses and moves the grid.  One shape may have several readings; a layer obeys
the law if it does so under one of them.

Letters:  b batch, p poses, c channels, t tokens (row by row), r rows, s columns.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from jaxtyping import Shaped
from torch import Tensor

from turnwise.evaluation.certificate.scores import relative_change
from turnwise.groups import PlanarGroup, act_on_field, act_on_image

Canonical = Shaped[Tensor, "batch pose row col channel"]


@dataclass(frozen=True)
class Reading:
    """A name for people, the group whose elements the poses are (None: one pose), the form."""

    name: str
    poses: PlanarGroup | None
    canonical: Callable[[Tensor], Tensor]


def readings(x: Tensor, batch: int, pose_groups: tuple[PlanarGroup, ...]) -> Iterator[Reading]:
    """Every reading that fits the shape of x, in a network that was given `batch` pictures."""
    if x.ndim == 0 or x.numel() == 0 or not x.is_floating_point():
        return
    if len(x) == batch:
        yield Reading("fixed", None, lambda y: y.reshape(len(y), 1, 1, 1, -1))
        for form, grid in _grids(x):
            yield Reading(form, None, lambda y, grid=grid: grid(y)[:, None])  # type: ignore[misc]
        for group in pose_groups:
            yield from _with_poses(x, group)
        return
    for group in pose_groups:
        if len(x) == batch * group.order:  # one picture for each view, as an orbit makes them
            yield Reading("views", group, partial(_views, group.order))
            if x.ndim == 4 and _square(*x.shape[2:]):
                yield Reading("maps of poses", group, partial(_maps_of_poses, group.order))


def _views(count: int, y: Tensor) -> Tensor:
    return y.unflatten(0, (count, -1)).transpose(0, 1).flatten(2)[:, :, None, None]


def _maps_of_poses(count: int, y: Tensor) -> Tensor:
    return y.unflatten(0, (-1, count)).permute(0, 1, 3, 4, 2)


def _grids(x: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """The ways to see (batch, row, col, channel) in x."""
    if x.ndim >= 4 and _square(*x.shape[-2:]):
        yield "maps", lambda y: y.flatten(1, -3).permute(0, 2, 3, 1)
    if x.ndim == 4 and _square(*x.shape[1:3]):
        yield "maps, channels last", lambda y: y
    if x.ndim == 5 and _square(*x.shape[2:4]):
        yield "maps, channels last", lambda y: y.permute(0, 2, 3, 1, 4).flatten(3)
    if x.ndim == 3 and (side := _side(x.shape[1])):
        yield "tokens", lambda y: y.unflatten(1, (side, side))
    if x.ndim == 3 and (more := _side(x.shape[1] - 1)):
        yield "tokens after one", lambda y: y[:, 1:].unflatten(1, (more, more))
    if x.ndim == 3 and (last := _side(x.shape[2])):
        yield "tokens, channels first", lambda y: y.mT.unflatten(1, (last, last))
    if x.ndim == 4 and (inner := _side(x.shape[2])):
        yield "tokens of heads", lambda y: y.transpose(1, 2).flatten(2).unflatten(1, (inner, inner))


def _with_poses(x: Tensor, group: PlanarGroup) -> Iterator[Reading]:
    """The ways to see poses in x: an axis of their own, or a part of the channels."""
    n = group.order
    if x.ndim in (2, 3) and x.shape[1] % n == 0:
        yield Reading(
            "poses", group, lambda y: y.unflatten(1, (n, -1)).flatten(2)[:, :, None, None]
        )
    if x.ndim == 2 and x.shape[1] % n == 0:
        yield Reading("poses, inner", group, lambda y: y.unflatten(1, (-1, n)).mT[:, :, None, None])
    if x.ndim == 5 and x.shape[1] == n and _square(*x.shape[2:4]):
        yield Reading("field", group, lambda y: y)
    if x.ndim == 5 and x.shape[2] == n and _square(*x.shape[3:]):
        yield Reading("field, poses inside", group, lambda y: y.permute(0, 2, 3, 4, 1))
    if x.ndim == 4 and x.shape[2] == n and (side := _side(x.shape[1])):
        yield Reading(
            "tokens with poses", group, lambda y: y.transpose(1, 2).unflatten(2, (side, side))
        )
    if x.ndim == 4 and x.shape[1] == n and (inner := _side(x.shape[2])):
        yield Reading("tokens of poses", group, lambda y: y.unflatten(2, (inner, inner)))
    for form, grid in _grids(x):
        yield from _poses_in_channels(x, group, form, grid)


def _poses_in_channels(
    x: Tensor, group: PlanarGroup, form: str, grid: Callable[[Tensor], Tensor]
) -> Iterator[Reading]:
    n = group.order
    if grid(x).shape[-1] % n:
        return
    yield Reading(
        f"{form}, poses outer", group,
        lambda y: grid(y).unflatten(-1, (n, -1)).permute(0, 3, 1, 2, 4),
    )  # fmt: skip
    yield Reading(
        f"{form}, poses inner", group,
        lambda y: grid(y).unflatten(-1, (-1, n)).permute(0, 4, 1, 2, 3),
    )  # fmt: skip


def reading_error(reading: Reading, group: PlanarGroup, g: int, both: Tensor) -> float:
    """|F(g f) − g F(f)| / |F(f)|, where `both` is F of a batch that holds f and then g f.

    Infinite where the poses' group has no such element.
    """
    before, after = reading.canonical(both).chunk(2)
    if reading.poses is None:
        moved = act_on_image(group, g, before.permute(0, 1, 4, 2, 3)).permute(0, 1, 3, 4, 2)
        return relative_change(moved, after)
    h = same_element(group, g, reading.poses)
    return math.inf if h is None else relative_change(act_on_field(reading.poses, h, before), after)


@cache
def same_element(group: PlanarGroup, g: int, other: PlanarGroup) -> int | None:
    """The element of `other` that moves the plane as g of `group` does.

    >>> same_element(PlanarGroup.named("C8"), 2, PlanarGroup.named("D4"))
    1
    """
    wanted, candidates = group.matrices()[g], other.matrices()
    distance = (candidates - wanted).abs().amax(dim=(1, 2))
    return int(distance.argmin()) if float(distance.min()) < 1e-9 else None


def _square(rows: int, cols: int) -> bool:
    return rows == cols and rows > 1


def _side(tokens: int) -> int:
    """The side of a square of that many tokens; 0 if there is none."""
    side = math.isqrt(max(tokens, 0))
    return side if side * side == tokens and side > 1 else 0
