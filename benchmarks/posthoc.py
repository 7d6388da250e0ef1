"""Trained models in orbits, without any further training: every combination, in one pass.

    python benchmarks/posthoc.py rotmnist_vit --seeds 0 1 2 --group C16 --mask --device cuda

Takes the runs that benchmarks/run_recipe.py left in runs/RECIPE/seed_N.  Each picture of the test
split is looked at from every pose once; what the model says to the views, or the vectors before its
head, are then combined in every way that has nothing to learn.  All combinations are reported and
none is chosen, so the test split selects nothing.  Records go to benchmarks/posthoc.jsonl.
"""

import argparse
import shlex
import sys
from pathlib import Path

import torch
from records import append_record
from torch import Tensor, nn

from turnwise.data import Examples
from turnwise.data.batches import EvaluationBatches
from turnwise.layers.orbit.combinations import OF_FEATURES, OF_LOGITS
from turnwise.models import orbit
from turnwise.models.orbits import Orbit
from turnwise.reports.tables import format_percent, text_table
from turnwise.runs import Run

HERE = Path(__file__).parent
BARE = "bare"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe", help="of the trained models, e.g. rotmnist_vit")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--group", default="C16")
    parser.add_argument("--mask", action="store_true", help="look at the disc in the picture alone")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")
    parser.add_argument("--records", type=Path, default=HERE / "posthoc.jsonl")
    return parser.parse_args()


def answers_of_all(model: Orbit, images: Tensor) -> dict[str, Tensor]:
    """Combination -> logits, from one look at each view; `model` combines features."""
    features = model.view_outputs(images)
    logits = model.head(features.flatten(0, 1)).unflatten(0, features.shape[:2])
    of_logits = {name: combine(logits) for name, combine in OF_LOGITS.items()}
    return of_logits | {
        name: model.head(combine(features)) for name, combine in OF_FEATURES.items()
    }


@torch.inference_mode()
def accuracies(
    bare: nn.Module, group: str, mask: bool, pictures: Examples, batch_size: int
) -> dict[str, float]:
    """The share of right answers of the model alone, and of every combination of its orbit."""
    bare = bare.eval()
    device = next(bare.parameters()).device
    model = orbit(bare, group, "mean_features", mask=mask).eval()
    right: dict[str, int] = {}
    batches = EvaluationBatches(pictures, batch_size, device=device)
    for number, (images, labels) in enumerate(batches, start=1):
        seen = model.preprocess(images)
        found = {BARE: bare(seen), **answers_of_all(model, seen)}
        for name, logits in found.items():
            hits = int((logits.argmax(dim=1) == labels).sum())
            right[name] = right.get(name, 0) + hits
        if sys.stderr.isatty():
            print(f"\r{number} of {len(batches)} batches", end="", file=sys.stderr)
    return {name: count / len(pictures) for name, count in right.items()}


def main() -> None:
    args = arguments()
    seeds = {}
    for seed in args.seeds:
        run = Run(args.runs / args.recipe / f"seed_{seed}")
        dataset, model = run.dataset(args.data_dir), run.model().to(args.device)
        seeds[str(seed)] = accuracies(model, args.group, args.mask, dataset.test, args.batch_size)
    figures = {
        "recipe": args.recipe, "group": args.group, "mask": args.mask, "seeds": seeds,
        "provenance": dataset.provenance,
    }  # fmt: skip
    command = shlex.join(["python", "benchmarks/posthoc.py", *sys.argv[1:]])
    append_record(args.records, command, figures)
    names = list(next(iter(seeds.values())))
    rows = [[name, *(format_percent(found[name], 2) for found in seeds.values())] for name in names]
    print(text_table([f"{args.recipe}, {args.group}", *(f"seed {s}" for s in seeds)], rows))


if __name__ == "__main__":
    main()
