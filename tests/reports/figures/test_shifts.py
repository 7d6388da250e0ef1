"""The plot of shifts holds the numbers it was given, and the same numbers make the same file."""

import pytest

from turnwise.errors import InputError
from turnwise.reports.figures.plots import figure_svg
from turnwise.reports.figures.shifts import accuracy_against_shift, curve_names

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


@pytest.mark.parametrize(
    ("curves", "names"),
    [
        ([("runs/a/0", "1")], ["runs/a/0"]),
        ([("runs/a/0", "1"), ("runs/a/1", "1")], ["0", "1"]),
        ([("runs/a/0", "1"), ("runs/b/0", "1")], ["a/0", "b/0"]),
        ([("a", "1"), ("a/b", "1")], ["a", "a/b"]),
        ([("/a/b", "1"), ("c", "1")], ["/a/b", "c"]),
        ([("runs/a", "all"), ("runs/a", "1")], ["all classes", "class 1"]),
        (
            [("runs/a", "1 7"), ("runs/a", "1"), ("runs/b", "1 7"), ("runs/b", "1")],
            ["a, classes 1 7", "a, class 1", "b, classes 1 7", "b, class 1"],
        ),
    ],
)
def test_names_say_what_tells_the_curves_apart(curves, names):
    assert curve_names(curves) == names


@pytest.mark.parametrize("letters", [8, 24, 26, 90])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_legend_covers_no_curve(letters, count, recwarn):
    """However long the names, and matplotlib has no warning of what it could not lay out."""
    name = ("clipped_relative_performer" * 4)[: letters - 2]
    curves = {f"{name}{n:2}": ([-2.0, 2.0], [0.3, 0.9]) for n in range(count)}
    figure = accuracy_against_shift(curves)
    assert not recwarn.list
    ((axes,), (legend,)) = figure.axes, figure.legends
    whole, data = figure.bbox, axes.get_window_extent()
    below = legend.get_window_extent()
    assert whole.y0 <= below.y0 < below.y1 < data.y0 < data.y1 <= whole.y1
    assert data.height > 0.4 * 5.0 * figure.dpi
    assert whole.x0 <= below.x0 < below.x1 <= whole.x1


def test_more_curves_than_can_be_told_apart():
    curves = {str(n): ([0.0], [0.5]) for n in range(13)}
    with pytest.raises(InputError, match="13 curves are too many for one plot, which shows 12"):
        accuracy_against_shift(curves)
