"""The page of two contestants says what was measured of both, and loads nothing."""

import base64
import io
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from turnwise.checks import InputError
from turnwise.data import Pictures
from turnwise.evaluation import certify, examine
from turnwise.groups import PlanarGroup
from turnwise.models import orbit
from turnwise.reports.comparison import Contestant, comparison_page, recognised_by_all
from turnwise.reports.tables import format_error, format_percent

CLASSES = ("<b>top & right</b>", "top left", "bottom left", "bottom right")
TITLE = "Two models & one picture"
NOTE = "Chosen & shown."
COMMANDS = "turnwise demo --epochs 1 > log"


class BrightestQuadrant(nn.Module):
    """Quadrants are counted counter-clockwise, so a quarter turn adds one to the answer."""

    def preprocess(self, images):
        return images

    def forward(self, images):
        top, bottom = images[:, 0, :4], images[:, 0, 4:]
        quadrants = (top[..., 4:], top[..., :4], bottom[..., :4], bottom[..., 4:])
        return 9 * torch.stack([q.square().mean((-2, -1)) for q in quadrants], dim=-1)


class Cells(HTMLParser):
    """The cells of every table, row by row, as a reader sees them."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.sources, self.inside = [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self.inside = True
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("th", "td")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data

    def starting(self, name):
        return [row for row in self.rows if row and row[0] == name]


def spots():
    """One bright square in each quadrant, over a little noise that no two pictures share."""
    images = torch.randint(40, (4, 1, 8, 8), dtype=torch.uint8)
    for label, (row, col) in enumerate([(1, 5), (1, 1), (5, 1), (5, 5)]):
        images[label, 0, row : row + 2, col : col + 2] = 250
    return Pictures(images, torch.arange(4))


def contestant(model, pictures):
    group = PlanarGroup.named("C4")
    images = pictures.images.float() / 255
    examination = examine(model, pictures, CLASSES, group, angles=8)
    return Contestant(model, examination, certify(model, group, images, angles=1))


@pytest.fixture(scope="module")
def contestants():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4))
    pictures = spots()
    models = {"steady": orbit(inner, "C4"), "fickle": BrightestQuadrant()}
    return pictures, {name: contestant(model, pictures) for name, model in models.items()}


@pytest.fixture(scope="module")
def html(contestants):
    pictures, both = contestants
    examples = pictures.take(torch.tensor([0, 2]))
    return comparison_page(TITLE, both, examples, CLASSES, note=NOTE, commands=COMMANDS)


def test_both_models_get_their_verdict(html):
    text = unescape(html)
    assert re.search(r"steady\b[^.]{0,20} INVARIANT under C4", text)
    assert re.search(r"fickle\b[^.]{0,20} NOT INVARIANT under C4", text)
    assert not re.search(r"steady\b[^.]{0,20} NOT INVARIANT", text)


def test_the_headline_tells_the_four_quarter_turns(html, contestants):
    """The steady model has one accuracy four times; the fickle one is right only upright."""
    lead = unescape(re.search(r"</h1><p>(.*?)</p>", html, re.DOTALL)[1])
    assert "steady model keeps its answer" in lead
    assert "fickle model changes its answers" in lead
    assert "100.0 %, 0.0 %, 0.0 %, 0.0 % at 0°, 90°, 180°, 270°" in lead
    same = format_percent(contestants[1]["steady"].examination["angles"]["accuracy"][0])
    assert f"{same}, {same}, {same}, {same} at 0°, 90°, 180°, 270°" in lead


def test_the_table_of_angles_has_every_figure(html, contestants):
    cells = Cells(html)
    for name, each in contestants[1].items():
        figures = [format_percent(a, digits=2) for a in each.examination["angles"]["accuracy"]]
        assert [name, *figures] in cells.rows


def test_the_certificates_stand_side_by_side(html, contestants):
    cells = Cells(html)
    steady, fickle = (each.certificate for each in contestants[1].values())
    for one, other in zip(steady.elements, fickle.elements, strict=True):
        errors = [one.float64, one.float32, other.float64, other.float32]
        assert [one.meaning, *map(format_error, errors)] in cells.rows
    for one, other in zip(steady.controls, fickle.controls, strict=True):
        (row,) = [row for row in cells.rows if row and row[0].endswith(one.name)]
        assert format_error(one.change) in row
        assert format_error(other.change) in row


def test_the_strips_show_what_the_models_answer(html):
    """A spot in quadrant q, turned by k quarters, is answered with q + k; right only upright."""
    strips = Cells(html).starting("fickle")[:2]
    for quadrant, (_, *answers) in zip((0, 2), strips, strict=True):
        assert len(answers) == 8
        for k, answer in enumerate(answers[::2]):
            assert CLASSES[(quadrant + k) % 4] in answer
            assert answer.startswith("✓" if k == 0 else "✗")


def test_the_steady_model_gives_one_answer_at_all_quarter_turns(html):
    for _, *answers in Cells(html).starting("steady")[:2]:
        assert len(set(answers[::2])) == 1


def test_the_strips_show_the_picture_as_it_turns(html, contestants):
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    assert len(images) == 16
    shown = [np.array(Image.open(io.BytesIO(base64.b64decode(image)))) for image in images]
    upright = contestants[0].images[0, 0].numpy()
    for k in range(4):
        np.testing.assert_array_equal(shown[2 * k], np.rot90(upright, k))


def test_scores_have_their_intervals(html, contestants):
    cells = Cells(html)
    for name, each in contestants[1].items():
        score = each.examination["scores"]["accuracy"]
        agreement = format_percent(each.examination["orbit_agreement"])
        interval = f"({100 * score['low']:.1f}–{100 * score['high']:.1f})"
        assert any(interval in row[1] and agreement in row for row in cells.starting(name))


def test_names_are_escaped(html):
    assert "<b>" not in html
    assert "&lt;b&gt;top &amp; right&lt;/b&gt;" in html
    assert "Two models &amp; one picture" in html
    assert "turnwise demo --epochs 1 &gt; log" in html


def test_nothing_is_loaded_from_anywhere(html):
    assert "http://" not in html
    assert "https://" not in html
    assert "<script" not in html
    sources = Cells(html).sources
    assert sources
    assert all(source.startswith("data:") for source in sources)


def test_how_the_examples_were_chosen_is_said(html):
    assert "<p>Chosen &amp; shown.</p>" in html


def test_examples_are_the_first_of_their_class_that_all_recognise():
    """The second model always says 1; both are right on pictures 1 and 5, of one class."""
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    twice = Pictures(spots().images[labels], labels)

    class AlwaysOne(BrightestQuadrant):
        def forward(self, images):
            return torch.eye(4)[1].repeat(len(images), 1)

    models = [BrightestQuadrant(), AlwaysOne()]
    assert recognised_by_all(models[:1], twice, [2, 0]).tolist() == [2, 0]
    assert recognised_by_all(models, twice, [2, 1, 0]).tolist() == [1]


def test_models_are_compared_under_one_group(contestants):
    pictures, both = contestants
    steady = both["steady"]
    other = Contestant(
        steady.model, steady.examination, certify(steady.model, "C2", torch.rand(2, 1, 8, 8))
    )
    with pytest.raises(InputError, match="under one group, got C2, C4"):
        comparison_page(
            TITLE, {"a": steady, "b": other}, pictures, CLASSES, note=NOTE, commands=COMMANDS
        )
