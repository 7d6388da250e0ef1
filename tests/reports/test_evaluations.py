"""Evaluations in words: every kind of target, with and without groups, and those of 0.1.0."""

import pytest
import torch

from turnwise.data.targets import make_kind
from turnwise.evaluation.metrics import group_scores, scores_by_view
from turnwise.reports.evaluations import (
    confusion_table,
    decision_sentences,
    detail_table,
    evaluation_text,
    group_table,
    rotation_sentences,
    score_table,
)

OLD = {
    "model": "vit", "data": "digits", "provenance": "embedded", "images": 10, "group": "C4",
    "scores": {"accuracy": {"value": 0.5, "low": 0.25, "high": "nan"}},
    "classes": [{"name": "a", "count": 4, "recall": 0.5, "precision": "nan", "f1": 0.25}],
    "angles": {"degrees": [0.0, 90.0], "accuracy": [0.5, 0.25]},
    "orbit_agreement": 0.5, "rotation_agreement": 0.25,
}  # fmt: skip


def result_of(kind, predictions, targets, groups=None):
    measured = kind.measure(predictions, targets)
    values = kind.point_scores(measured)
    return OLD | {
        "target": kind.plain(),
        "scores": {k: {"value": v, "low": v / 2, "high": 2 * v} for k, v in values.items()},
        "classes": kind.details(measured),
        **kind.summaries(measured),
        **({"groups": group_scores(kind, predictions, targets, groups)} if groups else {}),
        "angles": {"degrees": [0.0, 90.0], "fill": "reflect", "score": kind.selection,
                   kind.selection: [1.25, 2.5]},
        "corner_control": {"degrees": 45.0, **values},
        "orbit_scores": scores_by_view(kind, predictions[None], targets),
    }  # fmt: skip


@pytest.fixture
def numbers():
    kind, targets = make_kind("number", ("size",), "mm"), torch.arange(6.0)[:, None]
    return kind, result_of(kind, targets + 0.5, targets)


@pytest.fixture
def decided():
    """Two classes with a threshold, and three patients, one of them with both classes."""
    kind = make_kind("class", ("well", "ill"))
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    p = torch.tensor([0.1, 0.3, 0.2, 0.9, 0.6, 0.8])
    predictions = torch.stack([1 - p, p], dim=1)
    kind = kind.at_operating_point(predictions, labels, sensitivity=1.0)
    return kind, result_of(kind, predictions, labels, "aabbcc")


def test_an_evaluation_of_0_1_0_is_shown():
    text = evaluation_text(OLD)
    assert "corners filled by zeros: accuracy 25.00 % at worst, 37.50 % on average" in text
    assert "control" not in text and "calibration" not in text


def test_numbers_have_their_unit(numbers):
    kind, result = numbers
    assert score_table(result)[1][0] == ["mean absolute error", "0.5 mm (0.25–1)"]
    assert detail_table(result)[0][0] == "column"
    (rotated, _) = rotation_sentences(kind, result)
    assert "mean absolute error 2.5 mm at worst, 1.875 mm on average" in rotated
    assert "corners filled by reflect" in rotated and rotated.endswith("not rotated: 0.5 mm")
    assert decision_sentences(kind, result) == [] and confusion_table(result) is None


def test_the_threshold_and_the_calibration_are_stated(decided):
    kind, result = decided
    calibration, threshold = decision_sentences(kind, result)
    assert "expected calibration error" in calibration and "temperature 1" in calibration
    assert threshold.startswith("decides for “ill” from a probability of 0.2,")
    assert ["sensitivity", "100.00 % (50.00–200.00)"] in score_table(result)[1]


def test_groups_and_confusion_are_tables(decided):
    _, result = decided
    headers, rows = group_table(result)
    assert headers[0].startswith("3 groups, mean prediction of their images, 1 of mixed targets")
    assert [row[0] for row in rows][:2] == ["accuracy", "balanced accuracy"]
    assert confusion_table(result) == (
        ["class \\ predicted", "well", "ill"], [["well", "1", "2"], ["ill", "0", "3"]]
    )  # fmt: skip
    assert all(word in evaluation_text(result) for word in ("3 groups", "class \\ predicted"))


def test_thresholds_of_labels_are_stated():
    kind, present = make_kind("multilabel", ("cyst", "stone")), torch.tensor([[1.0, 0.0]] * 2)
    present[1] = torch.tensor([0.0, 1.0])
    chosen = kind.at_operating_point(present * 0.5 + 0.25, present, sensitivity=1.0)
    result = result_of(chosen, present * 0.5 + 0.25, present)
    assert "cyst 0.75, stone 0.75" in decision_sentences(chosen, result)[1]
    assert detail_table(result)[0][0] == "label"
