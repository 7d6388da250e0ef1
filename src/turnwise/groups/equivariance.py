"""The law this library exists for:  f(g·x) = g·f(x)  for every g in G.

`equivariance_errors` measures it, element by element; `equivariance_error` is the largest of them;
`assert_equivariant` is the same law as one line of a test, for layers of your own:

>>> import torch, turnwise
>>> pool = torch.nn.AvgPool2d(2)
>>> turnwise.assert_equivariant(pool, "D4", torch.rand(1, 3, 8, 8), act_out=turnwise.act_on_image)
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from turnwise.groups.actions import act_on_image, leave_fixed
from turnwise.groups.finite import PlanarGroup

Action = Callable[[PlanarGroup, int, Tensor], Tensor]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
COARSE_TOLERANCE = 5e-2  # bfloat16 and float16 keep two to three digits


@torch.no_grad()
def equivariance_errors(
    function: Callable[[Tensor], Tensor],
    group: PlanarGroup | str,
    x: Tensor,
    *,
    act_in: Action = act_on_image,
    act_out: Action = leave_fixed,
    elements: Sequence[int] | None = None,
) -> list[float]:
    """max |f(g·x) − g·f(x)| / max |f(x)|  for each of `elements` (default: the whole group).

    A result that is not a number counts as an infinite error.
    """
    group = PlanarGroup.named(group)
    y = function(x.clone())  # a function may write on what it is given

    def gap(g: int) -> float:
        moved = function(act_in(group, g, x).clone())
        return _largest(_wide(moved) - _wide(act_out(group, g, y)))

    chosen = range(group.order) if elements is None else elements
    return [ratio(gap(g), _largest(_wide(y))) for g in chosen]


def _wide(values: Tensor) -> Tensor:
    """In double precision, where differences of whole numbers do not wrap around."""
    return values.cpu().to(torch.complex128 if values.is_complex() else torch.float64)


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def ratio(gap: float, scale: float) -> float:
    """gap / scale; infinite where either is not finite, or where something moved against 0."""
    if not math.isfinite(gap) or not math.isfinite(scale) or (gap > 0 and scale == 0):
        return math.inf
    return gap / scale if gap > 0 else 0.0


def equivariance_error(
    function: Callable[[Tensor], Tensor],
    group: PlanarGroup | str,
    x: Tensor,
    *,
    act_in: Action = act_on_image,
    act_out: Action = leave_fixed,
) -> float:
    """The largest  |f(g·x) − g·f(x)| / |f(x)|  over the whole group.

    Rounding error means that the law holds on `x`; around 1 means that it does not hold at all.
    By default x is a batch of pictures and f is to be invariant.
    """
    return max(equivariance_errors(function, group, x, act_in=act_in, act_out=act_out))


def assert_equivariant(
    function: Callable[[Tensor], Tensor],
    group: PlanarGroup | str,
    x: Tensor,
    *,
    act_in: Action = act_on_image,
    act_out: Action = leave_fixed,
    tolerance: float | None = None,
) -> None:
    """Raise `AssertionError` unless the law holds on `x` and the output depends on the input.

    The tolerance follows the precision of `x`: 1e-10 in float64, 1e-4 in float32.  A constant
    output obeys the law and is worth nothing, so noise added to `x` must change it.
    """
    group = PlanarGroup.named(group)
    if tolerance is None:
        tolerance = TOLERANCE.get(x.dtype, COARSE_TOLERANCE)
    errors = equivariance_errors(function, group, x, act_in=act_in, act_out=act_out)
    worst = max(range(group.order), key=errors.__getitem__)
    if not errors[worst] <= tolerance:
        raise AssertionError(
            f"not equivariant under {group.name}: element {worst} has error {errors[worst]:.1e}, "
            f"more than {tolerance:.0e}; errors by element: {', '.join(f'{e:.1e}' for e in errors)}"
        )
    if not depends_on_input(function, x):
        raise AssertionError("the output does not depend on the input, so the law says nothing")


@torch.no_grad()
def depends_on_input(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether noise of the size of `x`, at least 1, moves the output by more than rounding can."""
    before, after = _wide(function(x.clone())), _wide(function(_disturbed(x)))
    rounding = TOLERANCE.get(x.dtype, COARSE_TOLERANCE)
    return _largest(after - before) > rounding * _largest(before)


def _disturbed(x: Tensor) -> Tensor:
    """x with noise; whole numbers are drawn anew, from the least to the greatest in x."""
    source = torch.Generator().manual_seed(0)
    if x.is_floating_point() or x.is_complex():
        noise = torch.rand(x.shape, generator=source, dtype=torch.float64)
        return x + noise.to(x) * x.abs().max().clamp_min(1)
    least, most = int(x.min()), int(x.max())
    if least == most:  # as far from it as it is from 0, within the type
        info = torch.iinfo(x.dtype) if x.dtype != torch.bool else None
        low, high = (info.min, info.max) if info else (0, 1)
        reach = max(127, abs(most))
        most = min(most + reach, high)
        least = max(most - reach, low)
    span = min(most - least, 2**62)
    return (least + torch.randint(span + 1, x.shape, generator=source)).to(x)
