"""Plots hold the numbers they were given, and the same numbers make the same file."""

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from turnwise.errors import InputError
from turnwise.reports.figures.plots import (
    accuracy_against_angle,
    figure_file,
    figure_png,
    figure_svg,
    training_curves,
)

ANGLES = [float(angle) for angle in range(0, 360, 15)]
CURVES = {"gsa": (ANGLES, [0.97] * 24), "plain": (ANGLES, [0.4 + 0.01 * i for i in range(24)])}


def curves_of(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_each_curve_shows_its_numbers_and_closes_the_circle():
    (axes,) = accuracy_against_angle(CURVES, [0.0, 90.0]).axes
    plain = curves_of(axes)["plain"]
    assert list(plain.get_xdata()) == [*ANGLES, 360.0]
    assert list(plain.get_ydata()) == [*CURVES["plain"][1], CURVES["plain"][1][0]]


def test_a_curve_without_zero_stays_open():
    (axes,) = accuracy_against_angle({"a": ([90.0, 30.0], [0.5, 0.6])}, []).axes
    assert list(curves_of(axes)["a"].get_xdata()) == [30.0, 90.0]
    assert list(curves_of(axes)["a"].get_ydata()) == [0.6, 0.5]


def test_ticks_stand_every_45_degrees():
    (axes,) = accuracy_against_angle(CURVES, [0.0]).axes
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["0°", "45°", "90°"]
    assert list(axes.get_xticks()) == list(range(0, 361, 45))


def test_exact_angles_are_marked_once_around():
    (axes,) = accuracy_against_angle(CURVES, [0.0, 90.0, 360.0]).axes
    upright = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert sorted(x[0] for x in upright if x[0] == x[1]) == [0.0, 90.0, 360.0]


def test_the_axis_shows_every_value():
    (axes,) = accuracy_against_angle({"a": ([0.0, 90.0], [0.0, 1.0])}, []).axes
    low, high = axes.get_ylim()
    assert low < 0.0 and high > 1.0


def test_curves_differ_without_colour():
    many = {f"model {i}": ([0.0, 90.0], [0.1 * i, 0.5]) for i in range(10)}
    lines = curves_of(accuracy_against_angle(many, []).axes[0]).values()
    assert len({line.get_marker() for line in list(lines)[:8]}) == 8
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 10


def test_the_legend_is_outside_the_data():
    figure = accuracy_against_angle(CURVES, [0.0])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == ["gsa", "plain"]
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    """Matplotlib hides such labels; a space without width stands before them."""
    rows = [{"epoch": 0, "train_loss": 1.0, "val_accuracy": 0.5}]
    for figure in (
        accuracy_against_angle({"_baseline": CURVES["plain"], "gsa": CURVES["gsa"]}, []),
        training_curves({"_baseline": rows, "gsa": rows}),
    ):
        shown = [text.get_text() for text in figure.legends[0].get_texts()]
        assert [name.lstrip("\u200b") for name in shown] == ["_baseline", "gsa"]


def test_training_curves_skip_what_was_not_measured():
    """CSV loggers write training and validation in separate rows, with empty cells between."""
    rows = [
        {"epoch": "0", "train_loss": "2.5", "val_accuracy": ""},
        {"epoch": "0", "train_loss": "", "val_accuracy": "0.5"},
        {"epoch": 1, "train_loss": 1.5, "val_accuracy": None},
    ]
    left, right = training_curves({"run": rows}).axes
    assert list(curves_of(left)["run"].get_xdata()) == [0.0, 1.0]
    assert list(curves_of(left)["run"].get_ydata()) == [2.5, 1.5]
    assert list(curves_of(right)["run"].get_ydata()) == [0.5]


def test_training_curves_of_other_names_are_found():
    left, _ = training_curves({"run": [{"epoch": 3, "loss": 0.25}]}, loss="loss").axes
    assert list(curves_of(left)["run"].get_ydata()) == [0.25]


def test_the_same_numbers_make_the_same_svg():
    figure = accuracy_against_angle(CURVES, [0.0, 90.0])
    again = accuracy_against_angle(CURVES, [0.0, 90.0])
    assert figure_svg(figure) == figure_svg(figure) == figure_svg(again)
    assert figure_svg(figure) != figure_svg(accuracy_against_angle(CURVES, [0.0]))


def test_the_svg_is_one_element_that_needs_nothing_else():
    svg = figure_svg(training_curves({"$a$ <b>": [{"epoch": 0, "train_loss": 1.0}]}))
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    links = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert links and all(link.startswith("#") for link in links)
    assert "<!DOCTYPE" not in svg and "<dc:date>" not in svg


@pytest.mark.parametrize("figure", [accuracy_against_angle(CURVES, []), training_curves({})])
def test_the_png_is_a_picture(tmp_path, figure):
    figure_png(figure, tmp_path / "new" / "plot.png")
    with Image.open(tmp_path / "new" / "plot.png") as image:
        assert image.size[0] == 1440
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_a_file_is_what_its_name_says(tmp_path):
    figure = accuracy_against_angle(CURVES, [])
    figure_file(figure, tmp_path / "a.PNG")
    figure_file(figure, tmp_path / "a.svg")
    with Image.open(tmp_path / "a.PNG") as image:
        assert image.format == "PNG"
    assert (tmp_path / "a.svg").read_text() == figure_svg(figure)
    with pytest.raises(InputError, match=r"written as .png or .svg, got 'a.pdf'"):
        figure_file(figure, tmp_path / "a.pdf")
