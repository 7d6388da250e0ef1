"""Group attention, all backends side by side: a training step of the published rotMNIST network.

    python benchmarks/group_attention.py                              a few cases on this machine
    python benchmarks/group_attention.py --device cuda --groups p4 p8 --windows 5 9 --batches 64

For each case and backend: seconds of the forward pass, of the backward pass and of the whole step,
and the peak memory; beside them the floor: the time that the algorithm needs at least to move its
bytes, multiply, and take exponentials, at the rates of this machine, and which of them bounds it.
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
    """What the machine does per second: bytes of a copy, multiply-adds of a large matrix product,
    multiply-adds in float32 outside matrix products, and exponentials."""
    on_gpu = device.type == "cuda"
    big = torch.rand(2**26 if on_gpu else 2**24, device=device)
    square, small = torch.rand(4096, 4096, device=device), torch.rand(2**14, device=device)
    narrow = square.bfloat16() if on_gpu else square

    def best(function) -> float:
        return min(timed(function, device) for _ in range(5))

    torch.backends.cuda.matmul.allow_tf32 = False
    copies, products = best(big.clone), best(lambda: narrow @ narrow)
    singles = 4096**3 / best(lambda: square @ square)
    # a GPU's special function units have an eighth of the rate of its float32 units
    exponentials = singles / 8 if on_gpu else small.numel() / best(lambda: small.exp())
    return {
        "bytes": 2 * big.numel() * 4 / copies,
        "multiply_adds": 4096**3 / products,
        "single_multiply_adds": singles,
        "exponentials": exponentials,
    }


def timed(function, device: torch.device) -> float:
    start = now(device)
    function()
    return now(device) - start


def floor(case: dict[str, Any], rate: dict[str, float]) -> dict[str, float]:
    """Seconds that this algorithm needs at least for each resource; their maximum is the floor.

    It reads q, k, v, writes the output, and moves twice that in the backward pass.  For every token
    and offset it forms products of channels (content four times, values three times in both passes,
    which matrix units could do), exponentials of content and position (twice, as the backward pass
    recomputes them), and the weights of all outputs, queries and keys (five times).
    """
    poses, wide = PlanarGroup.named(case["group"]).order, 4 if case["precision"] == "32" else 2
    offsets = len(Neighbourhood(case["window"]).offsets(case["image"], case["image"]))
    moved = products = exponentials = weights = 0.0
    for index, (side, tokens) in enumerate(LAYERS):
        scale = (case["image"] / 28) ** 2
        pixels, tokens = side**2 * scale, tokens**2 * scale
        keys = poses if index else 1
        queries = keys if case["queries"] == "all" else 1  # that each output meets
        pairs = tokens * min(offsets, pixels)
        moved += (2 * pixels * keys + 2 * tokens * poses) * DIM * wide
        products += pairs * (4 * keys * keys + 3 * poses * keys) * DIM
        exponentials += pairs * 2 * (keys * keys + poses * queries)
        weights += pairs * 5 * poses * queries * keys
    items = case["batch"] * HEADS
    return {
        "memory": 3 * moved * items / rate["bytes"],
        "products": products * items / rate["multiply_adds"],
        "weights": weights * items / rate["single_multiply_adds"],
        "exponentials": exponentials * items / rate["exponentials"],
    }


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
        f"{figures['step'] / figures['floor']:.0f} ({figures['bound']})",
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
        floors = floor(case, rate)
        bound = max(floors, key=floors.__getitem__)
        figures = in_own_process(case) | {"floor": floors[bound], "bound": bound, "floors": floors}
        results.append({"case": case, "figures": figures})
        print(" ".join(row(case, figures)), flush=True)
    headers = ["form", "image", "batch", "backend", "forward ms", "backward ms", "step ms",
               "peak GiB", "times the floor", "ready s"]  # fmt: skip
    print(text_table(headers, [row(r["case"], r["figures"]) for r in results]))
    command = shlex.join(["python", "benchmarks/group_attention.py", *sys.argv[1:]])
    append_record(args.records, command, {"rates": rate, "results": results})


if __name__ == "__main__":
    main()
