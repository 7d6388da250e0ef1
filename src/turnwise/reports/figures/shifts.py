"""A curve for each run: accuracy, or agreement with the picture unmoved, as the object moves."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise.errors import require
from turnwise.reports.figures.plots import (
    LOOK,
    Curves,
    add_legend,
    draw_curves,
    laid_out,
    legend_columns,
    percent_axis,
)

MOST_CURVES = 12  # more cannot be told apart
LEGEND_ROW = 0.33  # inches


def accuracy_against_shift(
    curves: Curves, axis: str = "horizontal", quantity: str = "accuracy"
) -> Figure:
    """Fractions against the shift in pixels; `curves` gives each run its shifts and values."""
    require(bool(curves), "there is no curve to draw; give at least one run.")
    require_few_curves(len(curves))
    rows = -(-len(curves) // legend_columns(curves))
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 5.0 + LEGEND_ROW * max(0, rows - 2)), layout="constrained")
        words = {"horizontal": "to the right", "vertical": "upwards"}[axis]
        axes = figure.add_subplot(
            xlabel=f"the object is moved {words} by (pixels)", ylabel=quantity
        )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        draw_curves(axes, curves, 33)
        percent_axis(axes, [value for _, values in curves.values() for value in values])
        add_legend(figure, axes)
        return laid_out(figure)


def require_few_curves(count: int) -> None:
    """Raise where one plot cannot show so many."""
    require(
        count <= MOST_CURVES,
        f"{count} curves are too many for one plot, which shows {MOST_CURVES}; give fewer runs or "
        "labels, or leave --by-class or --plot out.",
    )


def curve_names(curves: Sequence[tuple[str, str]]) -> list[str]:
    """Names for curves of (run, labels) that say what tells them apart, and no more."""
    runs = list(dict.fromkeys(run for run, _ in curves))
    short = dict(zip(runs, _without_common_folders(runs), strict=True))
    if len({labels for _, labels in curves}) == 1:
        return [short[run] for run, _ in curves]
    said = [_labels_said(labels) for _, labels in curves]
    if len(runs) == 1:
        return said
    return [f"{short[run]}, {labels}" for (run, _), labels in zip(curves, said, strict=True)]


def _without_common_folders(runs: Sequence[str]) -> list[str]:
    """a/b/0 and a/b/1 as 0 and 1; of each its last part is left, and of a single one all."""
    parts = [Path(run).parts for run in runs]
    common = 0
    while len(runs) > 1 and all(len(p) > common + 1 for p in parts):
        if len({p[common] for p in parts}) > 1:
            break
        common += 1
    return [str(Path(*p[common:])) for p in parts]


def _labels_said(labels: str) -> str:
    if labels == "all":
        return "all classes"
    return f"classes {labels}" if " " in labels else f"class {labels}"
