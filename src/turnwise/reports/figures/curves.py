"""Curves of stored numbers: training, accuracy against the angle, accuracy against the shift."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise.errors import require
from turnwise.evaluation.evaluate import evaluated_kind, main_score_by_angle
from turnwise.evaluation.metrics import Interval
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import (
    LOOK,
    Curves,
    add_legend,
    angle_axis,
    closed_curve,
    draw_curves,
    fix_layout,
    legend_columns,
    mark_exact_angles,
    percent_axis,
)
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.tables import UNDEFINED, format_score, text_table
from turnwise.runs.run import Run
from turnwise.runs.selection import selected_epoch, target_kind

MAX_CURVES = 12  # more cannot be distinguished
LEGEND_ROW = 0.33  # inches


@figure("curves", "training curves and a table of the runs", several=True, comparable=False)
def curves_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the training curves of runs."""
    runs = {m.name: m.run for m in models if m.run is not None}
    require(len(runs) == len(models), "curves are of trained runs; an untrained model has none.")
    table = text_table(*runs_table(runs))
    return Plot(training_curves({name: run.metrics for name, run in runs.items()}), table)


def runs_table(runs: Mapping[str, Run]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows: epochs, the best validation score, and test scores if tested."""
    rows = []
    for name, run in runs.items():
        metrics, tested = run.metrics, run.evaluation()
        test = worst = UNDEFINED
        if tested is not None:
            kind, (score, rotated) = evaluated_kind(tested), main_score_by_angle(tested)
            test = format_score(kind, score, Interval.from_plain(tested["scores"][score]))
            worst = format_score(kind, score, (max if score in kind.falling else min)(rotated))
        rows.append([name, str(len(metrics)), _best_score(run), test, worst])
    return ["run", "epochs", "validation", "test, upright", "test, worst angle"], rows


def _best_score(run: Run) -> str:
    """Return the validation score of the selected epoch."""
    try:
        column, best = selected_epoch(run)
    except (ValueError, KeyError):
        return UNDEFINED
    return format_score(target_kind(run), column.removeprefix("val_"), best[column])


def training_curves(metrics: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Draw training loss and validation accuracy against the epoch, one curve per run.

    Runs that have no accuracy show their validation loss.  `metrics` are the `Run.metrics` of each
    run; a row without a value has no point.
    """
    has_accuracy = any("val_accuracy" in row for rows in metrics.values() for row in rows)
    score = "val_accuracy" if has_accuracy else "val_loss"
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(7.5, 4.4), layout="constrained")
        left, right = fig.subplots(1, 2)
        left.set(xlabel="epoch", ylabel="training loss")
        right.set(xlabel="epoch", ylabel=score.replace("val_", "validation "))
        for axes, key in ((left, "train_loss"), (right, score)):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            draw_curves(axes, {run: _column(rows, key) for run, rows in metrics.items()}, 15)
        reached = [_column(rows, score)[1] for rows in metrics.values()]
        if has_accuracy:
            percent_axis(right, [value for values in reached for value in values])
        add_legend(fig, left)
        return fix_layout(fig)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    present = [row for row in rows if key in row]
    return [row["epoch"] for row in present], [row[key] for row in present]


def accuracy_against_angle(curves: Curves) -> Figure:
    """Draw accuracies against angles from 0° to 360°; a curve from 0° on is closed at 360°."""
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(7.5, 5.4), layout="constrained")
        axes = fig.add_subplot(
            xlabel="angle of rotation of the image", ylabel="accuracy", xlim=(-6, 366)
        )
        angle_axis(axes)
        draw_curves(axes, {name: closed_curve(*curve) for name, curve in curves.items()}, 36)
        mark_exact_angles(axes)
        percent_axis(axes, [value for _, values in curves.values() for value in values])
        add_legend(fig, axes)
        return fix_layout(fig)


def accuracy_against_shift(
    curves: Curves, axis: str = "horizontal", quantity: str = "accuracy"
) -> Figure:
    """Draw fractions against the shift in pixels; `curves` has shifts and values by run."""
    require(bool(curves), "there is no curve to draw; give at least one run.")
    require_few_curves(len(curves))
    rows = -(-len(curves) // legend_columns(curves))
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(7.5, 5.0 + LEGEND_ROW * max(0, rows - 2)), layout="constrained")
        direction = {"horizontal": "to the right", "vertical": "upwards"}[axis]
        axes = fig.add_subplot(xlabel=f"shift {direction} (pixels)", ylabel=quantity)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        draw_curves(axes, curves, 33)
        percent_axis(axes, [value for _, values in curves.values() for value in values])
        add_legend(fig, axes)
        return fix_layout(fig)


def require_few_curves(count: int) -> None:
    """Raise if one plot cannot show so many curves."""
    require(
        count <= MAX_CURVES,
        f"{count} curves are too many for one plot, which shows {MAX_CURVES}; plot fewer runs or "
        "classes.",
    )


def curve_names(curves: Sequence[tuple[str, str]]) -> list[str]:
    """Return names for curves of (run, labels) that say what distinguishes them, and no more."""
    runs = list(dict.fromkeys(run for run, _ in curves))
    short = dict(zip(runs, _without_common_folders(runs), strict=True))
    if len({labels for _, labels in curves}) == 1:
        return [short[run] for run, _ in curves]
    described = [_describe_labels(labels) for _, labels in curves]
    if len(runs) == 1:
        return described
    return [f"{short[run]}, {labels}" for (run, _), labels in zip(curves, described, strict=True)]


def _without_common_folders(runs: Sequence[str]) -> list[str]:
    """Return a/b/0 and a/b/1 as 0 and 1; a single path stays whole."""
    paths = [Path(run).parts for run in runs]
    common = 0
    while len(runs) > 1 and all(len(path) > common + 1 for path in paths):
        if len({path[common] for path in paths}) > 1:
            break
        common += 1
    return [str(Path(*path[common:])) for path in paths]


def _describe_labels(labels: str) -> str:
    if labels == "all":
        return "all classes"
    return f"classes {labels}" if " " in labels else f"class {labels}"
