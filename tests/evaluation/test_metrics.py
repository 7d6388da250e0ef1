"""Scores against plain loops; intervals against real resamples and against the truth."""

import itertools
import math

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as torchmetrics_scores

from turnwise.errors import InputError
from turnwise.evaluation.metrics import (
    _auc_draws,
    _confusion_draws,
    _ranking,
    _weighted_auc,
    classification_scores,
    confusion_matrix,
    per_class_scores,
    scores_by_view,
)


def predictions(images=40, classes=3, skill=1.0, ties=True):
    """Return random probabilities and labels; rounding makes ties."""
    labels = torch.randint(classes, (images,))
    logits = torch.randn(images, classes) + skill * torch.nn.functional.one_hot(labels, classes)
    probabilities = logits.softmax(1)
    return (probabilities * 10).round() / 10 if ties else probabilities, labels


def certain(predicted, classes):
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()


def auc_by_pairs(values, positive):
    """Return P(a positive ranks above a negative) pair by pair; a tie counts half."""
    pairs = itertools.product(values[positive].tolist(), values[~positive].tolist())
    points = [1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]
    return sum(points) / len(points)


def test_accuracy_is_the_share_of_correct_predictions():
    probabilities, labels = predictions()
    right = [int(p.argmax()) == int(y) for p, y in zip(probabilities, labels, strict=True)]
    value = classification_scores(probabilities, labels)["accuracy"].value
    assert value == pytest.approx(sum(right) / len(right))


def test_balanced_accuracy_and_f1_are_their_definitions():
    probabilities, labels = predictions()
    recalls, f1s = [], []
    predicted = probabilities.argmax(1).tolist()
    for c in range(3):
        right = sum(y == p == c for y, p in zip(labels.tolist(), predicted, strict=True))
        recalls.append(right / labels.tolist().count(c))
        f1s.append(2 * right / (labels.tolist().count(c) + predicted.count(c)))
    scores = classification_scores(probabilities, labels)
    assert scores["balanced_accuracy"].value == pytest.approx(sum(recalls) / 3)
    assert scores["macro_f1"].value == pytest.approx(sum(f1s) / 3)


def test_auc_is_the_share_of_pairs_in_order():
    probabilities, labels = predictions()
    areas = [auc_by_pairs(probabilities[:, c], labels == c) for c in range(3)]
    value = classification_scores(probabilities, labels)["auc"].value
    assert value == pytest.approx(sum(areas) / 3)


def test_auc_of_two_classes_ranks_the_second():
    probabilities, labels = predictions(classes=2)
    probabilities[:, 0] = torch.rand(40)  # else both columns would rank alike
    expected = auc_by_pairs(probabilities[:, 1], labels == 1)
    assert classification_scores(probabilities, labels)["auc"].value == pytest.approx(expected)


def test_the_weighted_auc_is_the_auc_of_a_real_resample():
    """An image drawn twice has weight two; torchmetrics on the drawn images agrees."""
    probabilities, labels = predictions(images=60)
    draws = torch.randint(60, (20, 60))
    weights = torch.stack([torch.bincount(draw, minlength=60) for draw in draws]).double()
    area = _weighted_auc(weights, _ranking(probabilities[:, 1], labels == 1))
    for draw, found in zip(draws, area, strict=True):
        target = (labels[draw] == 1).long()
        expected = torchmetrics_scores.binary_auroc(probabilities[draw, 1], target)
        assert float(found) == pytest.approx(float(expected), abs=1e-6)


def test_drawing_cells_is_drawing_images():
    """Scores of the confusion matrix have the same distribution over draws of cells and of images.

    The first class is favoured, so that recall and precision differ.
    """
    probabilities, labels = predictions(images=80, ties=False)
    probabilities = probabilities * torch.tensor([1.0, 0.4, 0.4])
    confusion = confusion_matrix(probabilities, labels, 3)
    found = _confusion_draws(confusion, 4000, np.random.default_rng(0))
    expected = []
    for _ in range(400):
        draw = torch.randint(80, (80,))
        scores = classification_scores(probabilities[draw], labels[draw], resamples=1)
        expected.append([scores[n].value for n in ("accuracy", "balanced_accuracy", "macro_f1")])
    by_images = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.mean(1), by_images.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(found.std(1), by_images.std(0), atol=0, rtol=0.15)


def test_intervals_contain_the_true_value_as_often_as_their_level():
    """A classifier that is right with probability 0.8: of 300 intervals about 95 % contain 0.8."""
    contained = 0
    for seed in range(300):
        right = torch.rand(200) < 0.8
        labels = torch.randint(2, (200,))
        probabilities = certain(torch.where(right, labels, 1 - labels).tolist(), 2)
        confusion = confusion_matrix(probabilities, labels, 2)
        draws = _confusion_draws(confusion, 300, np.random.default_rng(seed))[0]
        low, high = draws.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        contained += low <= 0.8 <= high
    assert 0.90 <= contained / 300 <= 0.99


def test_the_interval_of_the_auc_contains_the_true_value():
    """Normal scores one apart have AUC Φ(1/√2) = 0.7602."""
    contained = 0
    for seed in range(200):
        labels = torch.arange(120) % 2
        score = torch.sigmoid(torch.randn(120) + labels)
        probabilities = torch.stack([1 - score, score], dim=1)
        interval = classification_scores(probabilities, labels, resamples=200, seed=seed)["auc"]
        contained += interval.low <= 0.7602 <= interval.high
    assert 0.89 <= contained / 200 <= 0.99


def test_a_lower_level_gives_a_narrower_interval():
    probabilities, labels = predictions()
    wide = classification_scores(probabilities, labels, level=0.95)
    narrow = classification_scores(probabilities, labels, level=0.5)
    for name in wide:
        assert wide[name].low < narrow[name].low < narrow[name].high < wide[name].high


def test_the_seed_decides_the_interval():
    probabilities, labels = predictions()
    first = classification_scores(probabilities, labels, seed=1)
    torch.rand(5)  # the global state must not matter
    assert classification_scores(probabilities, labels, seed=1) == first
    assert classification_scores(probabilities, labels, seed=2) != first


def test_chunks_omit_no_draw(monkeypatch):
    monkeypatch.setattr("turnwise.evaluation.metrics.ENTRIES_AT_ONCE", 100)
    probabilities, labels = predictions(images=40)
    draws = _auc_draws(probabilities, labels, 7, torch.Generator().manual_seed(0))
    assert draws.shape == (1, 7)
    assert draws.unique().numel() > 1


def test_a_class_without_labels_is_left_out():
    """Class 2 never occurs: the recalls of 0 and 1 are averaged; predicting it lowers F1."""
    labels = torch.tensor([0, 0, 1, 1])
    scores = classification_scores(certain([0, 2, 1, 1], 3), labels)
    assert scores["balanced_accuracy"].value == pytest.approx((0.5 + 1) / 2)
    assert scores["macro_f1"].value == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert scores["auc"].value == pytest.approx((0.75 + 1) / 2)


def test_correct_predictions_score_one_with_an_empty_interval():
    probabilities, labels = certain([0, 1, 2] * 5, 3), torch.tensor([0, 1, 2] * 5)
    for interval in classification_scores(probabilities, labels).values():
        assert (interval.value, interval.low, interval.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_one_image_has_scores_but_no_ranking(classes):
    scores = classification_scores(certain([0], classes), torch.tensor([0]))
    assert scores["accuracy"].value == scores["macro_f1"].value == 1.0
    assert math.isnan(scores["auc"].value) and math.isnan(scores["auc"].low)


def test_half_precision_is_accepted():
    probabilities, labels = predictions(ties=False)
    half = classification_scores(probabilities.bfloat16(), labels)["auc"].value
    full = classification_scores(probabilities, labels)["auc"].value
    assert half == pytest.approx(full, abs=0.01)


def test_the_confusion_matrix_has_a_row_for_each_label():
    confusion = confusion_matrix(certain([1, 1, 0], 2), torch.tensor([0, 0, 0]), 2)
    assert confusion.tolist() == [[1, 2], [0, 0]]


def test_scores_of_each_class():
    """Two cats, one predicted as a dog; one dog, predicted as one; no emu, none predicted."""
    labels = torch.tensor([0, 0, 1])
    cat, dog, emu = per_class_scores(certain([0, 1, 1], 3), labels, ["cat", "dog", "emu"])
    assert (cat.name, cat.count, cat.recall, cat.precision) == ("cat", 2, 0.5, 1.0)
    assert cat.f1 == pytest.approx(2 / 3)
    assert (dog.count, dog.recall, dog.precision) == (1, 1.0, 0.5)
    assert emu.count == 0
    assert math.isnan(emu.recall) and math.isnan(emu.precision) and math.isnan(emu.f1)


def test_invalid_probabilities_and_labels_are_refused():
    probabilities, labels = predictions()
    with pytest.raises(InputError, match=r"between 0 and 1; apply softmax"):
        classification_scores(probabilities * 9, labels)
    with pytest.raises(InputError, match=r"look for NaN"):
        classification_scores(probabilities / 0 * 0, labels)
    with pytest.raises(InputError, match=r"labels run from 1 to 3, but 3 classes are numbered 0"):
        classification_scores(probabilities, labels.clamp(min=0) + 1)
    with pytest.raises(InputError, match=r"no images"):
        classification_scores(probabilities[:0], labels[:0])
    with pytest.raises(InputError, match=r"level = 95\.0 must lie between 0 and 1"):
        classification_scores(probabilities, labels, level=95.0)
    with pytest.raises(InputError, match=r"of 3 classes and 2 classes are named"):
        per_class_scores(probabilities, labels, ["a", "b"])


def test_scores_by_view_are_those_of_each_view():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (40,))
    views = torch.rand(4, 40, 3).softmax(dim=-1)
    alone = [classification_scores(view, labels, resamples=1) for view in views]
    for name, found in scores_by_view(views, labels).items():
        values = [scores[name].value for scores in alone]
        assert found["least"] == min(values) < max(values)
        assert found["mean"] == pytest.approx(sum(values) / 4)
