"""What an orbit costs: time and memory of every combination against the bare model, in one run.

    python benchmarks/orbit_cost.py [--device cuda] [--group C16] [--batch-size 64]

Each row is the same transformer, answering and training one batch: bare, in an orbit with all views
at once, in an orbit with one view at a time, and turned upright by a choice of one view.  Memory is
the most that was held at once during the call, beyond weights and pictures.  The rows are timed in
turns, so that a busy machine is unfair to none; on a CPU with one thread.  Records go to
benchmarks/orbit_cost.jsonl.
"""

import argparse
import copy
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from records import append_record
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from turnwise.layers.orbit.combinations import COMBINATIONS
from turnwise.models import canonical, create_model, orbit
from turnwise.reports.tables import text_table

Call = Callable[[], object]
MODEL = {"width": 64, "depth": 4, "heads": 4}


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most that was allocated at once during the call, beyond what was there before."""
    call()  # what is made once and kept is not counted
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def seconds_in_turns(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """The median time of each call; one of each, then the next of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            _catch_up()
            start = time.perf_counter()
            call()
            _catch_up()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def _catch_up() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def models(group: str) -> dict[str, nn.Module]:
    """The same transformer, bare and wrapped in every way."""
    torch.manual_seed(0)
    bare = create_model("vit", **MODEL)
    found: dict[str, nn.Module] = {"bare": bare}
    for combine in COMBINATIONS:
        for chunk, words in ((0, ""), (1, ", one view at a time")):
            found[combine + words] = orbit(copy.deepcopy(bare), group, combine, chunk=chunk)
    found["one view, chosen"] = canonical(copy.deepcopy(bare), group)
    return found


def answer(model: nn.Module, images: Tensor) -> Call:
    model.eval()

    def call() -> None:
        with torch.inference_mode():
            model(images)

    return call


def training_step(model: nn.Module, images: Tensor) -> Call:
    labels = torch.arange(len(images), device=images.device) % 10

    def call() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        model.zero_grad(set_to_none=True)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group", default="C4")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--records", type=Path, default=Path(__file__).parent / "orbit_cost.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(args.device)
    images = torch.rand(args.batch_size, 1, 28, 28, device=device)
    wrapped = {name: model.to(device) for name, model in models(args.group).items()}
    rows: dict[str, dict[str, float]] = {name: {} for name in wrapped}
    for what, make in (("answer", answer), ("train", training_step)):
        calls = {name: make(model, images) for name, model in wrapped.items()}
        for name, call in calls.items():
            print(f"memory: {what}, {name}", file=sys.stderr)
            rows[name][f"{what}_bytes"] = peak_bytes(call, device)
        print(f"time: {what}, {args.repeats} rounds", file=sys.stderr)
        for name, seconds in seconds_in_turns(calls, args.repeats).items():
            rows[name][f"{what}_seconds"] = seconds
    figures = {
        "model": {"name": "vit", **MODEL}, "group": args.group, "batch_size": args.batch_size,
        "rows": rows,
    }  # fmt: skip
    command = shlex.join(["python", "benchmarks/orbit_cost.py", *sys.argv[1:]])
    append_record(args.records, command, figures)
    keys = ("answer_seconds", "answer_bytes", "train_seconds", "train_bytes")
    table = [
        [name, *(f"{row[key] / rows['bare'][key]:.2f}" for key in keys)]
        for name, row in rows.items()
    ]
    print(text_table(["times the bare model", *(key.replace("_", " ") for key in keys)], table))


if __name__ == "__main__":
    main()
