"""Curves: accuracy as the picture turns, and how training went.

Every curve is told from the others by colour (Okabe and Ito's, safe for the colour-blind), by its
marker and by its dashes, any one of which suffices.  Figures belong to no global state of
matplotlib, and the same numbers give the same file.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from turnwise.errors import require
from turnwise.files import ANOTHER_OUTPUT, write_atomic

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # seven colours and eight markers: 56 pairs
DASHES = ("-", "--", "-.")  # and three dashes: 24 pairs without colour
WIDEST_NAME = 47  # letters of a legend
LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is there on every machine
    "font.size": 15.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "lines.linewidth": 2.2,
    "lines.markersize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "text.parse_math": False,  # a dollar in a model's name is a dollar
    "svg.hashsalt": "turnwise",
}


def accuracy_against_angle(curves: Curves, group_angles: Sequence[float]) -> Figure:
    """Accuracy (fractions) against the angle (degrees, 0 to 360) by which the test was turned.

    `curves` gives each model its angles and accuracies; light vertical lines stand at
    `group_angles`, where the model is exact.  A full turn repeats the picture, so a curve that
    has 0° is closed at 360°.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 5.4), layout="constrained")
        axes = figure.add_subplot(
            xlabel="the picture is turned by", ylabel="accuracy", xlim=(-6, 366)
        )
        angle_axis(axes)
        draw_curves(axes, {name: closed_curve(*curve) for name, curve in curves.items()}, 36)
        mark_exact_angles(axes, group_angles)
        percent_axis(axes, [value for _, values in curves.values() for value in values])
        add_legend(figure, axes)
        return laid_out(figure)


def training_curves(
    metrics: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    loss: str = "train_loss",
    accuracy: str = "val_accuracy",
) -> Figure:
    """Training loss and validation accuracy against the epoch, one curve per run.

    `metrics` gives each run the rows of its metrics table: `epoch`, and what was measured then.
    A row without a value (missing, None or empty, as CSV loggers leave it) has no point.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.set(xlabel="epoch", ylabel="training loss")
        right.set(xlabel="epoch", ylabel="validation accuracy")
        for axes, key in ((left, loss), (right, accuracy)):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            draw_curves(axes, {run: _column(rows, key) for run, rows in metrics.items()}, 15)
        reached = [_column(rows, accuracy)[1] for rows in metrics.values()]
        percent_axis(right, [value for values in reached for value in values])
        add_legend(figure, left)
        return laid_out(figure)


def figure_svg(figure: Figure) -> str:
    """The figure as one `<svg>` element that needs nothing else; text is drawn as shapes."""
    drawn = io.StringIO()
    with matplotlib.rc_context(LOOK):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(drawn, format="svg", metadata=nothing)
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # without the XML prologue, which names an outside DTD


def figure_png(figure: Figure, path: Path, cure: str = ANOTHER_OUTPUT) -> None:
    """The figure as a picture of 192 pixels to the inch; `cure` as in `files.fill_atomic`."""
    drawn = io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(drawn, format="png", dpi=192, metadata={"Software": None})
    write_atomic(path, drawn.getvalue(), cure)


def figure_file(figure: Figure, path: Path, cure: str = ANOTHER_OUTPUT) -> None:
    """The figure as the file that its name says, .png or .svg."""
    require(
        path.suffix.lower() in (".png", ".svg"),
        f"a picture is written as .png or .svg, got {path.name!r}.",
    )
    if path.suffix.lower() == ".png":
        figure_png(figure, path, cure)
    else:
        write_atomic(path, figure_svg(figure).encode(), cure)


def draw_curves(axes: Axes, curves: Curves, most_markers: int) -> None:
    """Each curve in its own colour, marker and dashes."""
    looks = zip(cycle(COLOURS), cycle(MARKERS), cycle(DASHES), strict=False)
    for (name, (x, y)), (colour, marker, dashes) in zip(curves.items(), looks, strict=False):
        axes.plot(
            x,
            y,
            label=shown_label(name),
            color=colour,
            marker=marker,
            linestyle=dashes,
            markevery=-(-len(x) // most_markers) or 1,
            markeredgecolor="white",
            markeredgewidth=0.7,
        )


def shown_label(name: str) -> str:
    """The name for a legend, without its middle where it is wider than a figure.

    Behind a space without width where matplotlib would leave it out.
    """
    if len(name) > WIDEST_NAME:
        half = (WIDEST_NAME - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f"\u200b{name}" if name.startswith("_") else name


def angle_axis(axes: Axes) -> None:
    """A tick every 45°."""
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])


def mark_exact_angles(axes: Axes, angles: Sequence[float]) -> None:
    """A light line behind the curves at each angle that pixels can be turned by exactly."""
    exact = sorted({angle % 360 for angle in angles})
    for angle in [*exact, 360.0] if 0 in exact else exact:
        label = "exact angle of the group" if angle == exact[0] else None
        axes.axvline(angle, color="#e2e2e2", linewidth=5, zorder=0, label=label)


def legend_columns(names: Iterable[str]) -> int:
    """Two where the names are short enough."""
    return 2 if max(map(len, names), default=0) <= 24 else 1


def add_legend(figure: Figure, axes: Axes) -> None:
    """Below the data, in as many columns as the names leave room for."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=legend_columns(names))


def laid_out(figure: Figure) -> Figure:
    """The figure with its layout settled: else each drawing would move it by a hair."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def closed_curve(
    angles: Sequence[float], values: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """Sorted by angle; a full turn repeats the picture, so what is known at 0° is so at 360°."""
    points = dict(sorted(zip(angles, values, strict=True)))
    if 0 in points:
        points.setdefault(360.0, points[0])
    return list(points), list(points.values())


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row.get(key) not in (None, "")]
    return [float(row["epoch"]) for row in kept], [float(row[key]) for row in kept]


def percent_axis(axes: Axes, values: Sequence[float]) -> None:
    """From the ten per cent below the lowest value to 100 %, with room for markers."""
    lowest = max(0.0, (10 * min(values, default=0.0) - 0.5) // 1 / 10)
    axes.set_ylim(lowest - 0.02 * (1 - lowest), 1 + 0.03 * (1 - lowest))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
