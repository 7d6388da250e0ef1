"""The report shows what was measured of every run, loads nothing, and adds nothing."""

import json
import re
from dataclasses import replace

import pytest
import torch

from turnwise.data import Examples
from turnwise.evaluation import Scope, certify
from turnwise.reports.pages.report import (
    choose_examples,
    report_page,
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
