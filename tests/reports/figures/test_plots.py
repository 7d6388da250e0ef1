"""The same numbers make the same file, and a file has the format of its name."""

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from turnwise.errors import InputError
from turnwise.reports.figures.curves import accuracy_against_angle, training_curves
from turnwise.reports.figures.plots import figure_file, figure_svg

CURVES = {"gsa": ([0.0, 90.0], [0.97, 0.97]), "plain": ([0.0, 90.0], [0.9, 0.5])}


def test_the_same_numbers_make_the_same_svg():
    figure, again = accuracy_against_angle(CURVES), accuracy_against_angle(CURVES)
    assert figure_svg(figure) == figure_svg(figure) == figure_svg(again)
    other = accuracy_against_angle({"gsa": CURVES["gsa"]})
    assert figure_svg(figure) != figure_svg(other)


def test_the_svg_is_one_element_that_needs_nothing_else():
    svg = figure_svg(training_curves({"$a$ <b>": [{"epoch": 0.0, "train_loss": 1.0}]}))
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    links = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert links and all(link.startswith("#") for link in links)
    assert "<!DOCTYPE" not in svg and "<dc:date>" not in svg


@pytest.mark.parametrize("figure", [accuracy_against_angle(CURVES), training_curves({})])
def test_the_png_is_an_image(tmp_path, figure):
    figure_file(figure, tmp_path / "new" / "plot.png")
    with Image.open(tmp_path / "new" / "plot.png") as image:
        assert image.size[0] == 1440
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_a_file_has_the_format_of_its_name(tmp_path):
    figure = accuracy_against_angle(CURVES)
    figure_file(figure, tmp_path / "a.PNG")
    figure_file(figure, tmp_path / "a.svg")
    with Image.open(tmp_path / "a.PNG") as image:
        assert image.format == "PNG"
    assert (tmp_path / "a.svg").read_text() == figure_svg(figure)
    with pytest.raises(InputError, match=r"written as .png or .svg, got 'a.pdf'"):
        figure_file(figure, tmp_path / "a.pdf")
