"""Steerability: how far logits and features are from following a rotation by any angle.

Left and middle, the change against the angle, for spots drawn again (solid) and for interpolated
ones (dashed); right, its mean between the quarter rotations against the order of the group.
"""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from tqdm import tqdm

from turnwise.evaluation.steerability import FILL, OFF_GRID, WAYS, steerability
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import (
    COLOURS,
    LOOK,
    MARKERS,
    angle_axis,
    fix_layout,
    legend_label,
    mark_exact_angles,
)
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.tables import format_error, text_table

STEP = 5
FLOOR = 1e-9  # smaller changes are drawn here: a logarithmic axis has no zero
OUTPUTS = ("logits", "features")


@figure(
    "steerability", "how far logits and features follow rotations by any angle",
    several=True, comparable=False,
)  # fmt: skip
def steerability_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the changes over a full turn and against the group order; the text is a table."""
    angles = [float(angle) for angle in range(0, 360, STEP)]
    found = []
    for model in tqdm(models, desc="rotating", disable=not options.progress, leave=False):
        channels, size = model.examples.images.shape[1:3]
        found.append(steerability(model.model, channels, size, angles))
    columns = [f"{output}, {way}" for output in OUTPUTS for way in WAYS]
    rows = []
    for model, changes in zip(models, found, strict=True):
        cells = [off_grid(changes[o][w], angles) for o in OUTPUTS for w in WAYS]
        exact = max(max(changes[o]["redrawn"][:: 90 // STEP]) for o in OUTPUTS)
        name, group = model.name, model.group
        rows.append([name, str(group), *map(format_error, cells), format_error(exact)])
    table = text_table(["change, mean off the grid", "group", *columns, "at 90°"], rows)
    note = f"1 is a change as to another image; interpolated with {FILL} outside"
    return Plot(_draw(models, found, angles), f"{table}\n{note}")


def off_grid(changes: Sequence[float], angles: Sequence[float]) -> float:
    """Return the mean change between the quarter rotations."""
    between = [c for c, angle in zip(changes, angles, strict=True) if angle % 90 in OFF_GRID]
    return sum(between) / len(between)


def _draw(
    models: Sequence[LoadedModel],
    found: Sequence[dict[str, dict[str, list[float]]]],
    angles: Sequence[float],
) -> Figure:
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(16, 6), layout="constrained")
        cells = fig.subplots(1, 3)
        for axes, output in zip(cells, OUTPUTS, strict=False):
            for number, (model, changes) in enumerate(zip(models, found, strict=True)):
                for way, dashes in zip(WAYS, ("-", "--"), strict=True):
                    values = [max(FLOOR, change) for change in changes[output][way]]
                    axes.plot(
                        [*angles, 360.0], [*values, values[0]], dashes,
                        color=COLOURS[number % len(COLOURS)],
                        marker=MARKERS[number % len(MARKERS)], markevery=9,
                        label=legend_label(f"{model.name}, {way}"),
                    )  # fmt: skip
            axes.set(title=output, xlabel="angle of rotation", yscale="log")
            angle_axis(axes)
            mark_exact_angles(axes)
        cells[0].set_ylabel("change (1: as to another image)")
        for way, dashes, colour in zip(WAYS, ("-", "--"), COLOURS, strict=False):
            points = sorted(
                (model.group.order, off_grid(changes["logits"][way], angles))
                for model, changes in zip(models, found, strict=True)
            )
            orders, means = zip(*points, strict=True)
            cells[2].plot(orders, means, dashes, color=colour, marker="o", label=way)
        cells[2].set(
            title="logits, mean off the grid", xlabel="elements of the group", yscale="log"
        )
        cells[2].set_xticks(sorted({model.group.order for model in models}))
        cells[2].legend()
        for axes in cells:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
        handles, names = cells[0].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside lower center", ncols=2)
        return fix_layout(fig)
