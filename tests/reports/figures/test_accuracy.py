"""Curves and counts are those of the model; rotations by 90° change a plain model and no orbit."""

from functools import partial

import numpy as np
import pytest

from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.accuracy import (
    angles_figure,
    confusion_figure,
    largest_drops,
    shifts_figure,
    worst_figure,
)

Options = partial(FigureOptions, image=0, angles=4)


def curves(axes):
    return [line for line in axes.lines if not line.get_label().startswith(("_", "pixels"))]


def test_probabilities_over_angles_are_those_of_the_model(quadrant):
    above, below, corner = angles_figure([quadrant], Options(image=1)).figure.axes
    (line,) = curves(above)
    assert list(line.get_xdata()) == [0, 90, 180, 270, 360]
    right, wrong = line.get_ydata()[0], line.get_ydata()[1]
    assert right > 0.26 > 0.25 > wrong
    assert list(curves(below)[0].get_ydata()) == [1, 0, 0, 0, 1]
    assert "same prediction for 0 %" in line.get_label()
    assert "“II”" in above.get_ylabel() and corner.images


@pytest.mark.parametrize(("name", "changes"), [("orbit_vit", False), ("vit", True)])
def test_rotations_by_90_degrees_change_only_a_plain_model(make_model, name, changes):
    above, _, _ = angles_figure([make_model(name)], Options()).figure.axes
    values = curves(above)[0].get_ydata()
    assert (np.ptp(values) > 1e-4) == changes


def test_several_models_have_several_curves(make_model):
    figure = angles_figure([make_model("vit"), make_model("orbit_vit")], Options()).figure
    labels = [line.get_label() for line in curves(figure.axes[0])]
    assert [label.split(":")[0] for label in labels] == ["vit", "orbit_vit"]
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(figure.axes[1].get_window_extent())


def test_shifts_show_every_step_of_one_image_and_the_accuracy_of_many(quadrant):
    figure = shifts_figure([quadrant], Options(), reach=4).figure
    probabilities = figure.axes[0].images[0].get_array()
    assert probabilities.shape == (9, 9)
    # the spot at row 1, col 6 stays in its quadrant for −2 to 1 right and −2 to 1 up
    inside = np.asarray(probabilities) > 0.2501
    rows, cols = np.nonzero(inside)
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (3, 6, 2, 5)
    (line,) = curves(figure.axes[-1])
    by_step = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    # four to the right, all are wrong, but an empty image is taken for the first quadrant
    assert by_step[0] == 1.0 and by_step[4] == 0.25
    assert list(figure.axes[0].images[0].get_extent()) == [-4.5, 4.5, -4.5, 4.5]


def test_confusion_matrices_are_of_upright_and_of_rotated_images(quadrant):
    upright, rotated, *_ = confusion_figure([quadrant], Options()).figure.axes
    np.testing.assert_array_equal(upright.images[0].get_array(), np.eye(4))
    np.testing.assert_array_equal(rotated.images[0].get_array(), np.roll(np.eye(4), 1, axis=1))
    assert upright.get_title() == "upright: 100.0 % correct"
    assert rotated.get_title() == "rotated by 90°: 0.0 % correct"
    cells = {text.get_position(): text.get_text() for text in upright.texts}
    assert cells == {(i, i): "1" for i in range(4)}
    assert [tick.get_text() for tick in upright.get_yticklabels()] == ["I", "II", "III", "IV"]


def test_the_largest_drop_comes_first(quadrant):
    quadrant.examples.images[2] //= 2  # a dimmer spot has a lower probability, which drops less
    drops = largest_drops(quadrant, Options(images=4), count=4)
    assert drops[-1].number == 2
    depth = [drop.upright - drop.rotated for drop in drops]
    assert depth == sorted(depth, reverse=True) and depth[-1] > 0
    assert all(drop.predicted != drop.number for drop in drops)


def test_the_probability_of_an_invariant_model_drops_only_off_the_grid(make_model):
    for drop in largest_drops(make_model("orbit_vit"), Options(images=20), count=3):
        assert drop.degrees % 90 != 0 and drop.upright > drop.rotated


def test_the_worst_images_have_both_predictions(quadrant):
    axes = worst_figure([quadrant], Options(), count=2).figure.axes
    assert len(axes) == 4
    assert axes[0].get_title().startswith("upright\n“")
    assert "predicts “" in axes[2].get_title()
    assert pytest.approx(1.0) == np.asarray(axes[0].images[0].get_array()).max()
