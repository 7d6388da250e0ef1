"""Measure and assert equivariance:  f(g·x) = g·f(x)  for every g in G.

`equivariance_errors` returns the relative error of each element, `equivariance_error` the largest
of them.  `assert_equivariant` tests a layer in one line:

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
COARSE_TOLERANCE = 5e-2  # bfloat16 and float16 have two to three digits


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
    """Return max |f(g·x) − g·f(x)| / max |f(x)|  for each of `elements` (default: all).

    A result that is not finite counts as an infinite error.
    """
    group = PlanarGroup.named(group)
    y = function(x.clone())  # in case the function works in place

    def difference(g: int) -> float:
        transformed = function(act_in(group, g, x).clone())
        return _max_abs(_widen(transformed) - _widen(act_out(group, g, y)))

    chosen = range(group.order) if elements is None else elements
    return [ratio(difference(g), _max_abs(_widen(y))) for g in chosen]


def _widen(values: Tensor) -> Tensor:
    """Convert to double precision, where differences of integers do not overflow."""
    return values.cpu().to(torch.complex128 if values.is_complex() else torch.float64)


def _max_abs(values: Tensor) -> float:
    return float(values.abs().max())


def ratio(error: float, scale: float) -> float:
    """Return error / scale; infinity if either is not finite, or an error is relative to 0."""
    if not math.isfinite(error) or not math.isfinite(scale) or (error > 0 and scale == 0):
        return math.inf
    return error / scale if error > 0 else 0.0


def equivariance_error(
    function: Callable[[Tensor], Tensor],
    group: PlanarGroup | str,
    x: Tensor,
    *,
    act_in: Action = act_on_image,
    act_out: Action = leave_fixed,
) -> float:
    """Return the largest  |f(g·x) − g·f(x)| / |f(x)|  over the group.

    At rounding level, f is equivariant on `x`; around 1, it is not equivariant at all.  By default
    x is a batch of images and f should be invariant.
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
    """Raise `AssertionError` unless f is equivariant on `x` and its output depends on its input.

    The tolerance follows the precision of `x`: 1e-10 in float64, 1e-4 in float32.  A constant is
    trivially equivariant, so noise added to `x` must change the output.
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
        raise AssertionError("the output does not depend on the input: trivially equivariant")


@torch.no_grad()
def depends_on_input(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether noise of the size of `x`, at least 1, changes the output beyond rounding."""
    before, after = _widen(function(x.clone())), _widen(function(_add_noise(x)))
    rounding = TOLERANCE.get(x.dtype, COARSE_TOLERANCE)
    return _max_abs(after - before) > rounding * _max_abs(before)


def _add_noise(x: Tensor) -> Tensor:
    """Add noise to floating-point numbers; draw new integers between the extremes of x."""
    generator = torch.Generator().manual_seed(0)
    if x.is_floating_point() or x.is_complex():
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64)
        return x + noise.to(x) * x.abs().max().clamp_min(1)
    low, high = int(x.min()), int(x.max())
    if low == high:  # a range as wide as the distance from 0, within the type
        info = torch.iinfo(x.dtype) if x.dtype != torch.bool else None
        smallest, largest = (info.min, info.max) if info else (0, 1)
        width = max(127, abs(high))
        high = min(high + width, largest)
        low = max(high - width, smallest)
    span = min(high - low, 2**62)
    return (low + torch.randint(span + 1, x.shape, generator=generator)).to(x)
