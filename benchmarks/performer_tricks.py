"""What the CPU optimisations of the Performers gain: a training step with each switched off.

    python benchmarks/performer_tricks.py                          about two minutes
    python benchmarks/performer_tricks.py --models performer --rounds 20

It needs Linux and an idle machine with two cores, and writes one record to
benchmarks/performer_tricks.jsonl.  The optimisations, and what replaces them:

    hashed_dropout    random bits are a hash (kernels/hashed_dropout.py); torch's own dropout
    favor_streaming   FAVOR+ takes a few images at a time, with a backward pass of its own
                      (kernels/favor_streaming.py); the formula

A step is forward, backward, clipping and Adam of a Performer of width 128, 4 blocks and 4 heads
with its dropouts, on a batch of 16 images of 32 x 32 pixels.  In every round each combination takes
one step, in random order, and the minimum over the rounds counts, because other load on the machine
passes.  Peak memory is measured in a separate process for each combination.
"""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from meters import peak, used
from records import append_record

from turnwise.attention.favor import attend_by_favor
from turnwise.cli.terminal import keep_memory
from turnwise.models import create_model
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
MODELS = {  # and the optimisations that they use
    "performer": ("hashed_dropout", "favor_streaming"),
    "relative_performer": ("hashed_dropout",),
    "clipped_relative_performer": ("hashed_dropout",),
}
BATCH, SIDE = 16, 32


def torch_dropout(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, layer.rate, layer.training)


BLOCK = "turnwise.layers.performer.block"
REPLACEMENTS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "hashed_dropout": (f"{BLOCK}.HashedDropout.forward", torch_dropout),
    "favor_streaming": (f"{BLOCK}.attend_by_favor", partial(attend_by_favor, backend="plain")),
}


@contextmanager
def switched_off(optimisations: tuple[str, ...]) -> Iterator[None]:
    with ExitStack() as patches:
        for name in optimisations:
            patches.enter_context(patch(*REPLACEMENTS[name]))
        yield


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return all subsets, from none to all."""
    return [subset for count in range(len(names) + 1) for subset in combinations(names, count)]


def training_step(model_name: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = create_model(model_name, image_size=SIDE, width=128, depth=4, heads=4).train()
    images, labels = torch.rand(BATCH, 1, SIDE, SIDE), torch.randint(10, (BATCH,))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))

    def step() -> None:
        loss = F.cross_entropy(model(model.preprocess(images)), labels)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()

    return step


def measure_times(model: str, rounds: int) -> list[dict[str, Any]]:
    """Return the least wall-clock and CPU seconds of a step, for each combination."""
    step, cases = training_step(model), subsets(MODELS[model])
    wall, cpu = ({case: float("inf") for case in cases} for _ in range(2))
    for number in range(rounds + 1):
        for case in random.sample(cases, len(cases)):
            with switched_off(case):
                start = time.perf_counter(), time.process_time()
                step()
                took = time.perf_counter() - start[0], time.process_time() - start[1]
            if number:  # the first round warms up
                wall[case], cpu[case] = min(wall[case], took[0]), min(cpu[case], took[1])
    return [{"off": list(c), "seconds": wall[c], "cpu_seconds": cpu[c]} for c in cases]


def measure_peak(model: str, off: list[str]) -> float:
    """Return the MiB that two steps need in addition to the model."""
    step, device = training_step(model), torch.device("cpu")
    with switched_off(tuple(off)):
        before = used(device)
        for _ in range(2):
            step()
    return (peak(device) - before) / 2**20


def in_own_process(case: dict[str, Any]) -> Any:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    environment = {"GOMP_SPINCOUNT": "10000"} | os.environ  # as `turnwise` sets it
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def table(model: str, cases: list[dict[str, Any]]) -> str:
    heads = ["model", "switched off", "seconds", "relative", "CPU seconds", "peak MiB"]
    rows = [
        [
            model, " ".join(case["off"]) or "-", f"{case['seconds']:.3f}",
            f"{case['seconds'] / cases[0]['seconds']:.2f}", f"{case['cpu_seconds']:.3f}",
            f"{case['peak_mib']:.0f}",
        ]
        for case in cases
    ]  # fmt: skip
    return text_table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--records", type=Path, default=HERE / "performer_tricks.jsonl")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one measurement, in its own process
    args = parser.parse_args()
    if args.case:
        keep_memory()  # as `turnwise` does
        case = json.loads(args.case)
        torch.set_num_threads(case.pop("threads"))
        print(json.dumps(measure_peak(**case) if "off" in case else measure_times(**case)))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for model in args.models:
        shared = {"model": model, "threads": args.threads}
        results[model] = in_own_process(shared | {"rounds": args.rounds})
        for case in results[model]:
            case["peak_mib"] = in_own_process(shared | {"off": case["off"]})
        print(table(model, results[model]), flush=True)
    command = shlex.join(["python", "benchmarks/performer_tricks.py", *sys.argv[1:]])
    append_record(args.records, command, {"results": results})


if __name__ == "__main__":
    main()
