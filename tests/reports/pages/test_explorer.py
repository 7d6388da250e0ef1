"""The explorer holds the predictions of every view, and its data cannot end its script."""

import base64
import json
import re

import pytest
import torch

from turnwise.reports.loaded_models import rotated_views, shifted_views
from turnwise.reports.pages.explorer import (
    REACH,
    STEP,
    explorer_data,
    explorer_html,
    rotated_predictions,
)


@pytest.fixture
def examples(make_model):
    return make_model("vit").examples.take(torch.tensor([4, 9]))


@pytest.fixture
def data(make_model, examples):
    return explorer_data([make_model("orbit_vit"), make_model("vit")], examples)


def test_predictions_over_angles_are_those_of_the_model(make_model, examples):
    loaded, image = make_model("vit"), examples.images[0]
    found = rotated_predictions(loaded.model, image, "zeros")
    assert len(found) == 360 // STEP
    for angle in (35.0, 90.0):
        expected = loaded.predictor.probabilities(rotated_views(image, [angle], "zeros"))[0]
        torch.testing.assert_close(found[int(angle / STEP)].float(), expected)


def test_shown_numbers_at_90_degrees_are_equal_for_the_orbit_only(data):
    assert data["models"] == ["orbit_vit", "vit"]
    for entry in data["images"]:
        orbit, plain = (by_angle[:: 90 // STEP] for by_angle in entry["rotated"])
        assert all(predicted == orbit[0] for predicted in orbit)
        assert any(predicted != plain[0] for predicted in plain)


def test_predictions_of_the_orbit_change_off_the_grid(data):
    orbit = data["images"][0]["rotated"][0]
    assert orbit[1] != orbit[0]


def test_shifts_are_looked_up_at_their_index(data, make_model, examples):
    side = 2 * REACH + 1
    right, up = 3, -2
    stored = data["images"][1]["shifted"][1][(REACH - up) * side + right + REACH]
    views = shifted_views(examples.images[1], [(right, up)])
    (expected,) = make_model("vit").predictor.probabilities(views)
    assert stored == (expected.double() * 10_000).round().long().tolist()


def test_entries_hold_the_pixels_and_labels_of_their_images(data, examples):
    for entry, image, label in zip(
        data["images"], examples.images, examples.labels.tolist(), strict=True
    ):
        assert base64.b64decode(entry["pixels"]) == image.movedim(0, -1).numpy().tobytes()
        assert entry["classes"][entry["label"]] == str(label)


def test_the_html_holds_the_data_and_its_controls_have_names(data, examples):
    html = explorer_html(data, examples)
    stored = re.search(r'id="explorer-data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(stored[1]) == data
    assert '<label for="explorer-angle">' in html and 'aria-label="other pictures"' in html
    assert html.count("<button") == 1 + len(examples)


def test_a_hostile_class_cannot_end_the_data(data, examples):
    data["images"][0]["classes"][0] = "</script><script>alert(1)</script>"
    data["models"][0] = "<!--<script>"
    html = explorer_html(data, examples)
    assert html.count("</script>") == 1 and "<!--" not in html
