"""The shift tests of trained Performers, one record for each run in benchmarks/shifts.jsonl.

    python benchmarks/performer_shifts.py runs/mnist_relative_performer/seed_0 --device cuda

As published: the pictures of class 1 that can move 8 pixels to both sides, along the rows.  Beyond:
all classes by 4 pixels, along both axes.  Where no picture has blank margins (CIFAR-10) all are
moved round instead, and the record says so.  A run is known by the name of its recipe, that of the
folder around it.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from records import append_record

from turnwise.data import Examples
from turnwise.errors import InputError
from turnwise.evaluation.shifts import AXES, ShiftFigures, ShiftTest, evaluate_shifts
from turnwise.runs import Run

HERE = Path(__file__).parent
TESTS = {
    "class 1": ShiftTest(labels=(1,), min_shift=8),
    "all classes": ShiftTest(labels=None, min_shift=4, axes=tuple(AXES)),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--records", type=Path, default=HERE / "shifts.jsonl")
    return parser.parse_args()


def summary(rows: list[ShiftFigures], circular: bool) -> dict[str, Any]:
    """What the table shows, and the accuracy at every shift of every axis."""
    unmoved = {row.axis: row.accuracy_mean for row in rows if row.shift == 0}
    curves = {
        axis: {str(row.shift): row.accuracy_mean for row in rows if row.axis == axis}
        for axis in unmoved
    }
    return {
        "pictures": min(row.images for row in rows),
        "circular": circular,
        "unmoved": min(unmoved.values()),
        "worst": min(row.accuracy_mean for row in rows),
        "mean": sum(row.accuracy_mean for row in rows) / len(rows),
        "agreement": min(row.agreement for row in rows),
        "logit_change": max(row.logit_change for row in rows),
        "accuracy": curves,
    }


def examined(
    model: torch.nn.Module, pictures: Examples, test: ShiftTest, batch: int
) -> dict[str, Any]:
    progress = sys.stderr.isatty()
    try:
        rows = evaluate_shifts(model, pictures, test, batch_size=batch, progress=progress)
        return summary(rows, circular=False)
    except InputError:  # no blank margins
        round_ = ShiftTest(test.labels, test.min_shift, test.axes, circular=True)
        rows = evaluate_shifts(model, pictures, round_, batch_size=batch, progress=progress)
        return summary(rows, circular=True)


def main() -> None:
    args = arguments()
    torch.backends.cudnn.allow_tf32 = False
    command = shlex.join(["python", "benchmarks/performer_shifts.py", *sys.argv[1:]])
    for run in map(Run, args.runs):
        model, test = run.model().to(args.device), run.dataset(args.data_dir).test
        tests = {name: examined(model, test, how, args.batch_size) for name, how in TESTS.items()}
        recipe = run.path.resolve().parent.name
        figures = {"recipe": recipe, "seed": run.recipe.seed, "tests": tests}
        append_record(args.records, command, figures)
        for name, found in tests.items():
            unmoved, worst = 100 * found["unmoved"], 100 * found["worst"]
            print(f"{run.path}: {name}, {found['pictures']} pictures: {unmoved:.2f} % unmoved, "
                  f"{worst:.2f} % at worst")  # fmt: skip


if __name__ == "__main__":
    main()
