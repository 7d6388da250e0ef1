"""The plot of shifts holds the numbers it was given, and the same numbers make the same file."""

import pytest

from turnwise.checks import InputError
from turnwise.reports.plots import figure_svg
from turnwise.reports.shift_plots import accuracy_against_shift

CURVES = {
    "absolute": ([-2.0, 0.0, 2.0], [0.3, 0.9, 0.4]),
    "relative": ([-2.0, 0.0, 2.0], [0.9, 0.9, 0.9]),
}


def test_curves_are_the_numbers():
    (axes,) = accuracy_against_shift(CURVES).axes
    drawn = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.get_lines()}
    assert {name: (list(x), list(y)) for name, (x, y) in drawn.items()} == CURVES


@pytest.mark.parametrize(
    ("axis", "words"), [("horizontal", "to the right"), ("vertical", "upwards")]
)
def test_axes_say_what_they_are(axis, words):
    (axes,) = accuracy_against_shift(CURVES, axis, "agreement").axes
    assert words in axes.get_xlabel()
    assert axes.get_ylabel() == "agreement"


def test_the_same_numbers_make_the_same_file():
    assert figure_svg(accuracy_against_shift(CURVES)) == figure_svg(accuracy_against_shift(CURVES))
    other = {**CURVES, "relative": ([-2.0, 0.0, 2.0], [0.9, 0.9, 0.8])}
    assert figure_svg(accuracy_against_shift(CURVES)) != figure_svg(accuracy_against_shift(other))


def test_nothing_to_draw():
    with pytest.raises(InputError, match="no curve to draw"):
        accuracy_against_shift({})
