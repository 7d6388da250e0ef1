"""Reliability diagram: how often decisions are right, against how probable they were."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from turnwise.errors import require
from turnwise.reports.figures import FigureOptions, Plot, figure
from turnwise.reports.figures.plots import LOOK, add_legend, draw_curves, fix_layout
from turnwise.reports.loaded_models import LoadedModel, sample_examples
from turnwise.reports.tables import format_percent, text_table

Calibration = Mapping[str, Any]  # "ece" and "bins", as the kind of target measures them


@figure("reliability", "how often predictions are right, against their probability", several=True)
def reliability_figure(models: Sequence[LoadedModel], options: FigureOptions) -> Plot:
    """Draw the diagram of images of the validation split, as `turnwise test` does for the test."""
    measured: dict[str, Calibration] = {}
    for model in models:
        sample, kind = sample_examples(model, options.images), model.predictor.kind
        kind = kind.named(model.classes)
        predictions = model.predictor.predictions(sample.images)
        found = kind.summaries(kind.measure(predictions, sample.targets))
        require(
            "calibration" in found,
            f"{model.name} predicts no probabilities, so there is nothing to calibrate.",
        )
        measured[model.name] = found["calibration"]
    rows = [[name, format_percent(float(found["ece"]))] for name, found in measured.items()]
    table = text_table(["model", "expected calibration error"], rows)
    return Plot(reliability_diagram(measured), table)


def reliability_diagram(calibrations: Mapping[str, Calibration]) -> Figure:
    """Draw accuracy against confidence, with the share of images in each bin below."""
    curves = {
        f"{name}: ECE {format_percent(float(found['ece']))}": (
            [bin["confidence"] for bin in found["bins"]],
            [bin["accuracy"] for bin in found["bins"]],
        )
        for name, found in calibrations.items()
    }
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(6.5, 7.5), layout="constrained")
        above, below = fig.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot([0, 1], [0, 1], color="#999999", linestyle=":", label="calibrated")
        draw_curves(above, curves, 20)
        above.set(ylabel="share that is right", ylim=(-0.02, 1.02), xlim=(-0.02, 1.02))
        below.set(xlabel="predicted probability", ylabel="images")
        shares = {
            name: (curve[0], _shares(found))
            for (name, curve), found in zip(curves.items(), calibrations.values(), strict=True)
        }
        draw_curves(below, shares, 20)
        for axis in (above.xaxis, above.yaxis, below.yaxis):
            axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
        add_legend(fig, above)
        return fix_layout(fig)


def _shares(calibration: Calibration) -> list[float]:
    counts = [bin["count"] for bin in calibration["bins"]]
    return [count / sum(counts) for count in counts]
