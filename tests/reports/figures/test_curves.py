"""Curves hold the numbers they were given, and their legends cover no data."""

import pytest

from turnwise.errors import InputError
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.curves import (
    accuracy_against_angle,
    accuracy_against_shift,
    curve_names,
    curves_figure,
    runs_table,
    training_curves,
)
from turnwise.reports.figures.plots import figure_svg
from turnwise.runs.run import Run

ANGLES = [float(angle) for angle in range(0, 360, 15)]
BY_ANGLE = {"gsa": (ANGLES, [0.97] * 24), "plain": (ANGLES, [0.4 + 0.01 * i for i in range(24)])}
BY_SHIFT = {
    "absolute": ([-2.0, 0.0, 2.0], [0.3, 0.9, 0.4]),
    "relative": ([-2.0, 0.0, 2.0], [0.9, 0.9, 0.9]),
}


def curves_of(axes):
    marks = ("_", "pixels rotate exactly")
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith(marks)}


def test_runs_are_listed_with_their_best_accuracy(tmp_path):
    text = "epoch,train_loss,val_accuracy\n0,2.0,0.75\n1,1.0,0.5\n"
    (tmp_path / "metrics.csv").write_text(text)
    headers, rows = runs_table({"a": Run(tmp_path)})
    assert rows == [["a", "2", "75.0 %", "–", "–"]] and len(headers) == 5


def test_curves_need_runs(make_model):
    with pytest.raises(InputError, match="curves are of trained runs"):
        curves_figure([make_model("vit")], FigureOptions())


def test_training_curves_skip_what_was_not_measured():
    rows = [{"epoch": 0.0, "train_loss": 2.5}, {"epoch": 0.0, "val_accuracy": 0.5},
            {"epoch": 1.0, "train_loss": 1.5}]  # fmt: skip
    left, right = training_curves({"run": rows}).axes
    assert list(curves_of(left)["run"].get_xdata()) == [0.0, 1.0]
    assert list(curves_of(left)["run"].get_ydata()) == [2.5, 1.5]
    assert list(curves_of(right)["run"].get_ydata()) == [0.5]


def test_each_curve_shows_its_numbers_and_closes_the_circle():
    (axes,) = accuracy_against_angle(BY_ANGLE).axes
    plain = curves_of(axes)["plain"]
    assert list(plain.get_xdata()) == [*ANGLES, 360.0]
    assert list(plain.get_ydata()) == [*BY_ANGLE["plain"][1], BY_ANGLE["plain"][1][0]]


def test_a_curve_without_zero_stays_open():
    (axes,) = accuracy_against_angle({"a": ([90.0, 30.0], [0.5, 0.6])}).axes
    assert list(curves_of(axes)["a"].get_xdata()) == [30.0, 90.0]
    assert list(curves_of(axes)["a"].get_ydata()) == [0.6, 0.5]


def test_there_is_a_tick_every_45_degrees():
    (axes,) = accuracy_against_angle(BY_ANGLE).axes
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["0°", "45°", "90°"]
    assert list(axes.get_xticks()) == list(range(0, 361, 45))


def test_rotations_by_90_degrees_are_marked():
    (axes,) = accuracy_against_angle(BY_ANGLE).axes
    upright = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert sorted(x[0] for x in upright if x[0] == x[1]) == [0, 90, 180, 270, 360]


def test_the_axis_shows_every_value():
    (axes,) = accuracy_against_angle({"a": ([0.0, 90.0], [0.0, 1.0])}).axes
    low, high = axes.get_ylim()
    assert low < 0.0 and high > 1.0


def test_curves_differ_without_colour():
    many = {f"model {i}": ([0.0, 90.0], [0.1 * i, 0.5]) for i in range(10)}
    lines = curves_of(accuracy_against_angle(many).axes[0]).values()
    assert len({line.get_marker() for line in list(lines)[:8]}) == 8
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 10


def test_the_legend_is_outside_the_data():
    figure = accuracy_against_angle(BY_ANGLE)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == ["gsa", "plain"]
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    """Matplotlib hides such labels; a zero-width space precedes them."""
    rows = [{"epoch": 0.0, "train_loss": 1.0, "val_accuracy": 0.5}]
    for figure in (
        accuracy_against_angle({"_baseline": BY_ANGLE["plain"], "gsa": BY_ANGLE["gsa"]}),
        training_curves({"_baseline": rows, "gsa": rows}),
    ):
        shown = [text.get_text() for text in figure.legends[0].get_texts()]
        assert [name.lstrip("\u200b") for name in shown][:2] == ["_baseline", "gsa"]


def test_curves_over_shifts_are_the_numbers():
    (axes,) = accuracy_against_shift(BY_SHIFT).axes
    drawn = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.get_lines()}
    assert {name: (list(x), list(y)) for name, (x, y) in drawn.items()} == BY_SHIFT


@pytest.mark.parametrize(
    ("axis", "words"), [("horizontal", "to the right"), ("vertical", "upwards")]
)
def test_the_axes_of_shifts_are_labelled(axis, words):
    (axes,) = accuracy_against_shift(BY_SHIFT, axis, "agreement").axes
    assert words in axes.get_xlabel()
    assert axes.get_ylabel() == "agreement"


def test_the_same_shifts_make_the_same_file():
    svg = figure_svg(accuracy_against_shift(BY_SHIFT))
    assert svg == figure_svg(accuracy_against_shift(BY_SHIFT))
    other = {**BY_SHIFT, "relative": ([-2.0, 0.0, 2.0], [0.9, 0.9, 0.8])}
    assert svg != figure_svg(accuracy_against_shift(other))


def test_a_plot_without_curves_is_refused():
    with pytest.raises(InputError, match="no curve to draw"):
        accuracy_against_shift({})


def test_more_curves_than_can_be_distinguished_are_refused():
    curves = {str(n): ([0.0], [0.5]) for n in range(13)}
    with pytest.raises(InputError, match="13 curves are too many for one plot, which shows 12"):
        accuracy_against_shift(curves)


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
def test_names_state_what_distinguishes_the_curves(curves, names):
    assert curve_names(curves) == names


@pytest.mark.parametrize("letters", [8, 24, 26, 90])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_legend_covers_no_curve(letters, count, recwarn):
    """However long the names are; matplotlib must not warn that it could not lay out something."""
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
