"""turnwise test-shifted: does the answer change when the object moves?"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from torch import nn

    from turnwise.data import Examples
    from turnwise.evaluation.shifts import ShiftFigures, ShiftTest

ANOTHER_PLOT = "choose another place with --plot"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders of turnwise train")
    parser.add_argument("--output", required=True, help="the table, as CSV")
    parser.add_argument(
        "--labels", nargs="+", default=["1"], help="numbers of classes, or all (default: 1)"
    )
    parser.add_argument(
        "--min-shift", type=int, default=8, help="pixels to move to both sides (default: 8)"
    )
    parser.add_argument(
        "--axis", default="horizontal", choices=["horizontal", "vertical", "both"],
        help="which way to move (default: horizontal)",
    )  # fmt: skip
    parser.add_argument(
        "--circular", action="store_true", help="move all pictures round, with their background"
    )
    parser.add_argument("--by-class", action="store_true", help="rows for each class, too")
    parser.add_argument("--split", default="test", choices=["test", "val"], help="(default: test)")
    parser.add_argument("--plot", help="accuracy against shift, as .png or .svg (of one axis)")
    parser.add_argument("--batch-size", type=int, default=256, help="(default: 256)")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")


def test_shifted(args: argparse.Namespace) -> int:
    """Move the objects of test pictures over their blank margins and watch accuracy and answers.
    As published: class 1, along the rows, pictures with more than --min-shift blank columns."""
    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation.shifts import evaluate_shifts, write_shift_table

    how, device = _plan(args), chosen_device(args.device)
    _require_places(args)
    rows: list[ShiftFigures] = []
    for run, model, pictures in _subjects(args, how):  # all read: nothing is refused later
        rows += evaluate_shifts(
            model.to(device), pictures, how,
            run_dir=run, batch_size=args.batch_size, progress=sys.stderr.isatty(),
        )  # fmt: skip
        model.cpu()
    write_shift_table(rows, Path(args.output))
    if args.plot:
        _plot(rows, args)
    print(f"{summary(rows)}\n\nwritten to {args.output}")  # last: who reads it may leave
    if args.plot:
        print(f"drawn in {args.plot}")
    return 0


test_shifted.__name__ = "test-shifted"


def _plan(args: argparse.Namespace) -> "ShiftTest":
    """What is moved and how far, as far as the words alone can tell."""
    from turnwise.evaluation.shifts import AXES, ShiftTest

    require(args.batch_size >= 1, f"--batch-size {args.batch_size} must be at least 1.")
    return ShiftTest(
        labels=_labels(args.labels), min_shift=args.min_shift, circular=args.circular,
        by_class=args.by_class, axes=tuple(AXES) if args.axis == "both" else (args.axis,),
    )  # fmt: skip


def _labels(words: list[str]) -> tuple[int, ...] | None:
    if words == ["all"]:
        return None
    said = " ".join(words)
    require("all" not in words, f"--labels {said}: all stands alone; leave the rest out.")
    for word in words:
        require(word.isdecimal(), f"--labels {word} must be a number of a class, or all.")
    return tuple(sorted({int(word) for word in words}))


def _require_places(args: argparse.Namespace) -> None:
    """Raise where table or plot could not be written, or the one would replace the other."""
    from turnwise.files import require_writable

    require_writable(Path(args.output))
    if args.plot is None:
        return
    suffix = Path(args.plot).suffix.lower()
    require(suffix in (".png", ".svg"), f"--plot {args.plot} must end in .png or .svg.")
    require(args.axis != "both", "--plot draws one axis; add --axis horizontal or vertical.")
    require(
        Path(args.plot).resolve() != Path(args.output).resolve(),
        f"--plot {args.plot} would replace the table of --output; give the two different names.",
    )
    require_writable(Path(args.plot), ANOTHER_PLOT)


def _subjects(
    args: argparse.Namespace, how: "ShiftTest"
) -> "list[tuple[str, nn.Module, Examples]]":
    """Every run, its model and its pictures, of which some can be moved along every axis."""
    from turnwise.evaluation.shifts import label_sets, movable_along

    _refuse_twice(args.runs)
    subjects, curves = [], 0
    for run in args.runs:
        model, pictures = _model_and_pictures(run, how.labels, args)
        chosen = movable_along(pictures, how)
        curves += sum(len(label_sets(part, how)) for part in chosen.values())
        subjects.append((run, model, pictures))
    if args.plot:
        from turnwise.reports.figures.shifts import require_few_curves

        require_few_curves(curves)
    return subjects


def _refuse_twice(runs: list[str]) -> None:
    """One run counts once, also where a link leads to it."""
    first: dict[Path, str] = {}
    for run in runs:
        before = first.get(Path(run).resolve())
        said = run if before == run else f"{run} is {before}, which"
        require(before is None, f"{said} is given twice, and would count twice; leave one out.")
        first[Path(run).resolve()] = run


def _model_and_pictures(
    run: str, labels: tuple[int, ...] | None, args: argparse.Namespace
) -> "tuple[nn.Module, Examples]":
    from turnwise.models import load
    from turnwise.runs.train import load_run_data
    from turnwise.training.recipe import read_recipe

    recipe = read_recipe(Path(run) / "recipe.yaml")
    model = load(run)
    dataset = load_run_data(Path(run), recipe, args.data_dir)
    wrong = [label for label in labels or () if label >= len(dataset.classes)]
    if wrong:
        most = len(dataset.classes) - 1
        raise InputError(f"--labels {wrong[0]}: {dataset.name} has the classes 0 to {most}.")
    return model, dataset.test if args.split == "test" else dataset.val


def summary(rows: "list[ShiftFigures]") -> str:
    """One line for each run, axis and choice of labels."""
    from turnwise.reports.tables import format_error, format_percent, text_table

    groups: dict[tuple[str, str, str], list[ShiftFigures]] = {}
    for row in rows:
        groups.setdefault((row.run_dir, row.axis, row.labels), []).append(row)
    lines = []
    for key, part in groups.items():
        accuracy = [row.accuracy_mean for row in part]
        shares = (
            next(row.accuracy_mean for row in part if row.shift == 0), min(accuracy),
            sum(accuracy) / len(accuracy), min(row.agreement for row in part),
        )  # fmt: skip
        said = [format_percent(share, digits=2) for share in shares]
        change = format_error(max(row.logit_change for row in part))
        lines.append([*key, str(part[0].pictures), *said, change])
    heads = ["run", "axis", "labels", "pictures", "unmoved", "worst", "mean", "same", "logits"]
    return text_table(heads, lines)


def _plot(rows: "list[ShiftFigures]", args: argparse.Namespace) -> None:
    from turnwise.reports.figures.plots import figure_file
    from turnwise.reports.figures.shifts import accuracy_against_shift, curve_names

    drawn: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        shifts, values = drawn.setdefault((row.run_dir, row.labels), ([], []))
        shifts.append(float(row.shift))
        values.append(row.accuracy_mean)
    curves = dict(zip(curve_names(list(drawn)), drawn.values(), strict=True))
    figure_file(accuracy_against_shift(curves, args.axis), Path(args.plot), ANOTHER_PLOT)
