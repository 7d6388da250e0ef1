"""The time of a call is the median of those that count, and includes the work of the GPU."""

import itertools
from types import SimpleNamespace

import meters
import pytest
import torch
from meters import seconds_per_call

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the calls advance."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(meters, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_the_median_without_the_warm_up(clock):
    """Two slow calls to warm up, then 1, 2, 3, 4 and one outlier."""
    durations = iter([50.0, 50.0, 4.0, 1.0, 900.0, 3.0, 2.0])

    def call():
        clock.now += next(durations)

    assert seconds_per_call(call, CPU, repeats=5, warmup=2) == 3.0
    assert next(durations, None) is None


@pytest.mark.parametrize(("repeats", "warmup"), [(1, 0), (5, 3), (20, 1)])
def test_calls_are_counted(repeats, warmup):
    calls = itertools.count()
    assert seconds_per_call(lambda: next(calls), CPU, repeats=repeats, warmup=warmup) >= 0
    assert next(calls) == repeats + warmup


def test_queued_work_of_the_gpu_belongs_to_the_call_that_queued_it(clock, monkeypatch):
    queue = SimpleNamespace(seconds=7.0)  # left over from the warm-up

    def synchronize():
        clock.now += queue.seconds
        queue.seconds = 0.0

    def call():
        queue.seconds += 2.0

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert seconds_per_call(call, CUDA, repeats=1, warmup=1) == 2.0
