"""The flagship beside a plain vision transformer of the same total width and depth, in one run.

    python benchmarks/flagship_speed.py                                  small, on this machine
    python benchmarks/flagship_speed.py --device cuda --sizes 768:196 1024:1024

For each size WIDTH:TOKENS, compiled, in bfloat16 on a GPU: milliseconds of a training step
(forward, backward, optimiser) and of inference, for the plain model and for the exact D4 model in
both bases, and their ratio.  What is compiled is the block, once for all blocks of a model: whole
models of twelve take minutes.  Weights are float32 and cast in every call, as autocast does; the
flagship's are also brought into its basis.  On a GPU a step is recorded as a CUDA graph and
replayed.  Models take turns, so that a slow moment of the machine hits all.
Records go to benchmarks/flagship_speed.jsonl.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path

import torch
from meters import medians_in_turns, step_and_inference
from records import append_record
from torch import nn

from turnwise.layers.transformer.block import GroupTokenBlock
from turnwise.layers.transformer.plain import TransformerBlock
from turnwise.models import create_model
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
PATCH = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="+", default=["64:16"], help="WIDTH:TOKENS")
    parser.add_argument("--group", default="D4")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--head", type=int, default=64, help="channels of a head, plain model")
    parser.add_argument("--pose-heads", type=int, default=1, help="heads of each pose, flagship")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--records", type=Path, default=HERE / "flagship_speed.jsonl")
    return parser.parse_args()


def models(args: argparse.Namespace, width: int, tokens: int) -> dict[str, nn.Module]:
    """The plain model, and the flagship of as many channels, in both bases."""
    size = PATCH * math.isqrt(tokens)
    task = {"num_classes": 1000, "in_chans": 3, "image_size": size}
    flagship = {
        "group": args.group,
        "width": width,
        "depths": [args.depth],
        "heads": args.pose_heads,
        "layer_scale": 0.0,  # the plain model has none
    }
    return {
        "plain": create_model("vit", patch=PATCH, width=width, depth=args.depth,
                              heads=max(1, width // args.head), **task),
        **{basis: create_model("turnwise_vit_base", basis=basis, **flagship, **task)
           for basis in ("regular", "irreps")},
    }  # fmt: skip


def measure(args: argparse.Namespace, width: int, tokens: int) -> dict[str, dict[str, float]]:
    """Model -> work -> the median of its seconds."""
    device, size = torch.device(args.device), PATCH * math.isqrt(tokens)
    images = torch.rand(args.batch, 3, size, size, device=device)
    labels = torch.randint(0, 1000, (args.batch,), device=device)
    rivals = {
        name: step_and_inference(model, blocks_of(model), images, labels)
        for name, model in models(args, width, tokens).items()
    }
    return medians_in_turns(rivals, device, args.repeats)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    kinds = (TransformerBlock, GroupTokenBlock)
    return [part for part in model.modules() if isinstance(part, kinds)]


def main() -> None:
    args = arguments()
    rows, results = [], []
    for size in args.sizes:
        width, tokens = map(int, size.split(":"))
        figures = measure(args, width, tokens)
        results.append({"width": width, "tokens": tokens, "figures": figures})
        for name, kinds in figures.items():
            ratios = [f"{kinds[k] / figures['plain'][k]:.2f}" for k in ("step", "inference")]
            times = [f"{1000 * kinds[k]:.2f}" for k in ("step", "inference")]
            rows.append([f"{width} x {tokens}", name, times[0], ratios[0], times[1], ratios[1]])
    headers = ["width x tokens", "model", "step ms", "of plain", "inference ms", "of plain"]
    print(text_table(headers, rows))
    command = shlex.join(["python", "benchmarks/flagship_speed.py", *sys.argv[1:]])
    settings = {k: getattr(args, k) for k in ("group", "depth", "batch", "head", "pose_heads")}
    append_record(args.records, command, settings | {"results": results})


if __name__ == "__main__":
    main()
