"""Several labels: scores against torchmetrics, thresholds, weights, temperature."""

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.functional.classification as reference

from turnwise.data.targets import make_kind
from turnwise.errors import InputError

KIND = make_kind("multilabel", ("cyst", "stone", "clot"))


def sample(images=50):
    present = (torch.rand(images, 3) < torch.tensor([0.5, 0.3, 0.2])).float()
    return torch.randn(images, 3) + present, present


def test_scores_are_those_of_torchmetrics():
    outputs, present = sample()
    p, y = outputs.sigmoid(), present.long()
    found = KIND.point_scores(KIND.measure(KIND.predict(outputs), present))
    expected = {
        "map": reference.multilabel_average_precision(p, y, 3),
        "auc": reference.multilabel_auroc(p, y, 3),
        "macro_f1": reference.multilabel_f1_score(p, y, 3),
        "exact_match": reference.multilabel_exact_match(p, y, 3),
    }
    assert found == pytest.approx({k: float(v) for k, v in expected.items()}, abs=1e-6)


def test_tied_predictions_are_ranked_as_one():
    outputs, present = sample()
    p = (outputs.sigmoid() * 4).round() / 4
    found = KIND.point_scores(KIND.measure(p, present))["map"]
    expected = reference.multilabel_average_precision(p, present.long(), 3)
    assert found == pytest.approx(float(expected), abs=1e-6)


def test_details_agree_with_the_scores():
    outputs, present = sample()
    measured = KIND.measure(KIND.predict(outputs), present)
    rows, scores = KIND.details(measured), KIND.point_scores(measured)
    assert sum(row["average_precision"] for row in rows) / 3 == pytest.approx(scores["map"])
    assert sum(row["f1"] for row in rows) / 3 == pytest.approx(scores["macro_f1"])
    assert [row["count"] for row in rows] == present.sum(0).tolist()


def test_the_loss_is_binary_cross_entropy_with_the_weights_of_positives():
    outputs, present = sample()
    weights = KIND.balanced_weights(present)
    absent = (1 - present).sum(0) / present.sum(0)
    assert weights == pytest.approx(absent.tolist())
    expected = F.binary_cross_entropy_with_logits(outputs, present, pos_weight=absent)
    torch.testing.assert_close(KIND.make_loss(weights=weights)(outputs, present), expected)


def test_every_label_has_its_own_threshold():
    outputs, present = sample(200)
    predictions = KIND.predict(outputs)
    chosen = KIND.at_operating_point(predictions, present, sensitivity=0.9)
    decided = chosen.decide(predictions)
    recall = (decided & (present > 0.5)).sum(0) / present.sum(0)
    assert (recall >= 0.9).all() and (recall < 0.99).all()
    assert len(set(chosen.thresholds)) == 3
    specific = KIND.at_operating_point(predictions, present, specificity=0.95)
    rejected = (~specific.decide(predictions) & (present < 0.5)).sum(0) / (1 - present).sum(0)
    assert (rejected >= 0.95).all() and (rejected < 0.99).all()


def test_decisions_in_words():
    assert KIND.describe(torch.tensor([0.9, 0.1, 0.5])) == "cyst|clot"
    assert KIND.describe(torch.tensor([0.1, 0.1, 0.2])) == ""


def test_the_margin_is_the_distance_to_the_nearest_threshold():
    before = torch.tensor([[3.0, -3.0, 0.5]])
    after = torch.tensor([[3.0, -3.0, -0.5]])
    change = KIND.compare(before, after)
    assert not change.same[0]
    assert float(change.margin) == pytest.approx(float(torch.sigmoid(after[0, 2])) - 0.5)


def test_the_temperature_restores_scaled_logits():
    logits = torch.randn(10_000, 3).double()
    present = (torch.rand(10_000, 3) < logits.sigmoid()).float()
    calibrated = KIND.calibrate(2 * logits, present)
    assert calibrated.temperature == pytest.approx(2.0, rel=0.04)
    measured = calibrated.measure(calibrated.predict(2 * logits), present)
    assert calibrated.calibration(measured)["ece"] < 0.01


def test_what_needs_one_class_is_refused():
    with pytest.raises(InputError, match="one class per image"):
        KIND.strata(torch.zeros(4, 3))
    with pytest.raises(InputError, match="no label smoothing"):
        KIND.make_loss(smoothing=0.1)
