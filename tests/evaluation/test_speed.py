"""The median of the calls that count, by a clock of our own."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from turnwise.evaluation import speed
from turnwise.evaluation.speed import seconds_per_call


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a call moves it on."""
    watch = SimpleNamespace(now=100.0)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: watch.now))
    return watch


def test_the_median_without_the_warm_up(clock):
    """Two slow calls to warm up, then 1, 2, 3, 4 and one call that was held up."""
    durations = iter([50.0, 50.0, 4.0, 1.0, 900.0, 3.0, 2.0])

    def call():
        clock.now += next(durations)

    assert seconds_per_call(call, repeats=5, warmup=2) == 3.0
    assert next(durations, None) is None


@pytest.mark.parametrize(("repeats", "warmup"), [(1, 0), (5, 3), (20, 1)])
def test_calls_are_counted(repeats, warmup):
    calls = itertools.count()
    assert seconds_per_call(lambda: next(calls), repeats=repeats, warmup=warmup) >= 0
    assert next(calls) == repeats + warmup


def test_by_default_3_calls_warm_up_and_20_count():
    calls = itertools.count()
    seconds_per_call(lambda: next(calls))
    assert next(calls) == 23


def test_the_device_catches_up_inside_the_measured_time(clock, monkeypatch):
    """What a call leaves in the queue of the GPU belongs to that call, not to the next."""
    queue = SimpleNamespace(seconds=7.0)  # left over from the warm-up

    def catch_up():
        clock.now += queue.seconds
        queue.seconds = 0.0

    def call():
        queue.seconds += 2.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", catch_up)
    assert seconds_per_call(call, repeats=1, warmup=1) == 2.0
