"""Classes: scores against torchmetrics and plain loops, thresholds, temperature, and the loss."""

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.functional.classification as reference

from turnwise.data.targets import make_kind
from turnwise.errors import InputError

NAMES = ("low", "middle", "high")


def sample(images=60, classes=3):
    labels = torch.arange(images) % classes
    return torch.randn(images, classes) + F.one_hot(labels, classes), labels


def scores_of(kind, outputs, labels):
    return kind.point_scores(kind.measure(kind.predict(outputs), labels))


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_torchmetrics(classes):
    outputs, labels = sample(classes=classes)
    found = scores_of(make_kind("class", NAMES[:classes]), outputs, labels)
    p = outputs.softmax(1)
    expected = {
        "accuracy": reference.multiclass_accuracy(p, labels, classes, average="micro"),
        "balanced_accuracy": reference.multiclass_accuracy(p, labels, classes, average="macro"),
        "macro_f1": reference.multiclass_f1_score(p, labels, classes, average="macro"),
        "auc": reference.multiclass_auroc(p, labels, classes),
    }
    assert found == pytest.approx({k: float(v) for k, v in expected.items()}, abs=1e-6)


def test_kappa_is_that_of_torchmetrics_and_the_error_is_in_steps():
    outputs, labels = sample()
    found = scores_of(make_kind("ordinal", NAMES), outputs, labels)
    kappa = reference.multiclass_cohen_kappa(outputs, labels, 3, weights="quadratic")
    assert found["kappa"] == pytest.approx(float(kappa), abs=1e-6)
    steps = [abs(int(p) - int(y)) for p, y in zip(outputs.argmax(1), labels, strict=True)]
    assert found["mae"] == pytest.approx(sum(steps) / len(steps))


def test_details_and_confusion_by_hand():
    """Two cats, one decided to be a dog; one dog, decided to be one; no emu, none decided."""
    kind = make_kind("class", ("cat", "dog", "emu"))
    measured = kind.measure(F.one_hot(torch.tensor([0, 1, 1]), 3).float(), torch.tensor([0, 0, 1]))
    cat, dog, emu = kind.details(measured)
    assert (cat["count"], cat["recall"], cat["precision"]) == (2, 0.5, 1.0)
    assert cat["f1"] == pytest.approx(2 / 3)
    assert (dog["count"], dog["recall"], dog["precision"]) == (1, 1.0, 0.5)
    assert emu["count"] == 0 and all(math.isnan(emu[k]) for k in ("recall", "precision", "f1"))
    assert kind.confusion(measured) == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_a_single_logit_is_the_log_odds_of_the_second_class():
    logit = torch.tensor([[0.0], [2.0]])
    both = make_kind("class", ("no", "yes")).predict(logit)
    torch.testing.assert_close(both, torch.cat([torch.zeros_like(logit), logit], 1).softmax(1))


def test_balanced_weights_are_those_of_scikit_learn():
    """n / (classes · count): each class then has the same total weight."""
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    weights = make_kind("class", NAMES).balanced_weights(labels)
    assert weights == pytest.approx((10 / 18, 10 / 9, 10 / 3))
    absent = make_kind("class", (*NAMES, "none")).balanced_weights(labels)
    assert absent == pytest.approx((10 / 18, 10 / 9, 10 / 3, 1.0))


def test_weights_and_smoothing_are_those_of_torch():
    outputs, labels = sample()
    loss = make_kind("class", NAMES).make_loss(0.1, (1.0, 2.0, 3.0))
    weights = torch.tensor([1.0, 2.0, 3.0])
    expected = F.cross_entropy(outputs, labels, weights, label_smoothing=0.1)
    assert torch.equal(loss(outputs, labels), expected)
    with pytest.raises(InputError, match="2 weights were given for 3 class names"):
        make_kind("class", NAMES).make_loss(weights=(1.0, 2.0))


def test_definition_of_the_loss_of_ordered_classes():
    outputs, labels = sample(6)
    p, total = outputs.double().softmax(1), 0.0
    for row, y in zip(p.tolist(), labels.tolist(), strict=True):
        for k in range(2):
            at_most = sum(row[: k + 1])
            total -= math.log(at_most if y <= k else 1 - at_most) / 2
    found = make_kind("ordinal", NAMES).make_loss()(outputs, labels)
    assert float(found) == pytest.approx(total / 6, rel=1e-5)


def test_a_far_error_costs_more_than_a_near_one_only_for_ordered_classes():
    near, far = torch.tensor([[0.0, 3.0, 0.0]]), torch.tensor([[0.0, 0.0, 3.0]])
    label = torch.tensor([0])
    ordinal, plain = (make_kind(k, NAMES).make_loss() for k in ("ordinal", "class"))
    assert float(ordinal(far, label)) > float(ordinal(near, label)) + 0.5
    assert float(plain(far, label)) == pytest.approx(float(plain(near, label)))


def test_the_loss_of_ordered_classes_is_least_at_the_true_probabilities():
    """A proper scoring rule: with labels drawn 0.5, 0.3, 0.2, its minimum is there."""
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss, optimiser = make_kind("ordinal", NAMES).make_loss(), torch.optim.LBFGS([logits])

    def step():
        optimiser.zero_grad()
        value = loss(logits.expand(10, 3), labels)
        value.backward()
        return value

    for _ in range(5):
        optimiser.step(step)
    found = logits.detach().softmax(1)[0].tolist()
    assert found == pytest.approx([0.5, 0.3, 0.2], abs=1e-4)


def test_the_threshold_decides_and_is_part_of_the_margin():
    kind = make_kind("class", ("well", "ill"))
    outputs = torch.tensor([[0.0, -2.0], [0.0, -1.0], [0.0, 1.0], [0.0, 2.0]])
    labels = torch.tensor([0, 1, 1, 1])
    predictions = kind.predict(outputs)
    assert kind.decide(predictions).tolist() == [0, 0, 1, 1]
    chosen = kind.at_operating_point(predictions, labels, sensitivity=1.0)
    assert chosen.decide(predictions).tolist() == [0, 1, 1, 1]
    scores = scores_of(chosen, outputs, labels)
    assert (scores["sensitivity"], scores["specificity"]) == (1.0, 1.0)
    assert "sensitivity" not in scores_of(kind, outputs, labels)
    lowered = chosen.compare(outputs, outputs - torch.tensor([0.0, 0.5]))
    assert lowered.same.tolist() == [True, False, True, True]
    assert (lowered.margin < 0).tolist() == [False, True, False, False]


def test_the_positive_class_can_be_named():
    kind = make_kind("class", ("ill", "well"))
    outputs, labels = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])
    chosen = kind.at_operating_point(kind.predict(outputs), labels, specificity=1.0, positive="ill")
    assert chosen.positive == 0
    assert chosen.decide(kind.predict(outputs)).tolist() == [0, 1]
    with pytest.raises(InputError, match="Did you mean 'ill'"):
        kind.at_operating_point(kind.predict(outputs), labels, sensitivity=0.9, positive="il")
    with pytest.raises(InputError, match="for two classes, and there are 3"):
        make_kind("class", NAMES).at_operating_point(*sample(6), sensitivity=0.9)


def test_the_temperature_restores_scaled_logits():
    """Labels are drawn from softmax(z); a model that returns 3 z is three times too sure."""
    logits = torch.randn(20_000, 3).double()
    labels = torch.multinomial(logits.softmax(1), 1)[:, 0]
    kind = make_kind("class", NAMES)
    calibrated = kind.calibrate(3 * logits, labels)
    assert calibrated.temperature == pytest.approx(3.0, rel=0.03)
    before, after = (
        k.calibration(k.measure(k.predict(3 * logits), labels))["ece"] for k in (kind, calibrated)
    )
    assert after < 0.02 < 0.1 < before
    decided = kind.decide(kind.predict(logits))
    assert torch.equal(calibrated.decide(calibrated.predict(logits)), decided)


def test_what_all_classes_share_is_no_output():
    outputs, _ = sample(5)
    kind = make_kind("class", NAMES)
    torch.testing.assert_close(kind.centre(outputs + 100), kind.centre(outputs), atol=1e-4, rtol=0)


def test_ordered_classes_have_no_label_smoothing():
    with pytest.raises(InputError, match="no label smoothing"):
        make_kind("ordinal", NAMES).make_loss(smoothing=0.1)
