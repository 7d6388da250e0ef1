"""Curves hold what the model says; quarter turns change the plain model and not its orbit."""

import numpy as np
import pytest

from turnwise.reports.figures.angles import angles_figure, shifts_figure


def curves(axes):
    return [line for line in axes.lines if not line.get_label().startswith(("_", "exact"))]


def test_probabilities_over_angles_are_those_of_the_model(quadrant):
    above, below, corner = angles_figure([quadrant], picture=1, angles=4).axes
    (line,) = curves(above)
    assert list(line.get_xdata()) == [0, 90, 180, 270, 360]
    right, wrong = line.get_ydata()[0], line.get_ydata()[1]
    assert right > 0.26 > 0.25 > wrong
    assert list(curves(below)[0].get_ydata()) == [1, 0, 0, 0, 1]
    assert "same answer for 0 %" in line.get_label()
    assert "“II”" in above.get_ylabel() and corner.images


@pytest.mark.parametrize(("name", "moves"), [("orbit_vit", False), ("vit", True)])
def test_law_and_control_over_quarter_turns(make_subject, name, moves):
    above, _, _ = angles_figure([make_subject(name)], angles=4).axes
    values = curves(above)[0].get_ydata()
    assert (np.ptp(values) > 1e-4) == moves


def test_several_models_have_several_curves(make_subject):
    figure = angles_figure([make_subject("vit"), make_subject("orbit_vit")], angles=4)
    labels = [line.get_label() for line in curves(figure.axes[0])]
    assert [label.split(":")[0] for label in labels] == ["vit", "orbit_vit"]
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(figure.axes[1].get_window_extent())


def test_shifts_show_every_step_of_one_picture_and_the_accuracy_of_many(quadrant):
    figure = shifts_figure([quadrant], picture=0, reach=4)
    said = figure.axes[0].images[0].get_array()
    assert said.shape == (9, 9)
    # the spot at row 1, col 6 stays in its quadrant for −2 to 1 right and −2 to 1 up
    inside = np.asarray(said) > 0.2501
    rows, cols = np.nonzero(inside)
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (3, 6, 2, 5)
    (line,) = curves(figure.axes[-1])
    by_step = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    # four to the right, all are wrong, but nothing at all is taken for the first quadrant
    assert by_step[0] == 1.0 and by_step[4] == 0.25
    assert list(figure.axes[0].images[0].get_extent()) == [-4.5, 4.5, -4.5, 4.5]
