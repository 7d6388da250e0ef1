"""The report in a real browser: it opens offline, turns, shifts, and obeys the keyboard."""

import json

import numpy as np
import pytest
import torch

from turnwise.cli.main import main
from turnwise.reports.loaded_models import load_models
from turnwise.reports.views import rotated_views, shifted_views

SAID = "[...document.querySelectorAll('#explorer-voices .voice')].map(v => v.innerText)"
PIXELS = """(() => { const c = document.getElementById('explorer-picture');
  return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"""


@pytest.fixture(scope="module")
def report(browser, runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", *map(str, runs), "--output", str(path), "--pictures", "3"]) == 0
    return path


@pytest.fixture
def opened(page, report):
    page.open(report.as_uri())
    return page


def turn(page, degrees):
    page.ask(
        f"document.getElementById('explorer-angle').value = {degrees};"
        "document.getElementById('explorer-angle').dispatchEvent(new Event('input'))"
    )


def data_of(page):
    return json.loads(page.ask("document.getElementById('explorer-data').textContent"))


def shown_picture(page):
    data = data_of(page)["pictures"][0]
    rgba = np.array(page.ask(PIXELS)).reshape(data["rows"], data["cols"], 4)
    return rgba[..., 0]


def first_example(page, runs):
    """The picture on the page, found again among the run's own."""
    (subject,) = load_models([str(runs[0])])
    pixels = shown_picture(page)
    same = (subject.pictures.images[:, 0] == torch.tensor(pixels)).flatten(1).all(1)
    return subject.pictures.images[same.nonzero()[0, 0]]


def test_it_opens_offline_and_asks_for_nothing(opened, report):
    assert report.stat().st_size < 5_000_000
    assert [url for url in opened.requests if not url.startswith(("data:", "file:"))] == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1
    assert opened.ask("document.querySelectorAll('h2').length") >= 5


def test_quarter_turns_change_the_plain_models_numbers_and_not_the_equivariants(opened):
    before = opened.ask(SAID)
    for degrees in (90, 180, 270):
        turn(opened, degrees)
        after = opened.ask(SAID)
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert f"turned by {degrees}°" in opened.ask("document.body.innerText")


def test_witness_between_quarters_both_move(opened):
    before = opened.ask(SAID)
    turn(opened, 45)
    after = opened.ask(SAID)
    assert after[0] != before[0] and after[1] != before[1]


@pytest.mark.parametrize("degrees", [0, 35, 90, 215])
def test_the_picture_is_turned_as_the_model_saw_it(opened, runs, degrees):
    original = first_example(opened, runs)
    turn(opened, degrees)
    expected = 255 * rotated_views(original, [float(degrees)])[0, 0].numpy()
    assert np.abs(shown_picture(opened) - expected).max() < 1.01


def test_the_slider_obeys_the_keyboard(opened):
    opened.ask("document.getElementById('explorer-angle').focus()")
    opened.press("ArrowRight", 39)
    opened.press("ArrowRight", 39)
    assert opened.ask("document.getElementById('explorer-angle').value") == "10"
    assert "turned by 10°" in opened.ask("document.body.innerText")


def test_arrow_keys_shift_the_picture_and_home_brings_it_back(opened, runs):
    original, before = first_example(opened, runs), opened.ask(SAID)
    opened.ask("document.getElementById('explorer-picture').focus()")
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowUp", 38)):
        opened.press(key, code)
    assert "shifted by 2 to the right and 1 up" in opened.ask("document.body.innerText")
    expected = 255 * shifted_views(original, [(2, 1)])[0, 0].numpy()
    assert np.abs(shown_picture(opened) - expected).max() < 1.01
    assert opened.ask(SAID) != before
    opened.press("Home", 36)
    assert opened.ask(SAID) == before


def test_dragging_shifts_the_picture_up_to_its_limit(opened):
    box = "document.getElementById('explorer-picture').getBoundingClientRect()"
    x, y, width = opened.ask(f"(r => [r.x, r.y, r.width])({box})")
    pixel = width / 28
    turn(opened, 90)
    opened.drag((x + 50, y + 50), (x + 50 + 3 * pixel, y + 50 + 2 * pixel))
    assert "shifted by 3 to the right and -2 up" in opened.ask("document.body.innerText")
    assert opened.ask("document.getElementById('explorer-angle').value") == "0"
    opened.drag((x + 50, y + 50), (x + 50 + 25 * pixel, y + 50))
    assert "shifted by 5 to the right" in opened.ask("document.body.innerText")


def test_other_pictures_are_chosen_by_keyboard(opened):
    before = opened.ask(PIXELS)
    opened.ask("document.querySelectorAll('#explorer-choice button')[2].focus()")
    opened.press(" ", 32)
    opened.wait_for(
        "document.querySelectorAll('#explorer-choice button')[2].ariaPressed === 'true'"
    )
    assert opened.ask(PIXELS) != before
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].length"
    assert opened.ask(pressed) == 1


def test_the_answers_shown_are_those_precomputed(opened):
    data = data_of(opened)
    picture = data["pictures"][0]
    turn(opened, 35)
    for m, text in enumerate(opened.ask(SAID)):
        for probability in picture["turned"][m][7]:
            assert f"{probability / 100:.2f} %" in text


def test_the_page_fits_a_narrow_screen(opened):
    opened.call("Emulation.setDeviceMetricsOverride", width=360, height=700,
                deviceScaleFactor=1, mobile=True)  # fmt: skip
    assert opened.ask("document.documentElement.scrollWidth") <= 360
    opened.call("Emulation.clearDeviceMetricsOverride")


def test_control_a_script_that_is_not_ours_does_not_run(browser, report, tmp_path):
    """The measure of complaints must speak, and the policy must hold."""
    planted = report.read_text().replace("</main>", "<script>window.planted = 1</script></main>")
    (tmp_path / "planted.html").write_text(planted)
    browser.open((tmp_path / "planted.html").as_uri())
    assert browser.ask("window.planted === undefined")
    assert any("Content Security Policy" in words for words in browser.complaints)
