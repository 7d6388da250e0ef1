"""The live report in a real browser: it runs the models itself, offline, as turnwise runs them.

Needs onnxruntime-web in the cache: turnwise report RUN --live --download.
"""

import base64
import json

import pytest
import torch
from PIL import Image

from turnwise.cli.main import main
from turnwise.data import load_dataset, read_image
from turnwise.data.batches import to_unit
from turnwise.deploy.browser_runtime import find_runtime
from turnwise.geometry.warps import rotate_image
from turnwise.inference.predictor import Predictor
from turnwise.models import load

STATUS = "document.getElementById('live-status').innerText"


@pytest.fixture(scope="module")
def report(browser, runs, tmp_path_factory):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    if find_runtime() is None:
        pytest.skip("onnxruntime-web is not in the cache: turnwise report RUN --live --download")
    path = tmp_path_factory.mktemp("live") / "report.html"
    words = ["report", *map(str, runs), "--live", "--output", str(path), "--images", "3"]
    assert main(words) == 0
    return path


@pytest.fixture
def opened(page, report):
    page.open(report.as_uri())
    page.wait_for(f"{STATUS}.startsWith('rotated by 0°')")
    return page


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """A five as a photograph: larger than the models take, not square, and in colour."""
    path = tmp_path_factory.mktemp("photo") / "five.png"
    digit = Image.fromarray(load_dataset("digits").val.images[261, 0].numpy())
    wide = Image.new("RGB", (171, 150), (40, 0, 0))
    wide.paste(digit.resize((140, 140)).convert("RGB"), (12, 5))
    wide.save(path)
    return path


def rotate(page, degrees):
    page.evaluate(
        f"document.getElementById('live-angle').value = {degrees};"
        "document.getElementById('live-angle').dispatchEvent(new Event('input'))"
    )
    page.wait_for(f"{STATUS}.startsWith('rotated by {degrees}°')")


def shown_probabilities(page):
    """Return per cent, (model, class)."""
    lines = "[...b.querySelectorAll('li')].map(l => parseFloat(l.lastChild.innerText))"
    boxes = f"[...document.querySelectorAll('#live-models .model')].map(b => {lines})"
    return torch.tensor(page.evaluate(boxes))


def expected_probabilities(runs, image, degrees):
    """Return the same from Python; the page rounds rotated pixels to bytes."""
    rotated = rotate_image(to_unit(image[None]), float(degrees), "zeros")
    rotated = (255 * rotated).round() / 255
    return torch.stack([100 * Predictor(load(run)).probabilities(rotated)[0] for run in runs])


def test_it_sends_nothing_and_opens_from_disk(opened, report):
    assert 2e6 < report.stat().st_size < 25e6
    remote = [url for url in opened.requests if not url.startswith(("data:", "file:", "blob:"))]
    assert remote == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1


@pytest.mark.parametrize("degrees", [0, 37, 90, 180])
def test_a_file_is_predicted_as_by_turnwise(opened, runs, photo, degrees):
    opened.choose_file("#live-file", photo)
    pressed = "document.querySelector('#live-choice [aria-pressed=true]')"
    opened.wait_for(f"{pressed} === null")
    rotate(opened, degrees)
    expected = expected_probabilities(runs, read_image(photo, 28, 1), degrees)
    assert (shown_probabilities(opened) - expected).abs().max() < 0.1


def test_rotations_by_90_degrees_change_only_the_baseline(opened):
    before = shown_probabilities(opened)
    rotate(opened, 90)
    changes = (shown_probabilities(opened) - before).abs().amax(1)
    assert changes[0] < 0.02 < 0.5 < changes[1]


def test_it_rotates_on_its_own_and_draws_the_probabilities(opened):
    opened.evaluate("document.getElementById('live-play').click()")
    opened.wait_for("Number(document.getElementById('live-angle').value) > 20")
    opened.evaluate("document.getElementById('live-play').click()")
    curves = "[...document.querySelectorAll('#live-trace .curve')].map(c => c.getAttribute('d'))"
    assert [d.count("L") > 8 for d in opened.evaluate(curves)] == [True, True]


def test_the_map_of_what_counts_is_measured(opened, runs):
    """The largest fall of the probability is that of Python, over the same 49 squares."""
    data = json.loads(opened.evaluate("document.getElementById('live-data').textContent"))
    pixels = torch.frombuffer(
        bytearray(base64.b64decode(data["examples"][0]["pixels"])), dtype=torch.uint8
    )
    image = pixels.view(1, 28, 28)
    covered = image.repeat(49, 1, 1, 1)
    for number in range(49):
        row, col = 4 * (number // 7), 4 * (number % 7)
        covered[number, :, row : row + 4, col : col + 4] = image.float().mean().round().byte()
    opened.evaluate("document.getElementById('live-occlusion').click()")
    captions = "[...document.querySelectorAll('#live-models .map small')].map(c => c.innerText)"
    opened.wait_for(f"{captions}.filter(text => text.includes('%')).length === 2")
    for run, caption in zip(runs, opened.evaluate(captions), strict=True):
        predictor = Predictor(load(run))
        upright = predictor.probabilities(to_unit(image[None]))[0]
        falls = upright.max() - predictor.probabilities(to_unit(covered))[:, upright.argmax()]
        assert caption.startswith("largest fall: ")
        assert abs(float(caption.split()[2]) - 100 * float(falls.max())) < 0.02


def test_what_is_no_picture_is_refused(opened, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    opened.choose_file("#live-file", tmp_path / "text.png")
    opened.wait_for(f"{STATUS}.includes('cannot read the file as a picture')")
