"""The layouts that features may have, and how far they are from equivariance under each.

A layout converts features to a field, (batch, group, row, col, channel), with one group element,
row or column where the features have no such axis.  On fields every group element acts alike: it
permutes the group axis and transforms the grid.  A shape may fit several layouts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from jaxtyping import Shaped
from torch import Tensor

from turnwise.errors import InputError
from turnwise.geometry.layouts import to_field
from turnwise.groups import PlanarGroup, act_on_field, act_on_image
from turnwise.groups.equivariance import ratio

ToField = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """A name, the group of the group axis if there is one, and the conversion to a field."""

    name: str
    group: PlanarGroup | None
    to_field: ToField

    def error(self, group: PlanarGroup, g: int, both: Tensor) -> float:
        """Return |F(g f) − g F(f)| / |F(f)|; `both` is F of a batch that holds f and then g f.

        It is infinite if the group of the layout has no such element.
        """
        before, after = self.to_field(both).chunk(2)
        if self.group is None:
            return relative_error(act_on_features(group, g, before), after)
        h = same_element(group, g, self.group)
        return math.inf if h is None else relative_error(act_on_field(self.group, h, before), after)


def relative_error(expected: Tensor, found: Tensor) -> float:
    """Return max |found − expected| / max |expected|; infinite if something is not a number."""
    return ratio(float((found - expected).abs().max()), float(expected.abs().max()))


def act_on_features(
    group: PlanarGroup, g: int, features: Shaped[Tensor, "batch group row col channel"]
) -> Shaped[Tensor, "batch group newrow newcol channel"]:
    """Transform a field, or features with a single group element, which transform as images do."""
    if features.shape[1] == group.order:
        return act_on_field(group, g, features)
    return act_on_image(group, g, features.movedim(-1, 2)).movedim(2, -1)


@cache
def same_element(group: PlanarGroup, g: int, other: PlanarGroup) -> int | None:
    """Return the element of `other` that acts on the plane as g of `group` does.

    >>> same_element(PlanarGroup.named("C8"), 2, PlanarGroup.named("D4"))
    1
    """
    wanted, candidates = group.matrices()[g], other.matrices()
    distance = (candidates - wanted).abs().amax(dim=(1, 2))
    return int(distance.argmin()) if float(distance.min()) < 1e-9 else None


def possible_layouts(x: Tensor, batch: int, groups: Sequence[PlanarGroup]) -> Iterator[Layout]:
    """Yield every layout that fits the shape of x, in a network that was given `batch` images."""
    if x.ndim == 0 or x.numel() == 0 or not x.is_floating_point():
        return
    if len(x) == batch:
        yield Layout("invariant", None, lambda y: y.reshape(len(y), 1, 1, 1, -1))
        for name, grid in _grids(x):
            yield Layout(name, None, lambda y, grid=grid: grid(y)[:, None])  # type: ignore[misc]
        for group in groups:
            yield from _group_layouts(x, group)
        return
    for group in groups:
        if len(x) == batch * group.order:  # one image for each view, as in an orbit
            yield Layout(f"views of {group}", group, partial(_views_to_field, group.order))
            if x.ndim == 4 and _is_square(*x.shape[2:]):
                name = f"images of {group} in the batch"
                yield Layout(name, group, partial(_batch_to_field, group.order))


def declared_layouts(
    x: Tensor, batch: int, groups: Sequence[PlanarGroup], layout: str, grid: tuple[int, int] | None
) -> Iterator[Layout]:
    """Yield a layout that the layer declares, for every group whose order fits."""
    for group in groups if len(x) == batch else ():
        convert = partial(to_field, layout=layout, group_order=group.order, rows_cols=grid)
        try:
            order = convert(x).shape[1]
        except (InputError, RuntimeError):  # not that number of group elements
            continue
        if order == 1:
            yield Layout(layout, None, convert)
            return
        yield Layout(f"{layout} of {group}", group, convert)


def _views_to_field(order: int, y: Tensor) -> Tensor:
    return y.unflatten(0, (order, -1)).transpose(0, 1).flatten(2)[:, :, None, None]


def _batch_to_field(order: int, y: Tensor) -> Tensor:
    return y.unflatten(0, (-1, order)).permute(0, 1, 3, 4, 2)


def _grids(x: Tensor) -> Iterator[tuple[str, ToField]]:
    """Yield the ways to see (batch, row, col, channel) in x."""
    if x.ndim >= 4 and _is_square(*x.shape[-2:]):
        yield "image", lambda y: y.flatten(1, -3).permute(0, 2, 3, 1)
    if x.ndim == 4 and _is_square(*x.shape[1:3]):
        yield "image, channels last", lambda y: y
    if x.ndim == 5 and _is_square(*x.shape[2:4]):
        yield "image, channels last", lambda y: y.permute(0, 2, 3, 1, 4).flatten(3)
    if x.ndim == 3 and (side := _side(x.shape[1])):
        yield "plain_tokens", lambda y: y.unflatten(1, (side, side))
    if x.ndim == 3 and (more := _side(x.shape[1] - 1)):
        yield "plain_tokens after one", lambda y: y[:, 1:].unflatten(1, (more, more))
    if x.ndim == 3 and (last := _side(x.shape[2])):
        yield "plain_tokens, channels first", lambda y: y.mT.unflatten(1, (last, last))
    if x.ndim == 4 and (inner := _side(x.shape[2])):
        heads = "plain_tokens of heads"
        yield heads, lambda y: y.transpose(1, 2).flatten(2).unflatten(1, (inner, inner))


def _group_layouts(x: Tensor, group: PlanarGroup) -> Iterator[Layout]:
    """Yield the ways to see group elements in x: an axis of their own, or part of the channels."""
    n = group.order
    found: dict[str, ToField] = {}
    if x.ndim in (2, 3) and x.shape[1] % n == 0:
        found["vector"] = lambda y: y.unflatten(1, (n, -1)).flatten(2)[:, :, None, None]
    if x.ndim == 2 and x.shape[1] % n == 0:
        found["vector, group inside"] = lambda y: y.unflatten(1, (-1, n)).mT[:, :, None, None]
    if x.ndim == 5 and x.shape[1] == n and _is_square(*x.shape[2:4]):
        found["field"] = lambda y: y
    if x.ndim == 5 and x.shape[2] == n and _is_square(*x.shape[3:]):
        found["regular"] = lambda y: y.permute(0, 2, 3, 4, 1)
    if x.ndim == 4 and x.shape[2] == n and (side := _side(x.shape[1])):
        found["tokens"] = lambda y: y.transpose(1, 2).unflatten(2, (side, side))
    if x.ndim == 4 and x.shape[1] == n and (inner := _side(x.shape[2])):
        found["tokens, group first"] = lambda y: y.unflatten(2, (inner, inner))
    for name, grid in _grids(x):
        if grid(x).shape[-1] % n == 0:
            outer = "maps" if name == "image" else f"{name}, group outside"
            found[outer] = partial(_split_channels, grid, (n, -1), (0, 3, 1, 2, 4))
            inside = f"{name}, group inside"
            found[inside] = partial(_split_channels, grid, (-1, n), (0, 4, 1, 2, 3))
    yield from (Layout(f"{name} of {group}", group, convert) for name, convert in found.items())


def _split_channels(
    grid: ToField, parts: tuple[int, int], order: tuple[int, ...], y: Tensor
) -> Tensor:
    return grid(y).unflatten(-1, parts).permute(order)


def _is_square(rows: int, cols: int) -> bool:
    return rows == cols and rows > 1


def _side(tokens: int) -> int:
    """Return the side of a square of that many tokens, 0 if there is none."""
    side = math.isqrt(max(tokens, 0))
    return side if side * side == tokens and side > 1 else 0
