"""The report shows what was measured of every run, loads nothing, and adds nothing."""

import base64
import json
import re
from dataclasses import replace

import pytest
import torch

from turnwise.data import Examples
from turnwise.evaluation import Scope, certify
from turnwise.reports.loaded_models import rotated_views, shifted_views
from turnwise.reports.pages.report import (
    REACH,
    STEP,
    choose_examples,
    explorer_data,
    explorer_html,
    report_page,
    rotated_predictions,
    stored_certificate,
)
from turnwise.runs.run import Run

TESTED = {
    "times_evaluated": 1,
    "images": 500,
    "group": "C4",
    "scores": {"accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}},
    "classes": [],
    "angles": {"degrees": [0.0, 90.0], "accuracy": [0.5, 0.125]},
    "orbit_agreement": 0.25,
    "rotation_agreement": 0.1,
}


@pytest.fixture
def loaded(make_model, tmp_path):
    """A model with a run folder whose name looks like HTML."""
    run = Run(tmp_path / "<b>run")
    run.path.mkdir()
    (run.path / "metrics.csv").write_text("epoch,train_loss,val_accuracy\n0,2.0,0.5\n1,1.0,0.75\n")
    (run.path / "recipe.yaml").write_text("model:\n  name: vit # <i>\n")
    return replace(make_model("vit"), name="<b>run", run=run)


@pytest.fixture
def certificate(loaded):
    images = loaded.examples.images[:2] / 255
    scope = Scope(precisions=("float32",), shifts=0, layers=False)
    found = certify(loaded.model, "C8", images, images_from="digits", angles=1, scope=scope)
    return replace(found, elements=(replace(found.elements[1], float32=0.25),))


def write_report(loaded, certificate=None, tested=None):
    if certificate is not None:
        loaded.run.write_certificate(certificate.plain())
    if tested is not None:
        loaded.run.write_evaluation(tested)
    examples = choose_examples([loaded], 2)
    return report_page("T & t", [loaded], examples, note="Chosen.", commands="turnwise report a>b")


def test_missing_measurements_are_named(loaded):
    html = write_report(loaded)
    assert "has no certificate yet; make one: turnwise certify" in html
    assert "200 validation images" in html and "Scores on the test split" not in html


def test_stored_measurements_are_shown(loaded, certificate):
    html = write_report(loaded, certificate, TESTED)
    assert "NOT INVARIANT under C4, the exact subgroup of C8" in html
    assert "2.5e-01" in html and "the test images" in html
    assert "50.0 % (40.0–60.0)" in html and "12.5 %" in html
    assert "changes its predictions when the picture is rotated by 90°" in html


def test_a_certificate_of_other_weights_is_ignored(loaded, certificate):
    html = write_report(loaded, replace(certificate, weights_sha256="f" * 64), TESTED)
    assert "has no certificate yet" in html


def test_a_group_without_rotations_has_no_sentence_about_rotations(loaded, certificate):
    html = write_report(loaded, replace(certificate, group="D1", exact_subgroup="D1"), TESTED)
    assert "rotated by 90°" not in html.partition("<main>")[0]


def test_names_are_escaped_and_nothing_is_loaded(loaded):
    html = write_report(loaded)
    assert "<b>run" not in html and "&lt;b&gt;run" in html
    assert "function showPredictions" in html and "pointerdown" in html
    assert "name: vit # &lt;i&gt;" in html and "turnwise report a&gt;b" in html
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+'", html)
    assert len(html) < 5_000_000


def test_examples_are_recognised_if_possible(quadrant):
    images = quadrant.examples.images[[3, 0, 1, 1]]  # the first of class 0 looks like the last
    examples = Examples(images, torch.tensor([0, 0, 1, 3]))
    chosen = choose_examples([replace(quadrant, examples=examples)], 6)
    assert chosen.labels.tolist() == [0, 1, 3]
    assert torch.equal(chosen.images[0], quadrant.examples.images[0])
    assert len(choose_examples([quadrant], 2)) == 2


@pytest.mark.parametrize("text", ["", "[1]", '{"holds": true}', "not json"])
def test_a_damaged_certificate_is_ignored(loaded, text):
    loaded.run.certificate_file.write_text(text)
    assert stored_certificate(loaded) is None
    assert stored_certificate(replace(loaded, run=None)) is None


def test_a_certificate_is_read_from_its_file(loaded, certificate):
    loaded.run.certificate_file.write_text(json.dumps(certificate.plain()))
    assert stored_certificate(loaded) == certificate


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
