"""What a layer computes from its weight alone, computed once while the weight stays the same."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from turnwise.kernels.device import is_eager_on_cpu

Expanded = TypeVar("Expanded", Tensor, list[Tensor])


class CachedExpansion(Generic[Expanded]):
    """Call `expand(weight)`, or return its last result if nothing has changed.

    The result is cached on the CPU in eager mode, where no gradient of the weight is needed: in
    inference, not in training.  The cache holds a copy of the weight and compares all values, which
    costs |G| times less than the expansion.  So no change is missed, whatever made it; version
    counters miss those through `.data`.  Copies and pickles of a layer start with an empty cache.
    """

    def __init__(self) -> None:
        self._cached: tuple[Tensor, Expanded] | None = None

    def __call__(self, weight: Tensor, expand: Callable[[Tensor], Expanded]) -> Expanded:
        if not _can_cache(weight):
            return expand(weight)
        cached = self._cached  # read once: another thread may replace it
        if cached is None or not _is_same(cached[0], weight):
            with torch.inference_mode(False), torch.no_grad():  # else no backward pass can use it
                cached = weight.detach().clone(), expand(weight)
            self._cached = cached
        return cached[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedExpansion, ()


def _can_cache(weight: Tensor) -> bool:
    """Return whether the weight is an ordinary tensor whose gradient is not needed."""
    return (
        type(weight) in (nn.Parameter, Tensor)
        and is_eager_on_cpu(weight)
        and not torch._C._get_tracing_state()
        and not torch.is_autocast_enabled("cpu")  # which may round what is expanded
        and not (torch.is_grad_enabled() and weight.requires_grad)
    )


def _is_same(old: Tensor, new: Tensor) -> bool:
    return old.dtype == new.dtype and old.shape == new.shape and torch.equal(old, new)
