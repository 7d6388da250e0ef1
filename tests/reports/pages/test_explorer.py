"""What the page looks up is what the models say, and quarter turns are equal to the last digit."""

import base64
import json
import re

import pytest
import torch

from turnwise.reports.pages.explorer import (
    REACH,
    STEP,
    explorer_data,
    explorer_html,
    explorer_script,
    rotated_predictions,
)
from turnwise.reports.views import answers_to, rotated_views, shifted_views


@pytest.fixture
def examples(make_subject):
    return make_subject("vit").pictures.take(torch.tensor([4, 9]))


@pytest.fixture
def data(make_subject, examples):
    return explorer_data([make_subject("orbit_vit"), make_subject("vit")], examples)


def test_answers_over_angles_are_the_models(make_subject, examples):
    model, picture = make_subject("vit").model, examples.images[0]
    answers = rotated_predictions(model, picture)
    assert len(answers) == 360 // STEP
    for angle in (35.0, 90.0):
        expected = answers_to(model, rotated_views(picture, [angle]))[0]
        torch.testing.assert_close(answers[int(angle / STEP)].float(), expected)


def test_law_and_control(data):
    """Shown numbers at quarter turns: equal for the orbit, different for the plain model."""
    assert data["models"] == ["orbit_vit", "vit"]
    for picture in data["pictures"]:
        orbit, plain = (said[:: 90 // STEP] for said in picture["turned"])
        assert all(answer == orbit[0] for answer in orbit)
        assert any(answer != plain[0] for answer in plain)


def test_witness_between_quarters_the_orbit_moves(data):
    orbit = data["pictures"][0]["turned"][0]
    assert orbit[1] != orbit[0]


def test_shifts_are_looked_up_where_they_stand(data, make_subject, examples):
    side = 2 * REACH + 1
    right, up = 3, -2
    kept = data["pictures"][1]["shifted"][1][(REACH - up) * side + right + REACH]
    expected = answers_to(
        make_subject("vit").model, shifted_views(examples.images[1], [(right, up)])
    )
    assert kept == (expected[0].double() * 10_000).round().long().tolist()


def test_pictures_keep_their_pixels_and_labels(data, examples):
    for picture, image, label in zip(
        data["pictures"], examples.images, examples.labels.tolist(), strict=True
    ):
        assert base64.b64decode(picture["pixels"]) == image.movedim(0, -1).numpy().tobytes()
        assert picture["classes"][picture["label"]] == str(label)


def test_the_html_carries_the_data_and_controls_have_names(data, examples):
    html = explorer_html(data, examples)
    carried = re.search(r'id="explorer-data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(carried[1]) == data
    assert '<label for="explorer-angle">' in html and 'aria-label="other pictures"' in html
    assert html.count("<button") == 1 + len(examples)
    assert all(word in explorer_script() for word in ("function showVoice", "pointerdown"))


def test_a_hostile_class_cannot_end_the_data(data, examples):
    data["pictures"][0]["classes"][0] = "</script><script>alert(1)</script>"
    data["models"][0] = "<!--<script>"
    html = explorer_html(data, examples)
    assert html.count("</script>") == 1 and "<!--" not in html
