"""Engines: what runs the parts of a job.

The local engine has one process for each device, and in each of them processes that read ahead.
The Ray engine hands the same work to actors, on one machine or on a cluster (engines/ray).
"""

import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from turnwise.errors import InputError
from turnwise.inference.jobs import Job, PartFolder, run_parts
from turnwise.inference.predictor import Predictor

POLL = 1.0  # seconds between looks at whether a process is alive


@dataclass(frozen=True)
class Work:
    """A job and the model that does it; it can be sent to another process.

    Args:
        job: which images.
        open_model: makes the model, in the process that runs it.
        outputs: of the predictor.
        output: the file or folder beside which the parts are kept.
        precision: of the model; None is its own.
    """

    job: Job
    open_model: Callable[[], nn.Module]
    outputs: tuple[str, ...]
    output: Path
    precision: str | None = None

    def predictor(self, device: str) -> Predictor:
        model = self.open_model()
        return Predictor(
            model.to(device), self.outputs, batch_size=self.job.batch_size,
            precision=self.precision,
        )  # fmt: skip


class PartRunner:
    """Computes parts: a batch with a column "part" in, the same with their images out.

    It has the form that `ray.data.Dataset.map_batches` expects of an actor.
    """

    def __init__(self, work: Work, device: str = "cpu", workers: int = 0) -> None:
        self.work, self.workers = work, workers
        self.predict = work.predictor(device)
        self.folder = PartFolder(work.output)

    def run(self, parts: Sequence[int]) -> Iterator[int]:
        yield from run_parts(self.work.job, parts, self.predict, self.folder, self.workers)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        parts = [int(part) for part in batch["part"]]
        counts = [sum(self.run([part])) for part in parts]
        return {"part": np.asarray(parts), "images": np.asarray(counts)}


def run_local(
    work: Work, parts: Sequence[int], devices: Sequence[str] = ("cpu",), workers: int = 0
) -> Iterator[int]:
    """Compute parts on the devices of this machine; yield the number of images as they end."""
    if len(devices) == 1:
        yield from PartRunner(work, devices[0], workers).run(parts)
        return
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    shares = [parts[i :: len(devices)] for i in range(len(devices))]
    processes = [
        context.Process(target=_run_share, args=(work, share, device, workers, messages))
        for share, device in zip(shares, devices, strict=True)
        if share
    ]
    try:
        for process in processes:
            process.start()
        running = len(processes)
        while running:
            message = _receive(messages, processes)
            if isinstance(message, str):
                raise InputError(message)
            running -= message is None
            yield message or 0
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()


def _receive(messages: Any, processes: Sequence[Any]) -> int | str | None:
    """Return the next message: images that ended, an error, or None from a process that is done."""
    while True:
        try:
            return messages.get(timeout=POLL)
        except queue.Empty:
            died = [p for p in processes if p.exitcode not in (None, 0)]
            if died:
                raise InputError(
                    f"a worker process ended with status {died[0].exitcode}, perhaps for want of "
                    "memory; run the same command again to continue."
                ) from None


def _run_share(work: Work, parts: Sequence[int], device: str, workers: int, messages: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
    parent = multiprocessing.parent_process()
    try:
        for count in PartRunner(work, device, workers).run(parts):
            if parent is not None and not parent.is_alive():
                return
            messages.put(count)
    except InputError as error:
        messages.put(str(error))
        return
    messages.put(None)
