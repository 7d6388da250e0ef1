"""Group attention, all backends side by side: a training step of the published rotMNIST network.

    python benchmarks/group_attention.py                              a few cases on this machine
    python benchmarks/group_attention.py --device cuda --groups p4 p8 --windows 5 9 --batches 64

For each case and backend: seconds of the forward pass, of the backward pass and of the whole step,
and the peak memory; beside them the floor, the time that the machine needs at least to move the
bytes and do the multiplications that cannot be avoided, at the rates that it is measured to have.
Every case runs in a process of its own, so that peaks do not mix; "ready" is the time from its
start to the end of its first step, with --fresh without anything that was compiled before.
Records go to benchmarks/group_attention.jsonl.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from meters import now, peak, used
from records import append_record

from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup
from turnwise.models import create_model
from turnwise.reports.tables import text_table
from turnwise.training.graphs import RecordedModel

HERE = Path(__file__).parent
HEADS, DIM = 9, 10  # of the published rotMNIST network
LAYERS = ((28, 28), (28, 24), (24, 24), (12, 8), (8, 6), (6, 4))  # side of sources, of tokens


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", nargs="+", default=["p4"])
    parser.add_argument("--windows", nargs="+", type=int, default=[5], help="0: whole picture")
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--images", nargs="+", type=int, default=[28])
    parser.add_argument("--queries", nargs="+", default=["all"])
    parser.add_argument("--backends", nargs="+", default=["plain", "streaming"])
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "fp16"])
    parser.add_argument("--compiled", action="store_true", help="by torch.compile, as CUDA graphs")
    parser.add_argument("--recorded", action="store_true", help="eager passes, as CUDA graphs")
    parser.add_argument("--fresh", action="store_true", help="with empty caches of compilers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--records", type=Path, default=HERE / "group_attention.jsonl")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one case, in a process of its own
    return parser.parse_args()


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Times and peak memory of one case; the network is cropped and pooled as published."""
    torch.set_num_threads(case["threads"])
    device, size = torch.device(case["device"]), case["image"]
    torch.manual_seed(0)
    model = create_model(
        "gsa_net", group=case["group"], image_size=size, window=case["window"] or size,
        queries=case["queries"], backend=case["backend"],
    ).to(device)  # fmt: skip
    images = torch.rand(case["batch"], 1, size, size, device=device)
    labels = torch.randint(0, 10, (case["batch"],), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    if case["compiled"]:
        model.compile(mode="reduce-overhead")
    run = RecordedModel(model) if case["recorded"] else lambda x: model(model.preprocess(x))
    kind = {"32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[case["precision"]]
    before = used(device)
    times = [one_step(run, optimiser, images, labels, kind)]
    ready = time.time() - case["begun"]
    times += [one_step(run, optimiser, images, labels, kind) for _ in range(4 + case["repeats"])]
    forward, backward, whole = map(min, zip(*times[5:], strict=True))
    figures = {"forward": forward, "backward": backward, "step": whole, "warm_up": times[0][2]}
    figures["ready"] = ready
    return figures | {"peak_gib": (peak(device) - before) / 2**30}


def one_step(run, optimiser, images, labels, kind) -> tuple[float, float, float]:
    """Seconds of forward pass, backward pass and whole step."""
    marks = [now(images.device)]
    with torch.autocast(images.device.type, dtype=kind, enabled=kind is not None):
        loss = F.cross_entropy(run(images), labels)
    marks.append(now(images.device))
    loss.backward()
    marks.append(now(images.device))
    optimiser.step()
    optimiser.zero_grad()
    end = now(images.device)
    return marks[1] - marks[0], marks[2] - marks[1], end - marks[0]


def rates(device: torch.device) -> dict[str, float]:
    """Bytes a second of a copy, and multiply-adds a second of a large matrix product."""
    big = torch.rand(2**26 if device.type == "cuda" else 2**24, device=device)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    square = torch.rand(4096, 4096, device=device).to(kind)

    def best(function) -> float:
        return min(timed(function, device) for _ in range(5))

    copies, products = best(big.clone), best(lambda: square @ square)
    return {"bytes": 2 * big.numel() * 4 / copies, "multiply_adds": 4096**3 / products}


def timed(function, device: torch.device) -> float:
    start = now(device)
    function()
    return now(device) - start


def floor(case: dict[str, Any], rate: dict[str, float]) -> float:
    """Seconds that attention needs at least: read q, k, v, write the output; twice that to go back.

    Multiplications: content and values once forward, recomputed and twice differentiated backward.
    """
    poses, wide = PlanarGroup.named(case["group"]).order, 4 if case["precision"] == "32" else 2
    offsets = len(Neighbourhood(case["window"]).offsets(case["image"], case["image"]))
    moved = work = 0
    for index, (side, tokens) in enumerate(LAYERS):
        scale = (case["image"] / 28) ** 2
        pixels, tokens = side**2 * scale, tokens**2 * scale
        sources = min(offsets, pixels)
        asking = poses if index else 1
        moved += (2 * pixels * asking + 2 * tokens * poses) * DIM * wide
        work += tokens * asking * asking * sources * DIM * 2
    images = case["batch"] * HEADS
    return max(3 * moved * images / rate["bytes"], 3 * work * images / rate["multiply_adds"])


def in_own_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(case | {"begun": time.time()})]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        environment = os.environ | (caches if case["fresh"] else {})
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode == 0:
        return json.loads(run.stdout.splitlines()[-1])
    words = "out of memory" if "memory" in run.stderr.lower() else run.stderr.strip()[-200:]
    return {"failed": words or f"exit status {run.returncode}"}


def row(case: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    name = f"{case['group']} {case['window'] or 'whole'} {case['queries']}"
    head = [name, str(case["image"]), str(case["batch"]), case["backend"]]
    if "failed" in figures:
        return [*head, figures["failed"], "", "", "", "", ""]
    times = [f"{1000 * figures[key]:.1f}" for key in ("forward", "backward", "step")]
    return [
        *head,
        *times,
        f"{figures['peak_gib']:.2f}",
        f"{figures['step'] / figures['floor']:.0f}",
        f"{figures['ready']:.0f}",
    ]


def main() -> None:
    args = arguments()
    if args.case:
        print(json.dumps(measure(json.loads(args.case))))
        return
    rate = rates(torch.device(args.device))
    options = ("device", "precision", "repeats", "compiled", "recorded", "fresh")
    shared = {name: getattr(args, name) for name in options}
    names = ("group", "window", "queries", "image", "batch", "backend")
    grid = (args.groups, args.windows, args.queries, args.images, args.batches, args.backends)
    results = []
    for choice in itertools.product(*grid):
        case = shared | {"threads": args.threads} | dict(zip(names, choice, strict=True))
        figures = in_own_process(case) | {"floor": floor(case, rate)}
        results.append({"case": case, "figures": figures})
        print(" ".join(row(case, figures)), flush=True)
    headers = ["form", "image", "batch", "backend", "forward ms", "backward ms", "step ms",
               "peak GiB", "times the floor", "ready s"]  # fmt: skip
    print(text_table(headers, [row(r["case"], r["figures"]) for r in results]))
    command = shlex.join(["python", "benchmarks/group_attention.py", *sys.argv[1:]])
    append_record(args.records, command, {"rates": rate, "results": results})


if __name__ == "__main__":
    main()
