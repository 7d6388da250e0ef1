"""The clock and the memory of the machine, as the benchmarks read them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


def passes(
    model: nn.Module, images: Tensor, labels: Tensor
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a training step and an inference, in bfloat16 on a GPU."""
    device = images.device
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-5, fused=on_gpu or None, capturable=on_gpu
    )

    def logits() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            return model(images)

    def step() -> None:
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(logits().float(), labels).backward()
        optimiser.step()

    def infer() -> None:
        model.eval()
        with torch.no_grad():
            logits()

    return step, infer


def step_and_inference(
    model: nn.Module, blocks: Iterable[nn.Module], images: Tensor, labels: Tensor
) -> dict[str, Callable[[], Any]]:
    """A training step and an inference, ready to be called; on a GPU recorded, to be replayed.

    The blocks are compiled, once for all that are alike: whole models of twelve take minutes.
    """
    device = images.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.compiler.reset()  # or what differs between models would become variable, and slower
    for block in blocks:
        block.compile(dynamic=False)
    model.to(device)
    step, infer = passes(model, images, labels)
    return {"step": ready(step, device), "inference": ready(infer, device)}


def medians_in_turns(
    rivals: Mapping[str, Mapping[str, Callable[[], Any]]], device: torch.device, repeats: int
) -> dict[str, dict[str, float]]:
    """Rival -> work -> the median of its seconds; rivals take turns, so that a slow moment of the
    machine hits all."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in rivals}
    for kind in next(iter(rivals.values())):
        for _ in range(repeats):
            for name, works in rivals.items():
                start = now(device)
                works[kind]()
                times[name].setdefault(kind, []).append(now(device) - start)
    return {
        name: {kind: median(found) for kind, found in kinds.items()}
        for name, kinds in times.items()
    }
