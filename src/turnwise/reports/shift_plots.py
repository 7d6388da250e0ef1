"""A curve for each run: accuracy, or agreement with the picture unmoved, as the object moves."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turnwise.checks import require
from turnwise.reports.plots import LOOK, Curves, add_legend, draw_curves, laid_out, percent_axis


def accuracy_against_shift(
    curves: Curves, axis: str = "horizontal", quantity: str = "accuracy"
) -> Figure:
    """Fractions against the shift in pixels; `curves` gives each run its shifts and values."""
    require(bool(curves), "there is no curve to draw; give at least one run.")
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        words = {"horizontal": "to the right", "vertical": "upwards"}[axis]
        axes = figure.add_subplot(
            xlabel=f"the object is moved {words} by (pixels)", ylabel=quantity
        )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        draw_curves(axes, curves, 33)
        percent_axis(axes, [value for _, values in curves.values() for value in values])
        add_legend(figure, axes)
        return laid_out(figure)
