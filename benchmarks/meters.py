"""The clock and the memory of the machine, as the benchmarks read them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_per_call(
    work: Callable[[], Any], device: torch.device, *, repeats: int = 20, warmup: int = 3
) -> float:
    """Return the median wall-clock time of one call, after `warmup` calls that do not count."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        start = now(device)
        work()
        times.append(now(device) - start)
    return median(times)


def used(device: torch.device) -> int:
    """Bytes in use before the first step; from here on the peak counts (on the CPU, in Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    return status_of_process("VmRSS")


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return status_of_process("VmHWM")


def status_of_process(field: str) -> int:
    """Bytes that the kernel counts for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def ready(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Compiled by three calls; on a GPU one more is recorded, so that no launch is waited for."""
    if device.type != "cuda":
        for _ in range(3):
            work()
        return work
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return Recorded(graph, work).again


@dataclass
class Recorded:
    """A graph reads its tensors where they were: what made it, and owns them, must live on."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], Any]

    def again(self) -> None:
        self.graph.replay()
