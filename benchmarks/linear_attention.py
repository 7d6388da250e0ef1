"""Linear attention: how its cost grows with the image, beside the softmax and a local window.

    python benchmarks/linear_attention.py                      a CPU with two threads
    python benchmarks/linear_attention.py --device cuda --softmax-up-to 224 --batch 8

Three parts, one record in benchmarks/linear_attention.jsonl:
    growth   forward and backward of steered attention on images of growing size, linear and
             softmax of the same queries and keys; the slope of log(cost) over log(pixels)
    window   the same at 28 pixels beside group attention in a local 9 x 9 window, of equal width
    step     a training step of the published default Performers (128/4/4, 32 x 32, batch 16),
             exact beside tep-2021, with their dropouts; and of a trunk without attention, a lower
             bound for any attention
On a CPU every case runs in a separate process, so that their peaks are separate.  If others use the
machine, the CPU time is more reliable than the wall-clock time.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from meters import now, peak, ready, used
from records import append_record

from turnwise.cli.terminal import keep_memory
from turnwise.geometry.layouts import field_to_regular, tokens_to_regular
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.attention import AttentionPlan, GroupSelfAttention
from turnwise.layers.performer.steered import SteeredAttention
from turnwise.models import create_model
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
HEADS, DIM = 4, 16  # of each pose
MODELS = ["performer", "nopos_performer", "relative_performer", "clipped_relative_performer"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group", default="C1", help="group of the part growth (default: C1)")
    parser.add_argument("--sizes", nargs="+", type=int, default=[28, 56, 112, 224])
    parser.add_argument("--softmax-up-to", type=int, default=112)
    parser.add_argument(
        "--batch", type=int, default=1, help="batch size of the part growth (default: 1)"
    )
    parser.add_argument("--models", nargs="+", default=MODELS, help="models of the part step")
    parser.add_argument("--parts", nargs="+", default=["growth", "window", "step"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds through all cases; the minimum counts"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="compile the layers of growth and window"
    )
    parser.add_argument("--window-batch", type=int, default=4)
    parser.add_argument("--records", type=Path, default=HERE / "linear_attention.jsonl")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one case, in its own process
    return parser.parse_args()


def cases(args: argparse.Namespace) -> list[dict[str, Any]]:
    shared = {"device": args.device, "repeats": args.repeats, "threads": args.threads,
              "compile": args.compile}  # fmt: skip
    found: list[dict[str, Any]] = []
    if "growth" in args.parts:
        for attention in ("linear", "softmax"):
            sizes = [s for s in args.sizes if attention == "linear" or s <= args.softmax_up_to]
            found += [
                {"part": "growth", "name": attention, "side": side, "group": args.group,
                 "batch": args.batch}
                for side in sizes
            ]  # fmt: skip
    if "window" in args.parts:
        local = {"part": "window", "side": 28, "group": "C4", "batch": args.window_batch}
        found += [local | {"name": name} for name in ("linear", "local 9 x 9")]
    if "step" in args.parts:
        step = {"part": "step", "side": 32, "group": "C1", "batch": 16}
        found += [
            step | {"name": f"{model} {variant}"}
            for model in args.models
            for variant in ("exact", "tep-2021")
        ]
        found.append(step | {"name": "performer trunk"})
    return [shared | case for case in found]


def layer_step(case: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """Return forward and backward of one attention layer."""
    group, side, width = PlanarGroup.named(case["group"]), case["side"], HEADS * DIM
    layer: torch.nn.Module
    if case["name"] == "local 9 x 9":
        plan = AttentionPlan(group, Neighbourhood(9), heads=HEADS)
        layer = GroupSelfAttention(plan.group, width, width, head_dim=DIM, **plan.options).to(
            device
        )
        field = torch.randn(case["batch"], group.order, side, side, width, device=device)
        x = field_to_regular(field).requires_grad_()
    else:
        options = {"attention": case["name"], "local": 0}
        layer = SteeredAttention(group, width, HEADS, side, **options).to(device)
        tokens = torch.randn(case["batch"], side * side, group.order, width, device=device)
        x = tokens_to_regular(tokens, side, side).requires_grad_()
    if case["compile"]:
        layer.compile()

    def step() -> None:
        layer(x).sum().backward()

    return step


class WithoutAttention(torch.nn.Module):
    """The linear maps of an attention layer, without the attention between them."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, tokens: torch.Tensor, context: torch.Tensor, first_only: bool
    ) -> torch.Tensor:
        layer, queries = self.attention, tokens[:, :1] if first_only else tokens
        sources = layer.to_key(tokens) + layer.to_value(tokens)
        return layer.to_output(layer.to_query(queries) + sources[:, : queries.shape[1]])


def training_step(case: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """Return forward, backward, clipping and Adam, as published."""
    name, variant = case["name"].split()
    trunk = variant == "trunk"
    made = create_model(name, image_size=case["side"], variant="exact" if trunk else variant)
    if trunk:
        for block in made.blocks:
            block.attention = WithoutAttention(block.attention)
    model = made.to(device)
    images = torch.rand(case["batch"], 1, case["side"], case["side"], device=device)
    labels = torch.randint(10, (case["batch"],), device=device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))

    def step() -> None:
        loss = F.cross_entropy(model(model.preprocess(images)), labels)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()

    return step


def measure(case: dict[str, Any]) -> dict[str, float]:
    keep_memory()  # as `turnwise` does
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    device = torch.device(case["device"])
    step = (training_step if case["part"] == "step" else layer_step)(case, device)
    before, wall, busy = used(device), [], []
    for _ in range(2):  # the first warms up
        step()
    memory = (peak(device) - before) / 2**20
    if case["part"] != "step":
        step = ready(step, device)  # on a GPU, kernel launches would take most of the time
    for _ in range(case["repeats"]):
        marks = now(device), time.process_time()
        step()
        wall.append(now(device) - marks[0])
        busy.append(time.process_time() - marks[1])
    return {"seconds": min(wall), "cpu_seconds": min(busy), "peak_mib": memory}


def in_own_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    environment = {"GOMP_SPINCOUNT": "10000"} | os.environ  # as `turnwise` sets it
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode == 0:
        return json.loads(run.stdout.splitlines()[-1])
    reason = "out of memory" if "memory" in run.stderr.lower() else run.stderr.strip()[-200:]
    return {"failed": reason or f"exit status {run.returncode}"}


def figures_of(case: dict[str, Any]) -> dict[str, Any]:
    """Measure a case: on a CPU in its own process, on a GPU in this one, which starts it once."""
    if case["device"] == "cpu":
        return in_own_process(case)
    torch.cuda.empty_cache()
    try:
        return measure(case)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}


def least(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    if not before or "failed" in before:
        return now
    if "failed" in now:
        return before
    return {key: min(value, before.get(key, value)) for key, value in now.items()}


def slope(results: list[dict[str, Any]], name: str, quantity: str) -> float | None:
    """Return the slope of log(quantity) over log(pixels): 1 is linear, 2 is quadratic."""
    points = [
        (2 * math.log(r["case"]["side"]), math.log(r["figures"][quantity]))
        for r in results
        if r["case"]["part"] == "growth" and r["case"]["name"] == name
        if r["figures"].get(quantity, 0) > 0
    ]
    if len(points) < 2:
        return None
    x_mean, y_mean = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    above = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return above / sum((x - x_mean) ** 2 for x, _ in points)


def main() -> None:
    args = arguments()
    if args.case:
        print(json.dumps(measure(json.loads(args.case))))
        return
    results: list[dict[str, Any]] = [{"case": case, "figures": {}} for case in cases(args)]
    for _ in range(args.rounds):  # other load on a shared machine passes
        for result in results:
            result["figures"] = least(result["figures"], figures_of(result["case"]))
            print(" ".join(row(result)), flush=True)
    heads = ["part", "attention", "pixels", "group", "batch", "seconds", "CPU seconds", "peak MiB"]
    print(text_table(heads, [row(result) for result in results]))
    slopes = {
        name: {q: slope(results, name, q) for q in ("seconds", "cpu_seconds", "peak_mib")}
        for name in ("linear", "softmax")
    }
    print("slopes over the pixels:", json.dumps(slopes))
    command = shlex.join(["python", "benchmarks/linear_attention.py", *sys.argv[1:]])
    append_record(args.records, command, {"results": results, "slopes": slopes})


def row(result: dict[str, Any]) -> list[str]:
    case, figures = result["case"], result["figures"]
    head = [case["part"], case["name"], str(case["side"]), case["group"], str(case["batch"])]
    if "failed" in figures:
        return [*head, figures["failed"], "", ""]
    return [
        *head,
        f"{figures['seconds']:.4f}",
        f"{figures['cpu_seconds']:.4f}",
        f"{figures['peak_mib']:.0f}",
    ]


if __name__ == "__main__":
    main()
