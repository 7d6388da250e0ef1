"""turnwise test-shifted: does the prediction change when the object in the image shifts?"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.terminal import add_data_dir, add_device, chosen_device
from turnwise.errors import require

if TYPE_CHECKING:
    from torch import nn

    from turnwise.data import Examples
    from turnwise.evaluation.shifts import ShiftFigures, ShiftTest
    from turnwise.runs.run import Run

AXES = ("horizontal", "vertical")
ANOTHER_PLOT = "choose another --plot"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run folders")
    add("--output", required=True, metavar="FILE", help="the table, as CSV")
    add("--labels", nargs="+", default=["1"], help="class numbers, or all (default: 1)")
    add("--min-shift", type=int, default=8, help="largest shift in pixels (default: 8)")
    add("--axis", default="horizontal", choices=[*AXES, "both"],
        help="direction of the shift (default: horizontal)")  # fmt: skip
    add("--circular", action="store_true",
        help="shift all images cyclically, with their background")  # fmt: skip
    add("--by-class", action="store_true", help="add rows for each class")
    add("--split", default="test", choices=["test", "val"], help="(default: test)")
    add("--plot", metavar="FILE", help="accuracy against shift along one axis, as .png or .svg")
    add("--batch-size", type=int, default=256, help="(default: 256)")
    add_data_dir(parser)
    add_device(parser, "auto")


def test_shifted(args: argparse.Namespace) -> int:
    """Shift the objects in test images within their blank margins, and measure accuracy and
    predictions. The defaults are those of the published test: class 1, along the rows, images with
    more than --min-shift blank columns on both sides."""
    from turnwise.evaluation.shifts import evaluate_shifts, write_shift_table

    plan, device = _plan(args), chosen_device(args.device)
    _require_outputs(args)
    rows: list[ShiftFigures] = []
    for run, model, examples in _load_runs(args, plan):  # all at first: nothing fails later
        rows += evaluate_shifts(
            model.to(device), examples, plan,
            run_dir=str(run.path), batch_size=args.batch_size, progress=sys.stderr.isatty(),
        )  # fmt: skip
        model.cpu()
    write_shift_table(rows, Path(args.output))
    if args.plot:
        _plot(rows, args)
    print(f"{summary(rows)}\n\nwritten to {args.output}")  # last: the reader may have gone
    if args.plot:
        print(f"plotted in {args.plot}")
    return 0


def _plan(args: argparse.Namespace) -> "ShiftTest":
    """Return which images to shift, and how far."""
    from turnwise.evaluation.shifts import ShiftTest

    require(args.batch_size >= 1, f"--batch-size {args.batch_size} must be at least 1.")
    return ShiftTest(
        labels=_labels(args.labels), min_shift=args.min_shift, circular=args.circular,
        by_class=args.by_class, axes=AXES if args.axis == "both" else (args.axis,),
    )  # fmt: skip


def _labels(words: list[str]) -> tuple[int, ...] | None:
    if words == ["all"]:
        return None
    require("all" not in words, f"--labels {' '.join(words)}: give all, or numbers, not both.")
    for word in words:
        require(word.isdecimal(), f"--labels {word} must be the number of a class, or all.")
    return tuple(sorted({int(word) for word in words}))


def _require_outputs(args: argparse.Namespace) -> None:
    """Raise if the table or the plot could not be written, or would replace each other."""
    from turnwise.files import require_writable

    require_writable(Path(args.output), "choose another --output")
    if args.plot is None:
        return
    suffix = Path(args.plot).suffix.lower()
    require(suffix in (".png", ".svg"), f"--plot {args.plot} must end in .png or .svg.")
    require(args.axis != "both", "--plot shows one axis; add --axis horizontal or vertical.")
    require(
        Path(args.plot).resolve() != Path(args.output).resolve(),
        f"--plot {args.plot} would replace the table of --output; give the two different names.",
    )
    require_writable(Path(args.plot), ANOTHER_PLOT)


def _load_runs(
    args: argparse.Namespace, plan: "ShiftTest"
) -> "list[tuple[Run, nn.Module, Examples]]":
    """Return every run with its model and its images; each axis must have images to shift."""
    from turnwise.evaluation.shifts import label_sets, shiftable_by_axis
    from turnwise.reports.figures.curves import require_few_curves
    from turnwise.runs.run import Run

    _refuse_duplicates(args.runs)
    loaded, curves = [], 0
    for run in map(Run, args.runs):
        dataset, model = run.dataset(args.data_dir), run.model()
        last = len(dataset.classes) - 1
        for label in plan.labels or ():
            require(label <= last, f"--labels {label}: {dataset.name} has the classes 0 to {last}.")
        examples = dataset.test if args.split == "test" else dataset.val
        chosen = shiftable_by_axis(examples, plan)
        curves += sum(len(label_sets(part, plan)) for part in chosen.values())
        loaded.append((run, model, examples))
    if args.plot:
        require_few_curves(curves)
    return loaded


def _refuse_duplicates(runs: list[str]) -> None:
    """Raise if a run is given twice, for example through a link."""
    seen: dict[Path, str] = {}
    for run in runs:
        path = Path(run).resolve()
        same = run if seen.get(path) == run else f"{run} is {seen.get(path)}, which"
        require(path not in seen, f"{same} is given twice, and would count twice; leave one out.")
        seen[path] = run


def summary(rows: "list[ShiftFigures]") -> str:
    """Return a table with one line per run, axis and choice of labels."""
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
        shown = [format_percent(share, digits=2) for share in shares]
        change = format_error(max(row.logit_change for row in part))
        lines.append([*key, str(part[0].images), *shown, change])
    headers = ["run", "axis", "labels", "images", "unshifted", "worst", "mean", "same", "logits"]
    return text_table(headers, lines)


def _plot(rows: "list[ShiftFigures]", args: argparse.Namespace) -> None:
    from turnwise.reports.figures.curves import accuracy_against_shift, curve_names
    from turnwise.reports.figures.plots import figure_file

    points: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        shifts, values = points.setdefault((row.run_dir, row.labels), ([], []))
        shifts.append(float(row.shift))
        values.append(row.accuracy_mean)
    curves = dict(zip(curve_names(list(points)), points.values(), strict=True))
    figure_file(accuracy_against_shift(curves, args.axis), Path(args.plot), ANOTHER_PLOT)
