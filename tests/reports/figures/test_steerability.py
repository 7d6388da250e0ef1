"""The steerability figure: a curve for each model, output and way, and a table of means."""

import pytest

from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.steerability import off_grid, steerability_figure


def test_every_model_has_curves_and_a_row(make_model, tmp_path):
    plot = steerability_figure([make_model("gsa_net"), make_model("vit")], FigureOptions())
    logits, features, orders = plot.figure.axes
    assert [axes.get_title() for axes in (logits, features)] == ["logits", "features"]
    for axes in (logits, features):
        curves = [line for line in axes.lines if len(line.get_xdata()) == 73]
        assert len(curves) == 4
    assert len(orders.lines) == 2
    lines = plot.text.splitlines()
    assert "interpolated with zeros outside" in lines[-1]
    exact, plain = (float(line.split()[-1]) for line in lines[-3:-1])
    assert exact < 1e-4 < 0.01 < plain
    plot.write(tmp_path / "steerability.svg")
    assert (tmp_path / "steerability.svg").stat().st_size > 1000


def test_the_mean_leaves_out_quarter_rotations():
    angles = [0.0, 5.0, 45.0, 90.0, 135.0]
    assert off_grid([9.0, 1.0, 2.0, 9.0, 3.0], angles) == pytest.approx(2.0)
