"""The reliability diagram shows the bins it was given, and needs probabilities."""

from dataclasses import replace

import pytest
import torch

from turnwise.errors import InputError
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.reliability import reliability_diagram, reliability_figure

FOUND = {
    "ece": 0.1,
    "bins": [
        {"count": 10, "confidence": 0.25, "accuracy": 0.125},
        {"count": 30, "confidence": 0.75, "accuracy": 0.875},
    ],
}


def lines(axes, name):
    (line,) = [line for line in axes.lines if line.get_label().startswith(name)]
    return list(line.get_xdata()), list(line.get_ydata())


def test_bins_are_drawn_with_their_share_of_the_images():
    above, below = reliability_diagram({"vit": FOUND}).axes
    assert lines(above, "vit: ECE 10.0 %") == ([0.25, 0.75], [0.125, 0.875])
    assert lines(above, "calibrated") == ([0, 1], [0, 1])
    assert lines(below, "vit") == ([0.25, 0.75], [0.25, 0.75])


def test_models_are_compared_on_their_validation_images(make_model):
    drawn = reliability_figure([make_model("vit"), make_model("orbit_vit")], FigureOptions())
    assert "expected calibration error" in drawn.text and "orbit_vit" in drawn.text


def test_numbers_have_no_calibration(make_model):
    loaded = make_model("vit")
    loaded.model.target = {"kind": "number", "names": list(loaded.classes)}
    examples = replace(loaded.examples, targets=torch.randn(len(loaded.examples), 10))
    with pytest.raises(InputError, match="predicts no probabilities"):
        reliability_figure([replace(loaded, examples=examples)], FigureOptions())
