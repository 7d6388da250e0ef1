"""Training and inference on a CPU, and what bounds them.

    python benchmarks/cpu_speed.py                      small, tries the program
    python benchmarks/cpu_speed.py --threads 2 --batch 64 --repeats 20

For each model: seconds of a training step, images per second of inference through `Predictor`, the
operations that take the time, and the bound: the time that the multiplications of its convolutions
and matrix products take at the rate of a large convolution on this machine, in the same run.  Only
fewer or narrower multiplications are faster than the bound.
The record goes to benchmarks/cpu_speed.jsonl.
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from meters import seconds_per_call
from records import append_record
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from turnwise.inference import Predictor
from turnwise.models import create_model
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
CPU = torch.device("cpu")
RESNET = {"stem": "small", "widths": [16, 32, 64, 64]}
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {  # model, image size, channels, options
    "nano D4, 28 px": ("turnwise_vit_nano", 28, 1, {"group": "D4"}),
    "nano D4, 48 px": ("turnwise_vit_nano", 48, 3, {"group": "D4"}),
    "small_vgg, 48 px": ("small_vgg", 48, 3, {}),
    "roto_resnet18 D4, 32 px": ("roto_resnet18", 32, 3, {"group": "D4", "oriented": 3, **RESNET}),
    "resnet18, 32 px": ("resnet18", 32, 3, RESNET),
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--records", type=Path, default=HERE / "cpu_speed.jsonl")
    return parser.parse_args(given)


def measure(case: str, args: argparse.Namespace, rate: float) -> dict[str, Any]:
    """Return seconds of a step and of an inference of one batch, both bounds, and the profile."""
    name, size, channels, options = CASES[case]
    torch.manual_seed(0)
    model = create_model(name, image_size=size, in_chans=channels, **options)
    images, labels = torch.rand(args.batch, channels, size, size), torch.zeros(args.batch).long()
    optimiser = torch.optim.AdamW(model.parameters())
    predict = Predictor(model, ("logits",), batch_size=args.batch)

    def step() -> None:
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(model(model.preprocess(images)), labels).backward()
        optimiser.step()

    def infer() -> None:
        predict.run(images)

    works = {"step": step, "inference": infer}
    found: dict[str, Any] = {
        kind: seconds_per_call(work, CPU, repeats=args.repeats, warmup=2)
        for kind, work in works.items()
    }
    found["bounds"] = {kind: multiply_adds(work) / rate for kind, work in works.items()}
    found["operations"] = {kind: shares(work) for kind, work in works.items()}
    found["parameters"] = sum(p.numel() for p in model.parameters())
    return found


def multiply_adds(work: Callable[[], None]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 2


def shares(work: Callable[[], None], largest: int = 6) -> dict[str, float]:
    """Return the operations that take the largest shares of the time."""
    work()  # filters are expanded in the first inference after a step
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return {event.key: event.self_cpu_time_total / total for event in events[:largest]}


def fastest_rate() -> float:
    """Return multiply-adds per second of a large convolution in float32."""
    width, side, kernel = 256, 32, 3
    maps, filters = torch.rand(8, width, side, side), torch.rand(width, width, kernel, kernel)
    maps = maps.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        seconds = seconds_per_call(lambda: F.conv2d(maps, filters, padding=1), CPU, repeats=5)
    return 8 * (width * side * kernel) ** 2 / seconds


def main(given: list[str] | None = None) -> None:
    args = arguments(given)
    torch.set_num_threads(args.threads)
    rate = fastest_rate()
    results = {case: measure(case, args, rate) for case in args.cases}
    rows = []
    for case, found in results.items():
        bounds = found["bounds"]
        rows.append([
            case, f"{1000 * found['step']:.1f}", f"{found['step'] / bounds['step']:.1f}",
            f"{args.batch / found['inference']:.0f}", f"{args.batch / bounds['inference']:.0f}",
        ])  # fmt: skip
    headers = ["model", "step ms", "times the bound", "images/s", "bound, images/s"]
    print(text_table(headers, rows))
    for case, found in results.items():
        for kind, parts in found["operations"].items():
            words = ", ".join(f"{name} {share:.0%}" for name, share in parts.items())
            print(f"{case}, {kind}: {words}")
    command = shlex.join(["python", "benchmarks/cpu_speed.py", *(given or sys.argv[1:])])
    settings = {"threads": args.threads, "batch": args.batch, "multiply_adds": rate}
    append_record(args.records, command, settings | {"results": results})


if __name__ == "__main__":
    main()
