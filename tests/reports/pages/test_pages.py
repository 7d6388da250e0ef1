"""Pages hold what they were given, load nothing, and escape every name."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.errors import InputError
from turnwise.reports.pages import (
    Prediction,
    Section,
    data_html,
    figure_html,
    film_strip,
    folded_html,
    image_html,
    page,
    paragraph_html,
    table_html,
    write_page,
)

HOSTILE = """"><script>alert('1')</script><img src=x onerror="alert(2)">&amp;"""
SVG = "<svg xmlns='http://www.w3.org/2000/svg'/>"
VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """What a browser would see: elements with attributes, text, and whether the tags match."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def grey(rows=2, cols=3):
    return torch.arange(rows * cols, dtype=torch.uint8).view(1, rows, cols) * 40


def decoded(html):
    (image,) = Reader(html).attributes("img")
    kind, content = image["src"].split(",", 1)
    assert kind == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(content))), image


def strip(label="7", model="gsa"):
    predicted = {model: [Prediction(label, 0.991, True), Prediction("1", 0.5, False)]}
    return film_strip([0.0, 45.0], [grey(), grey()], predicted, caption="A picture of: 7")


def whole_page(text="text"):
    sections = [
        Section(text, paragraph_html(text) + table_html([text, "n"], [[text, "1"]], text)),
        Section("plots", figure_html(SVG, text) + image_html(grey(), text) + strip(text, text)),
    ]
    return page(text, sections, summary=text)


def test_a_page_has_language_title_and_headings_in_order():
    reader = Reader(whole_page())
    tags = [tag for tag, _ in reader.elements]
    assert reader.attributes("html") == [{"lang": "en"}]
    assert [tag for tag in tags if tag in ("h1", "h2")] == ["h1", "h2", "h2"]
    assert {"title", "header", "main", "footer"} <= set(tags)
    labelled = [section["aria-labelledby"] for section in reader.attributes("section")]
    assert labelled == [heading["id"] for heading in reader.attributes("h2")]
    assert len(set(labelled)) == 2


def test_a_page_loads_nothing():
    html = whole_page()
    reader = Reader(html)
    assert all(image["src"].startswith("data:") for image in reader.attributes("img"))
    assert not reader.attributes("link") and not reader.attributes("script")
    assert "@import" not in html and "url(" not in html
    (policy,) = [m["content"] for m in reader.attributes("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'")


def test_a_hostile_name_is_only_text():
    """The page has the same elements as with a harmless name, and shows the name as it is."""
    harmless, hostile = Reader(whole_page()), Reader(whole_page(HOSTILE))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert not any(k.startswith("on") for _, given in hostile.elements for k in given)
    assert sum(HOSTILE in text for text in hostile.texts) == sum(
        text == "text" for text in harmless.texts
    )
    assert HOSTILE in [image.get("alt") for image in hostile.attributes("img")]


def test_every_image_has_a_description():
    assert all(image["alt"] for image in Reader(whole_page()).attributes("img"))


def test_a_table_names_its_rows_and_aligns_numbers():
    html = table_html(["model", "error"], [["gsa", "3.3e-16"], ["vit", "0"]])
    reader = Reader(html)
    assert [head.get("scope") for head in reader.attributes("th")] == ["col", "col", "row", "row"]
    assert reader.attributes("td") == [{"class": "number"}] * 2
    assert [text for text in reader.texts if text.strip()] == [
        "model", "error", "gsa", "3.3e-16", "vit", "0",
    ]  # fmt: skip


def test_a_plot_holds_its_svg_and_its_description():
    html = figure_html(SVG, "caption", alt="a line that falls")
    (image,) = Reader(html).attributes("img")
    assert base64.b64decode(image["src"].partition(",")[2]).decode() == SVG
    assert image["alt"] == "a line that falls"
    assert Reader(html).texts == ["caption"]


def test_a_grey_image_keeps_its_pixels():
    shown, attributes = decoded(image_html(grey(), "digit", scale=4))
    assert np.array_equal(np.asarray(shown), grey()[0].numpy())
    assert (attributes["width"], attributes["height"]) == ("12", "8")


def test_a_colour_image_keeps_its_pixels():
    image = torch.randint(256, (3, 4, 5), dtype=torch.uint8)
    shown, _ = decoded(image_html(image, "galaxy"))
    assert np.array_equal(np.asarray(shown), image.permute(1, 2, 0).numpy())


def test_an_image_of_two_channels_is_refused():
    with pytest.raises(InputError, match="1 or 3 channels, got 2"):
        image_html(torch.zeros(2, 4, 4, dtype=torch.uint8), "alt")


def test_a_film_strip_marks_predictions_by_symbol_word_and_colour():
    cells = re.findall(r'<span class="prediction.*?</td>', strip())
    seen = [("".join(Reader(f"<td>{cell}").texts), cell.split('"')[1]) for cell in cells]
    assert seen == [
        ("✓ 799.1 %, correct", "prediction correct"),
        ("✗ 150.0 %, wrong", "prediction wrong"),
    ]


def test_a_film_strip_has_a_column_per_angle():
    texts = [text for text in Reader(strip()).texts if text.strip()]
    assert texts[:5] == ["A picture of: 7", "rotated by", "0°", "45°", "picture"]
    alts = [image["alt"] for image in Reader(strip()).attributes("img")]
    assert alts == ["the picture rotated by 0°", "the picture rotated by 45°"]


def test_a_wide_table_can_be_scrolled_by_keyboard():
    regions = [d for d in Reader(strip()).attributes("div") if d.get("class") == "wide"]
    assert regions == [
        {"class": "wide", "role": "region", "aria-label": "A picture of: 7", "tabindex": "0"}
    ]


def test_the_page_is_written_whole(tmp_path):
    write_page(tmp_path / "new" / "page.html", whole_page("Φ ✓"))
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == whole_page("Φ ✓")


def test_a_name_that_is_not_utf_8_does_not_stop_the_page(tmp_path):
    """Python reads such bytes of a file name as lone surrogates."""
    write_page(tmp_path / "page.html", whole_page("caf\udce9"))
    assert "caf?" in (tmp_path / "page.html").read_text(encoding="utf-8")


def policy_of(html):
    (policy,) = [m["content"] for m in Reader(html).attributes("meta") if "http-equiv" in m]
    return policy


def test_a_script_is_allowed_by_its_hash_and_no_other():
    html = page("t", [], script="let a = 1;")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy_of(html).endswith(f"; script-src 'sha256-{digest}'")
    assert "unsafe-inline" not in policy_of(html).partition("script-src")[2]
    assert "connect-src" not in policy_of(html)
    assert html.index("</main>") < html.index("<script>")


def test_a_page_without_a_script_allows_none():
    assert "script" not in policy_of(whole_page())
    assert "connect-src 'self'" in policy_of(page("t", [], calls_server=True))


def test_data_are_json_that_cannot_end_their_element():
    value = {"name": HOSTILE, "numbers": [1, 0.5], "é": None}
    html = data_html("da<ta", value)
    ((_, attributes),) = Reader(html).elements
    assert attributes == {"type": "application/json", "id": "da<ta"}
    content = html.partition(">")[2].removesuffix("</script>")
    assert "<" not in content and json.loads(content) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        data_html("data", float("nan"))


def test_folded_content_has_a_title():
    html = folded_html(HOSTILE, paragraph_html("inside"))
    assert [tag for tag, _ in Reader(html).elements] == ["details", "summary", "p"]
    assert Reader(html).texts == [HOSTILE, "inside"]
