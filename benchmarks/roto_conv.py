"""RotoConv, all algorithms side by side, and whole models beside their plain twins.

    python benchmarks/roto_conv.py                                    on this machine's CPU
    python benchmarks/roto_conv.py --device cuda --compiled --precision bf16 --batch 96
    python benchmarks/roto_conv.py --device cuda --compiled --precision bf16 --batch 96 \\
        --no-layers --geometries even --kinds plain published auto oriented

For each convolution of a Roto-MetaFormer (by geometry) and for each model: seconds of a forward
pass without gradients and of a whole training step (for models with the optimiser's part), for the
plain one, the published form ("legacy" by copies, as published), each algorithm of the aligned form
and, for models, a first stage on the group ("oriented"), all in one process, in turns, the best of
--repeats, each --steps in a row.  Ratios are to the plain one.  On a CPU that others use, too,
--clock cpu with one thread counts the seconds that the processor worked.  --compiled allows no
break in a graph.  --narrow makes small networks, only to see that all runs.  Records go to
benchmarks/roto_conv.jsonl.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from meters import ready
from records import append_record
from torch import nn

from turnwise.geometry.sizes import Stage, remainder_of, size_after
from turnwise.layers.roto.conv import RotoConv2d
from turnwise.models import create_model
from turnwise.models.metaformer import DESIGNS, GEOMETRIES

HERE = Path(__file__).parent
PUBLISHED = {"reduce": "legacy", "algorithm": "copies"}
KINDS = {
    "plain": None,
    "published": PUBLISHED,
    "copies": {"algorithm": "copies"},
    "bank": {"algorithm": "bank"},
    "fourier": {"algorithm": "fourier"},
    "auto": {"algorithm": "auto"},
    "oriented": {"oriented": 1},
}
LINE = "{:<25} {:<9} {:<9} {:>10} {:>9} {:>9} {:>7}"
NARROW = {"widths": [8, 16, 24, 24], "depths": [1, 1, 1, 1]}
WORKS = ("forward", "step")
Works = dict[str, Callable[[], None]]
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
    parser.add_argument("--compiled", action="store_true", help="by torch.compile, in one graph")
    parser.add_argument("--cuda-graphs", action="store_true", help="recorded, and replayed")
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--layers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--narrow", action="store_true", help="not a measurement: a check")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, help="in a row; by default 1, on CUDA 20")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--records", type=Path, default=HERE / "roto_conv.jsonl")
    args = parser.parse_args()
    args.steps = args.steps or (20 if args.device == "cuda" else 1)
    return args


def layer_shapes(geometry: str, size: int, narrow: bool) -> list[tuple[int, int, Stage, int]]:
    """(in_width, width, stage, size) of the four convolutions of the small models."""
    first, later = GEOMETRIES[geometry]
    shapes, old = [], 3
    widths = NARROW["widths"] if narrow else DESIGNS["metaformer_s12_pppa"].widths
    for number, width in enumerate(widths):
        stage = later if number else first
        shapes.append((old, width, stage, size))
        size, old = size_after(size, stage), width
    return shapes


def make_layer(kind: str, shape: tuple[int, int, Stage, int], group: str) -> nn.Module:
    in_width, width, stage, size = shape
    options = KINDS[kind]
    if options is None:
        return nn.Conv2d(in_width, width, *stage)
    return RotoConv2d(
        group, in_width, width, *stage, remainder=remainder_of(size, stage), **options
    )


def compiled(module: nn.Module, args: argparse.Namespace) -> nn.Module:
    """Move the module, and with --compiled compile it as a function (`module.compile` skips torch's
    own layers).
    """
    module = module.to(args.device)
    return cast(nn.Module, torch.compile(module, fullgraph=True)) if args.compiled else module


def autocast(args: argparse.Namespace) -> torch.autocast:
    kind = PRECISIONS[args.precision]
    cached = not args.cuda_graphs  # or a replay would take weights as they were cast
    return torch.autocast(args.device, kind, enabled=kind is not None, cache_enabled=cached)


def layer_works(layer: nn.Module, maps: torch.Tensor, args: argparse.Namespace) -> Works:
    """A forward pass; and forward and backward, to the input unless that is a picture."""
    layer = compiled(layer, args)

    def forward() -> None:
        with torch.no_grad(), autocast(args):
            layer(maps)

    def step() -> None:
        with autocast(args):
            out = layer(maps)
        out.backward(torch.ones_like(out))
        layer.zero_grad()
        maps.grad = None

    return {"forward": forward, "step": step}


def make_model(kind: str, name: str, geometry: str, args: argparse.Namespace) -> nn.Module:
    options = KINDS[kind]
    shape: dict[str, Any] = {} if name.startswith("resnet") else {"geometry": geometry}
    if args.narrow:
        shape |= NARROW | ({} if name.startswith("resnet") else {"head_width": 4})
    return create_model(
        name if options is None else f"roto_{name}",
        args.group, num_classes=7, in_chans=3, image_size=args.size,
        **(options or {}), **shape,
    )  # fmt: skip


def model_works(model: nn.Module, args: argparse.Namespace) -> Works:
    """A forward pass, and a training step."""
    model = compiled(model, args)
    images = torch.rand(args.batch, 3, args.size, args.size, device=args.device)
    labels = torch.randint(0, 7, (args.batch,), device=args.device)
    on_gpu = args.device == "cuda"
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=on_gpu or None, capturable=on_gpu
    )

    def forward() -> None:
        with torch.no_grad(), autocast(args):
            model(model.preprocess(images))  # type: ignore[operator]

    def step() -> None:
        with autocast(args):
            loss = F.cross_entropy(model(model.preprocess(images)), labels)  # type: ignore[operator]
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return {"forward": forward, "step": step}


def now(args: argparse.Namespace) -> float:
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if args.clock == "cpu" else time.perf_counter()


def seconds(work: Callable[[], None], args: argparse.Namespace) -> float:
    """Of one call, of several in a row: the device is never waited for in between."""
    start = now(args)
    for _ in range(args.steps):
        work()
    return (now(args) - start) / args.steps


def in_turns(kinds: dict[str, Works], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The best times of each, taken in turns, so that a busy machine is unfair to none."""
    found: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for what in args.works:
        device = torch.device(args.device if args.cuda_graphs else "cpu")
        prepared = {kind: ready(works[what], device) for kind, works in kinds.items()}
        for _ in range(args.repeats):
            for kind, work in prepared.items():
                taken = seconds(work, args)
                found[kind][what] = min(taken, found[kind].get(what, taken))
    return found


def measure_layer(geometry: str, shape: Any, args: argparse.Namespace) -> dict[str, Any]:
    in_width, width, stage, size = shape
    torch.compiler.reset()  # or graphs of earlier cases count against the limit of one function
    maps = torch.randn(args.batch, in_width, size, size, device=args.device)
    maps.requires_grad_(in_width > 3)
    kinds = [kind for kind in args.kinds if kind != "oriented"]
    works = {kind: layer_works(make_layer(kind, shape, args.group), maps, args) for kind in kinds}
    case = f"{in_width}→{width} {'/'.join(map(str, stage))} @{size}"
    return {"case": case, "geometry": geometry, "times": in_turns(works, args)}


def measure_model(name: str, geometry: str, args: argparse.Namespace) -> dict[str, Any]:
    torch.compiler.reset()
    works = {kind: model_works(make_model(kind, name, geometry, args), args) for kind in args.kinds}
    return {"case": f"{name} @{args.size}", "geometry": geometry, "times": in_turns(works, args)}


def lines(result: dict[str, Any]) -> list[str]:
    """What was measured, and its ratios to the plain one if that was asked for."""
    plain = result["times"].get("plain")
    return [
        LINE.format(
            result["case"], result["geometry"], kind,
            *(f"{1000 * taken[key]:.2f}" if key in taken else "" for key in WORKS),
            *(f"{taken[key] / plain[key]:.2f}" if plain and key in taken else "" for key in WORKS),
        )
        for kind, taken in result["times"].items()
    ]  # fmt: skip


def measurements(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for geometry in args.geometries:
        shapes = layer_shapes(geometry, args.size, args.narrow) if args.layers else []
        yield from (measure_layer(geometry, shape, args) for shape in shapes)
        yield from (measure_model(name, geometry, args) for name in args.models)


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    torch._dynamo.config.recompile_limit = 64  # all kinds of a layer compile one function
    print(LINE.format("case", "geometry", "kind", "forward ms", "step ms", "× forward", "× step"))
    results = list[dict[str, Any]]()
    for result in measurements(args):
        results.append(result)
        print(*lines(result), sep="\n", flush=True)
    command = shlex.join(["python", "benchmarks/roto_conv.py", *sys.argv[1:]])
    keys = ("device", "batch", "group", "precision", "compiled", "cuda_graphs", "repeats", "steps",
            "threads", "clock")  # fmt: skip
    shared = {key: getattr(args, key) for key in keys}
    if not args.narrow:
        append_record(args.records, command, {**shared, "results": results})


if __name__ == "__main__":
    main()
