"""Whether trained models answer the same at every angle, side by side, on the same pictures.

    python benchmarks/turn_agreement.py runs/rotmnist_turnwise_vit_nano_c16/seed_0 \\
        runs/rotmnist_vit/seed_0 --device cuda

Every picture is turned once round, in steps of 5 degrees.  For each run: the accuracy upright, its
mean and least over the angles, the share of pictures with one answer at all of them, and the share
of single answers that are the upright one.  The first pictures of the test split are taken, after
weights and recipe are fixed: the figures select nothing.  Records go to
benchmarks/turn_agreement.jsonl.
"""

import argparse
import shlex
import sys
from pathlib import Path

from records import append_record

from turnwise.evaluation.transformations import (
    accuracy_by_view,
    agreement,
    equal_angles,
    predict_over_angles,
)
from turnwise.inference import Predictor
from turnwise.inference.loading import fill_of
from turnwise.reports.tables import format_percent, text_table
from turnwise.runs import Run

HERE = Path(__file__).parent
COLUMNS = ("upright", "mean", "least", "same at all angles", "same at one angle")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--angles", type=int, default=72)
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--records", type=Path, default=HERE / "turn_agreement.jsonl")
    return parser.parse_args()


def figures_of(run: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return what the run's best weights predict for the rotated images."""
    test = Run(run).dataset(args.data_dir).test
    images, labels = test.images[: args.pictures], test.labels[: args.pictures]
    predictor = Predictor(Run(run).model().to(args.device), batch_size=args.batch_size)
    angles, progress = equal_angles(args.angles), sys.stderr.isatty()
    rotated = predict_over_angles(predictor, images, angles, fill=fill_of(run), progress=progress)
    accuracy, predicted = accuracy_by_view(rotated, labels), rotated.argmax(-1)
    single = float((predicted == predicted[0]).double().mean())
    mean = sum(accuracy) / len(accuracy)
    return dict(
        zip(COLUMNS, (accuracy[0], mean, min(accuracy), agreement(rotated), single), strict=True)
    )


def main() -> None:
    args = arguments()
    found = {f"{run.parent.name}/{run.name}": figures_of(run, args) for run in args.runs}
    rows = [
        [name, *(format_percent(figures[c], 2) for c in COLUMNS)] for name, figures in found.items()
    ]
    print(text_table([f"{args.angles} angles", *COLUMNS], rows))
    command = shlex.join(["python", "benchmarks/turn_agreement.py", *sys.argv[1:]])
    settings = {"angles": args.angles, "pictures": args.pictures}
    append_record(args.records, command, settings | {"runs": found})


if __name__ == "__main__":
    main()
