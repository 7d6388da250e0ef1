"""How long something takes, after the device has caught up."""

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_per_call(
    function: Callable[[], object], *, repeats: int = 20, warmup: int = 3
) -> float:
    """The median wall-clock time of one call."""
    for _ in range(warmup):
        function()
    times = []
    for _ in range(repeats):
        _catch_up()
        start = time.perf_counter()
        function()
        _catch_up()
        times.append(time.perf_counter() - start)
    return median(times)


def _catch_up() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
