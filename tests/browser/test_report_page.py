"""The report in a real browser: it opens offline, rotates, shifts, and works by keyboard."""

import base64
import json

import numpy as np
import pytest
import torch

from turnwise.cli.main import main
from turnwise.geometry.warps import FILLS
from turnwise.reports.loaded_models import load_models, rotated_views, shifted_views

PREDICTIONS = "[...document.querySelectorAll('#explorer-models .model')].map(m => m.innerText)"
PIXELS = """(() => { const c = document.getElementById('explorer-image');
  return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"""


@pytest.fixture(scope="module")
def report(browser, runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", *map(str, runs), "--output", str(path), "--images", "3"]) == 0
    return path


@pytest.fixture
def opened(page, report):
    page.open(report.as_uri())
    return page


def rotate(page, degrees):
    page.evaluate(
        f"document.getElementById('explorer-angle').value = {degrees};"
        "document.getElementById('explorer-angle').dispatchEvent(new Event('input'))"
    )


def data_of(page):
    return json.loads(page.evaluate("document.getElementById('explorer-data').textContent"))


def shown_image(page):
    data = data_of(page)["images"][0]
    rgba = np.array(page.evaluate(PIXELS)).reshape(data["rows"], data["cols"], 4)
    return rgba[..., 0]


def first_example(page, runs):
    """Return the image on the page as it is in the data set of the run."""
    (loaded,) = load_models([str(runs[0])])
    pixels = shown_image(page)
    same = (loaded.examples.images[:, 0] == torch.tensor(pixels)).flatten(1).all(1)
    return loaded.examples.images[same.nonzero()[0, 0]]


def test_it_opens_offline_and_requests_nothing(opened, report):
    assert report.stat().st_size < 5_000_000
    assert [url for url in opened.requests if not url.startswith(("data:", "file:"))] == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1
    assert opened.evaluate("document.querySelectorAll('h2').length") >= 5


def test_rotations_by_90_degrees_change_only_the_baseline(opened):
    before = opened.evaluate(PREDICTIONS)
    for degrees in (90, 180, 270):
        rotate(opened, degrees)
        after = opened.evaluate(PREDICTIONS)
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert f"rotated by {degrees}°" in opened.evaluate("document.body.innerText")


def test_other_rotations_change_both_models(opened):
    before = opened.evaluate(PREDICTIONS)
    rotate(opened, 45)
    after = opened.evaluate(PREDICTIONS)
    assert after[0] != before[0] and after[1] != before[1]


@pytest.mark.parametrize("degrees", [0, 35, 90, 215])
def test_the_image_is_rotated_as_for_the_model(opened, runs, degrees):
    original = first_example(opened, runs)
    rotate(opened, degrees)
    expected = 255 * rotated_views(original, [float(degrees)], "zeros")[0, 0].numpy()
    assert np.abs(shown_image(opened) - expected).max() < 1.01


@pytest.mark.parametrize("fill", FILLS)
def test_corners_are_filled_as_for_the_model(opened, fill):
    """With random pixels, so that no border is black."""
    image = torch.randint(0, 256, (1, 28, 28), dtype=torch.uint8)
    pixels = base64.b64encode(image.numpy().tobytes()).decode()
    opened.evaluate(f"data.fill = '{fill}'; data.images[0].pixels = '{pixels}'; 0")
    for degrees in (0, 35, 90):
        rotate(opened, degrees)
        expected = 255 * rotated_views(image, [float(degrees)], fill)[0, 0].numpy()
        assert np.abs(shown_image(opened) - expected).max() < 1.01, degrees


def test_the_slider_works_by_keyboard(opened):
    opened.evaluate("document.getElementById('explorer-angle').focus()")
    opened.press("ArrowRight", 39)
    opened.press("ArrowRight", 39)
    assert opened.evaluate("document.getElementById('explorer-angle').value") == "10"
    assert "rotated by 10°" in opened.evaluate("document.body.innerText")


def test_arrow_keys_shift_the_image_and_home_resets_it(opened, runs):
    original, before = first_example(opened, runs), opened.evaluate(PREDICTIONS)
    opened.evaluate("document.getElementById('explorer-image').focus()")
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowUp", 38)):
        opened.press(key, code)
    assert "shifted 2 right and 1 up" in opened.evaluate("document.body.innerText")
    expected = 255 * shifted_views(original, [(2, 1)])[0, 0].numpy()
    assert np.abs(shown_image(opened) - expected).max() < 1.01
    assert opened.evaluate(PREDICTIONS) != before
    opened.press("Home", 36)
    assert opened.evaluate(PREDICTIONS) == before


def test_dragging_shifts_the_image_up_to_the_limit(opened):
    box = "document.getElementById('explorer-image').getBoundingClientRect()"
    x, y, width = opened.evaluate(f"(r => [r.x, r.y, r.width])({box})")
    pixel = width / 28
    rotate(opened, 90)
    opened.drag((x + 50, y + 50), (x + 50 + 3 * pixel, y + 50 + 2 * pixel))
    assert "shifted 3 right and 2 down" in opened.evaluate("document.body.innerText")
    assert opened.evaluate("document.getElementById('explorer-angle').value") == "0"
    opened.drag((x + 50, y + 50), (x + 50 + 25 * pixel, y + 50))
    assert "shifted 5 right" in opened.evaluate("document.body.innerText")


def test_other_images_are_chosen_by_keyboard(opened):
    before = opened.evaluate(PIXELS)
    opened.evaluate("document.querySelectorAll('#explorer-choice button')[2].focus()")
    opened.press(" ", 32)
    opened.wait_for(
        "document.querySelectorAll('#explorer-choice button')[2].ariaPressed === 'true'"
    )
    assert opened.evaluate(PIXELS) != before
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].length"
    assert opened.evaluate(pressed) == 1


def test_the_predictions_shown_are_those_computed_beforehand(opened):
    data = data_of(opened)
    entry = data["images"][0]
    rotate(opened, 35)
    for m, text in enumerate(opened.evaluate(PREDICTIONS)):
        for probability in entry["rotated"][m][7]:
            assert f"{probability / 100:.2f} %" in text


def test_the_page_fits_a_narrow_screen(opened):
    opened.call("Emulation.setDeviceMetricsOverride", width=360, height=700,
                deviceScaleFactor=1, mobile=True)  # fmt: skip
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    opened.call("Emulation.clearDeviceMetricsOverride")


def test_an_injected_script_does_not_run(browser, report, tmp_path):
    """The policy must hold, and the record of problems must show that it was needed."""
    injected = report.read_text().replace("</main>", "<script>window.injected = 1</script></main>")
    (tmp_path / "injected.html").write_text(injected)
    browser.open((tmp_path / "injected.html").as_uri())
    assert browser.evaluate("window.injected === undefined")
    assert any("Content Security Policy" in problem for problem in browser.problems)
