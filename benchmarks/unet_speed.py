"""The equivariant U-Net beside the plain one of equal width, in one run.

    python benchmarks/unet_speed.py                                        small, on this machine
    python benchmarks/unet_speed.py --device cuda --size 256 --batch 16 --compile

Milliseconds of a training step (forward, backward, optimiser) and of inference, the median of
`--repeats` calls; models take turns, so that a slow moment of the machine hits both.  In bfloat16
on a GPU, by autocast.  Also the plain network with test-time augmentation over the group, whose
inference is that of |G| views.  Records go to benchmarks/unet_speed.jsonl.
"""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from meters import now, passes
from records import append_record
from torch import nn

from turnwise.models import create_model, orbit
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
WARMUP = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group", default="D4")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--blocks", type=int, default=2, help="of attention, in the equivariant")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--records", type=Path, default=HERE / "unet_speed.jsonl")
    return parser.parse_args()


def models(args: argparse.Namespace) -> dict[str, nn.Module]:
    task = {"num_classes": 3, "in_chans": 3, "image_size": args.size, "widths": args.widths}
    task["group"] = args.group
    plain = create_model("unet", **task)
    equivariant = create_model("turnwise_unet_small", blocks=args.blocks, **task)
    if args.blocks == 0:
        return {"plain": plain, "equivariant": equivariant}
    convolutions = create_model("turnwise_unet_small", blocks=0, **task)
    return {"plain": plain, "equivariant": equivariant, "without attention": convolutions}


def works(model: nn.Module, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return a training step and an inference, ready to be called."""
    device = torch.device(args.device)
    model.to(device)
    if args.compile:
        model.compile()
    images = torch.rand(args.batch, 3, args.size, args.size, device=device)
    labels = torch.randint(0, 3, (args.batch, args.size, args.size), device=device)
    step, infer = passes(model, images, labels)
    return {"step": step, "inference": infer}


def main() -> None:
    args = arguments()
    device, rivals = torch.device(args.device), models(args)
    jobs = {name: works(model, args) for name, model in rivals.items()}
    augmented = orbit(create_model("unet", **rivals["plain"].config.options), args.group)
    jobs["plain, every view"] = {"inference": works(augmented, args)["inference"]}
    times: dict[tuple[str, str], list[float]] = {}
    for kind in ("step", "inference"):
        for turn in range(WARMUP + args.repeats):
            for name, work in jobs.items():
                if kind in work:
                    start = now(device)
                    work[kind]()
                    if turn >= WARMUP:
                        times.setdefault((name, kind), []).append(now(device) - start)
    figures = {
        name: {kind: median(times[name, kind]) for kind in work} for name, work in jobs.items()
    }
    rows = [
        [name, *(text for kind in ("step", "inference") for text in shown(figures, name, kind))]
        for name in figures
    ]
    print(text_table(["model", "step ms", "of plain", "inference ms", "of plain"], rows))
    command = shlex.join(["python", "benchmarks/unet_speed.py", *sys.argv[1:]])
    settings = {
        k: getattr(args, k) for k in ("group", "widths", "blocks", "size", "batch", "compile")
    }
    append_record(args.records, command, settings | {"figures": figures})


def shown(figures: dict[str, dict[str, float]], name: str, kind: str) -> list[str]:
    """Return the milliseconds and their ratio to the plain network's."""
    if kind not in figures[name]:
        return ["", ""]
    seconds = figures[name][kind]
    return [f"{1000 * seconds:.1f}", f"{seconds / figures['plain'][kind]:.2f}"]


if __name__ == "__main__":
    main()
