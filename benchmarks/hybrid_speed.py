"""A training step of the hybrid beside one of GE-ViT, on the same batch, in one run.

    python benchmarks/hybrid_speed.py                                           on this machine
    python benchmarks/hybrid_speed.py --device cuda --compiled --batch-size 128

Both networks are those of their recipes (rotmnist_hybrid_c4, rotmnist_ge_vit_p4), with p4, in
training: forward, backward, AdamW; on a GPU in bfloat16, and recorded as a CUDA graph: else small
networks wait for their launches.  GE-ViT has own queries there, of cost |G|²; it is also timed with
all queries, as published, of cost |G|³.
They take turns, so that a slow moment of the machine hits all; on a CPU with one thread, whose own
time is read, so that what else the machine does is not counted.  A training of the recipe is the
step times the pictures and epochs of the recipe; accuracies are in recipes.jsonl.  Records go to
benchmarks/hybrid_speed.jsonl.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from meters import now, peak, ready, used
from records import append_record
from torch import nn

from turnwise.models import create_model
from turnwise.reports.tables import text_table
from turnwise.training.recipe import Recipe, read_recipe

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
PICTURES = 10_000  # in an epoch of rotated MNIST
ROWS = {
    "hybrid": ("rotmnist_hybrid_c4", {}),
    "ge_vit": ("rotmnist_ge_vit_p4", {}),
    "ge_vit, all queries": ("rotmnist_ge_vit_p4", {"queries": "all"}),
}

Step = Callable[[], None]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    parser.add_argument("--records", type=Path, default=HERE / "hybrid_speed.jsonl")
    return parser.parse_args()


def seconds(step: Step, device: torch.device) -> float:
    """What a step takes: of the clock on a GPU, of this process on a CPU."""
    read = time.process_time if device.type == "cpu" else lambda: now(device)
    start = read()
    step()
    return read() - start


def training_step(recipe: Recipe, own: dict[str, str], args: argparse.Namespace) -> Step:
    """One step of the recipe's network, ready to be called."""
    device = torch.device(args.device)
    torch.manual_seed(0)
    options = {**recipe.model.options, **own}
    model: nn.Module = create_model(recipe.model.name, group=recipe.model.group, **options)
    model.to(device).train()
    if args.compiled:
        model.compile()
    images = torch.rand(args.batch_size, 1, 28, 28, device=device)
    labels = torch.arange(args.batch_size, device=device) % 10
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=on_gpu or None, capturable=on_gpu
    )

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Row -> the median of its seconds, its bytes at most, and the seconds of a whole training."""
    device = torch.device(args.device)
    recipes = {name: read_recipe(RECIPES / f"{stem}.yaml") for name, (stem, _) in ROWS.items()}
    steps, memory = {}, {}
    for name, (_, own) in ROWS.items():
        print(f"first steps: {name}", file=sys.stderr)
        steps[name] = training_step(recipes[name], own, args)
        before = used(device)
        steps[name] = ready(steps[name], device)  # what is made once, and compiled
        memory[name] = peak(device) - before
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    for number in range(args.repeats):
        print(f"round {number + 1} of {args.repeats}", file=sys.stderr)
        for name, step in steps.items():
            times[name].append(seconds(step, device))
    return {
        name: {
            "step_seconds": median(times[name]),
            "step_bytes": memory[name],
            "epochs": recipes[name].trainer.max_epochs,
            "training_seconds": median(times[name])
            * recipes[name].trainer.max_epochs
            * (PICTURES / args.batch_size),
        }
        for name in ROWS
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    rows = measure(args)
    slow = rows["ge_vit"]
    table = [
        [name, f"{1000 * row['step_seconds']:.1f}", f"{row['step_bytes'] / 2**20:.0f}",
         f"{row['step_seconds'] / slow['step_seconds']:.3f}",
         f"{row['training_seconds'] / slow['training_seconds']:.3f}"]
        for name, row in rows.items()
    ]  # fmt: skip
    print(text_table(["", "step ms", "MiB", "step, of GE-ViT's", "training, of GE-ViT's"], table))
    command = shlex.join(["python", "benchmarks/hybrid_speed.py", *sys.argv[1:]])
    figures = {
        "device": args.device, "batch_size": args.batch_size, "compiled": args.compiled,
        "rows": rows,
    }  # fmt: skip
    append_record(args.records, command, figures)


if __name__ == "__main__":
    main()
