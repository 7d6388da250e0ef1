"""The report says what was measured of every run, loads nothing, and invents nothing."""

import json
import re
from dataclasses import replace

import pytest
import torch

from turnwise.data import Examples
from turnwise.evaluation.certificate.scores import hash_weights
from turnwise.reports.pages.report import chosen_examples, read_certificate, report_page

CERTIFICATE = {
    "holds": False,
    "group": "C8",
    "exact_part": "C4",
    "pictures": "8 pictures",
    "elements": [{"meaning": "turn by 90°", "float64": 0.25, "float32": None}],
    "controls": [{"name": "shuffled", "change": "nan"}],
}
TESTED = {
    "times_examined": 1,
    "group": "C4",
    "scores": {"accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}},
    "classes": [],
    "angles": {"degrees": [0.0, 90.0], "accuracy": [0.5, 0.125]},
    "orbit_agreement": 0.25,
    "turn_agreement": 0.1,
}


@pytest.fixture
def subject(make_subject, tmp_path):
    run = tmp_path / "<b>run"
    run.mkdir()
    (run / "metrics.csv").write_text("epoch,train_loss,val_accuracy\n0,2.0,0.5\n1,1.0,0.75\n")
    (run / "recipe.yaml").write_text("model:\n  name: vit # <i>\n")
    return replace(make_subject("vit"), name="<b>run", run=run)


def of(subject):
    return CERTIFICATE | {"weights_sha256": hash_weights(subject.model)}


def written(subject, **files):
    for name, content in files.items():
        (subject.run / f"{name}.json").write_text(json.dumps(content))
    examples = chosen_examples([subject], 2)
    return report_page("T & t", [subject], examples, note="Chosen.", commands="turnwise report a>b")


def test_what_was_not_measured_is_said(subject):
    html = written(subject)
    assert "has no certificate yet; make one: turnwise certify" in html
    assert "200 validation pictures" in html and "Scores on the test split" not in html


def test_what_was_measured_is_there(subject):
    html = written(subject, certificate=of(subject), test=TESTED)
    assert "NOT INVARIANT under C4, the exact part of C8" in html
    assert "2.5e-01" in html and "the test pictures" in html
    assert "50.0 % (40.0–60.0)" in html and "12.5 %" in html
    assert "changes its answers when the picture is turned by a quarter" in html


def test_a_certificate_of_other_weights_is_none(subject):
    html = written(subject, certificate=CERTIFICATE | {"weights_sha256": "f" * 64}, test=TESTED)
    assert "has no certificate yet" in html


def test_mirrors_are_no_turns(subject):
    html = written(subject, certificate=of(subject) | {"group": "D1", "holds": True}, test=TESTED)
    assert "turned by a quarter" not in html


def test_names_are_only_text_and_nothing_is_loaded(subject):
    html = written(subject)
    assert "<b>run" not in html and "&lt;b&gt;run" in html
    assert "name: vit # &lt;i&gt;" in html and "turnwise report a&gt;b" in html
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+'", html)
    assert len(html) < 5_000_000


def test_examples_are_recognised_where_possible(quadrant):
    images = quadrant.pictures.images[[3, 0, 1, 1]]  # the first of class 0 looks like the last
    pictures = Examples(images, torch.tensor([0, 0, 1, 3]))
    chosen = chosen_examples([replace(quadrant, pictures=pictures)], 6)
    assert chosen.labels.tolist() == [0, 1, 3]
    assert torch.equal(chosen.images[0], quadrant.pictures.images[0])
    assert len(chosen_examples([quadrant], 2)) == 2


@pytest.mark.parametrize("text", ["", "[1]", '{"holds": true}', "not json"])
def test_a_damaged_certificate_is_none(subject, text):
    (subject.run / "certificate.json").write_text(text)
    assert read_certificate(subject) is None
    assert read_certificate(replace(subject, run=None)) is None


def test_a_certificate_is_read_through_its_file(subject):
    (subject.run / "certificate.json").write_text(json.dumps(of(subject)))
    assert read_certificate(subject) == of(subject)
