"""RotoConv, all algorithms side by side, and whole models beside their plain twins.

    python benchmarks/roto_conv.py                                    on this machine's CPU
    python benchmarks/roto_conv.py --device cuda --precision bf16 --compiled --batch 96

For each convolution of a Roto-MetaFormer (by geometry) and for each model: seconds of the forward
pass and of the whole step (for models with the optimiser's part), for the plain one, the published
form ("legacy" by copies, as published) and each algorithm of the aligned form, all in one process,
in turns, the best of --repeats.  Ratios are to the plain one.  On a CPU that others use, too,
--clock cpu with one thread counts the seconds that the processor worked.  Records go to
benchmarks/roto_conv.jsonl.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from turnwise.geometry.sizes import Stage
from turnwise.layers.roto_conv import RotoConv, remainder_of
from turnwise.models import create_model
from turnwise.models.convolutions import size_after
from turnwise.models.metaformer import DESIGNS, GEOMETRIES
from turnwise.reports.records import append_record
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
PUBLISHED = {"reduce": "legacy", "algorithm": "copies"}
KINDS = {
    "plain": None,
    "published": PUBLISHED,
    "copies": {"algorithm": "copies"},
    "bank": {"algorithm": "bank"},
    "fourier": {"algorithm": "fourier"},
    "auto": {"algorithm": "auto"},
}
PRECISIONS = {"32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--geometries", nargs="+", default=["patch", "even"], choices=GEOMETRIES)
    parser.add_argument("--models", nargs="*", default=["metaformer_s12_pppa"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--group", default="D4")
    parser.add_argument("--precision", default="32", choices=PRECISIONS)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    parser.add_argument("--layers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--records", type=Path, default=HERE / "roto_conv.jsonl")
    return parser.parse_args()


def layer_shapes(geometry: str, size: int) -> list[tuple[int, int, Stage, int]]:
    """(in_width, width, stage, size) of the four convolutions of the small models."""
    first, later = GEOMETRIES[geometry]
    shapes, old = [], 3
    for number, width in enumerate(DESIGNS["metaformer_s12_pppa"].widths):
        stage = later if number else first
        shapes.append((old, width, stage, size))
        size, old = size_after(size, stage), width
    return shapes


def make_layer(kind: str, shape: tuple[int, int, Stage, int], group: str) -> nn.Module:
    in_width, width, stage, size = shape
    options = KINDS[kind]
    if options is None:
        return nn.Conv2d(in_width, width, *stage)
    return RotoConv(group, in_width, width, stage, remainder=remainder_of(size, stage), **options)


def layer_step(layer: nn.Module, maps: torch.Tensor, args: argparse.Namespace) -> Callable[[], Any]:
    """Forward and backward of a layer, with the gradient of its input unless that is a picture."""
    layer = layer.to(args.device)
    if args.compiled:
        layer.compile()
    kind = PRECISIONS[args.precision]

    def step() -> tuple[float, float]:
        start = now(args)
        with torch.autocast(args.device, dtype=kind, enabled=kind is not None):
            out = layer(maps)
        middle = now(args)
        out.backward(torch.ones_like(out))
        end = now(args)
        layer.zero_grad()
        maps.grad = None
        return middle - start, end - start

    return step


def make_model(kind: str, name: str, geometry: str, args: argparse.Namespace) -> nn.Module:
    options = KINDS[kind]
    by_geometry = {} if name.startswith("resnet") else {"geometry": geometry}
    return create_model(
        name if options is None else f"roto_{name}",
        args.group, num_classes=7, in_chans=3, image_size=args.size,
        **(options or {}), **by_geometry,
    )  # fmt: skip


def model_step(model: nn.Module, args: argparse.Namespace) -> Callable[[], Any]:
    """A training step; the forward pass is timed by itself."""
    model = model.to(args.device)
    images = torch.rand(args.batch, 3, args.size, args.size, device=args.device)
    labels = torch.randint(0, 7, (args.batch,), device=args.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.device == "cuda")
    if args.compiled:
        model.compile()
    kind = PRECISIONS[args.precision]

    def step() -> tuple[float, float]:
        start = now(args)
        with torch.autocast(args.device, dtype=kind, enabled=kind is not None):
            loss = F.cross_entropy(model(model.preprocess(images)), labels)
        middle = now(args)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return middle - start, now(args) - start

    return step


def now(args: argparse.Namespace) -> float:
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if args.clock == "cpu" else time.perf_counter()


def in_turns(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """The best times of each, taken in turns, so that a busy machine is unfair to none."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in steps}
    for turn in range(2 + repeats):
        for kind, step in steps.items():
            taken = step()
            if turn >= 2:  # the first two warm up, and compile
                times[kind].append(taken)
    return {
        kind: dict(zip(("forward", "step"), map(min, zip(*pairs, strict=True)), strict=True))
        for kind, pairs in times.items()
    }


def measure_layer(geometry: str, shape: Any, args: argparse.Namespace) -> dict[str, Any]:
    in_width, width, stage, size = shape
    maps = torch.randn(args.batch, in_width, size, size, device=args.device)
    maps.requires_grad_(in_width > 3)
    steps = {
        kind: layer_step(make_layer(kind, shape, args.group), maps, args) for kind in args.kinds
    }
    case = f"{in_width}→{width} {'/'.join(map(str, stage))} @{size}"
    return {"case": case, "geometry": geometry, "times": in_turns(steps, args.repeats)}


def measure_model(name: str, geometry: str, args: argparse.Namespace) -> dict[str, Any]:
    steps = {kind: model_step(make_model(kind, name, geometry, args), args) for kind in args.kinds}
    case = f"{name} @{args.size}"
    return {"case": case, "geometry": geometry, "times": in_turns(steps, args.repeats)}


def rows(result: dict[str, Any]) -> list[list[str]]:
    plain = result["times"].get("plain")
    return [
        [
            result["case"], result["geometry"], kind,
            *(f"{1000 * taken[key]:.1f}" for key in ("forward", "step")),
            *(f"{taken[key] / plain[key]:.2f}" if plain else "" for key in ("forward", "step")),
        ]
        for kind, taken in result["times"].items()
    ]  # fmt: skip


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    results = list[dict[str, Any]]()
    for geometry in args.geometries:
        for shape in layer_shapes(geometry, args.size) if args.layers else ():
            results.append(measure_layer(geometry, shape, args))
            print(*(" ".join(row) for row in rows(results[-1])), sep="\n", flush=True)
        for name in args.models:
            results.append(measure_model(name, geometry, args))
            print(*(" ".join(row) for row in rows(results[-1])), sep="\n", flush=True)
    headers = ["case", "geometry", "kind", "forward ms", "step ms", "× forward", "× step"]
    print(text_table(headers, [row for result in results for row in rows(result)]))
    command = shlex.join(["python", "benchmarks/roto_conv.py", *sys.argv[1:]])
    keys = ("device", "batch", "group", "precision", "compiled", "repeats", "threads", "clock")
    shared = {key: getattr(args, key) for key in keys}
    append_record(args.records, command, {**shared, "results": results})


if __name__ == "__main__":
    main()
