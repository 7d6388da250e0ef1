"""Is the input pipeline the bottleneck?  Pictures per second of the loader alone and of training.

    python benchmarks/input_pipeline.py [--device cuda]

The loader shuffles, gathers, scales and moves (rotation, shift, scale, mirror, noise) pictures of
the embedded digits; the training step is that of each model, forward, backward and optimiser, on
batches that are ready.  Records go to benchmarks/input_pipeline.jsonl.
"""

import argparse
import shlex
import sys
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from meters import seconds_per_call
from records import append_record

from turnwise.data import load_dataset
from turnwise.data.augment import Augmentation, with_policy
from turnwise.data.batches import TrainingBatches
from turnwise.groups import PlanarGroup
from turnwise.models import create_model
from turnwise.reports.tables import text_table

MODELS = {"vit": {"width": 64, "depth": 3}, "orbit_vit": {"width": 64, "depth": 3, "group": "C4"}}
MOVES = {
    "nothing": Augmentation(),
    "everything": Augmentation(rotation=180.0, shift=2.0, scale=0.1, mirror=True, noise=0.05),
    "the standard policy": Augmentation(**with_policy({"policy": "standard"})).for_group(
        PlanarGroup.named("D4"), PlanarGroup.named("D4")
    ),
}


def loader_rate(batch_size: int, how: Augmentation, device: torch.device) -> float:
    """Pictures per second of the loader alone, over whole epochs."""
    batches = TrainingBatches(
        load_dataset("digits").train, batch_size, augmentation=how, seed=0, device=device
    )

    def epoch() -> None:
        for _ in batches:
            pass

    return len(batches) * batch_size / seconds_per_call(epoch, device, repeats=5, warmup=1)


def training_rate(name: str, batch_size: int, device: torch.device) -> float:
    """Pictures per second of training steps on batches that are ready."""
    torch.manual_seed(0)
    model = create_model(name, **MODELS[name]).to(device)
    optimiser = torch.optim.AdamW(model.parameters())
    batches = TrainingBatches(
        load_dataset("digits").train, batch_size, augmentation=Augmentation(), seed=0, device=device
    )
    ready = cycle(list(batches)[:4])

    def step() -> None:
        images, labels = next(ready)
        optimiser.zero_grad()
        F.cross_entropy(model(model.preprocess(images)), labels).backward()
        optimiser.step()

    return batch_size / seconds_per_call(step, device, repeats=10, warmup=3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--records", type=Path, default=Path(__file__).parent / "input_pipeline.jsonl"
    )
    args = parser.parse_args()
    device = torch.device(args.device)
    figures = {
        f"loader, moved by {name}": loader_rate(args.batch_size, how, device)
        for name, how in MOVES.items()
    }
    figures |= {
        f"training step of {name}": training_rate(name, args.batch_size, device) for name in MODELS
    }
    command = shlex.join(["python", "benchmarks/input_pipeline.py", *sys.argv[1:]])
    append_record(
        args.records, command, {"batch_size": args.batch_size, "pictures_per_second": figures}
    )
    print(
        text_table(["what", "pictures per second"], [[k, f"{v:.0f}"] for k, v in figures.items()])
    )


if __name__ == "__main__":
    main()
