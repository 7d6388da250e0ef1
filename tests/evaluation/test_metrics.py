"""Scores against plain loops; intervals against real resamples and against the truth."""

import itertools
import math

import pytest
import torch

from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.evaluation.metrics import (
    classification_scores,
    confusion_matrix,
    group_scores,
    score_draws,
    score_intervals,
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
        confusion_matrix(probabilities, labels, 2)


def test_scores_by_view_are_those_of_each_view():
    kind, labels = make_kind("class", ("a", "b", "c")), torch.randint(0, 3, (40,))
    views = torch.rand(4, 40, 3).softmax(dim=-1)
    alone = [classification_scores(view, labels, resamples=1) for view in views]
    for name, found in scores_by_view(kind, views, labels).items():
        values = [scores[name].value for scores in alone]
        assert found["least"] == pytest.approx(min(values))
        assert found["least"] < max(values)
        assert found["mean"] == pytest.approx(sum(values) / 4)


def test_the_worst_error_over_views_is_the_largest():
    kind, targets = make_kind("number", ("length",)), torch.zeros(5, 1)
    views = torch.tensor([1.0, 3.0])[:, None, None].expand(2, 5, 1)
    assert scores_by_view(kind, views, targets)["mae"] == {"mean": 2.0, "least": 3.0}


def test_a_draw_is_a_resample_of_images():
    """Scored directly, real resamples have the same distribution."""
    probabilities, labels = predictions(images=80, ties=False)
    probabilities = probabilities * torch.tensor([1.0, 0.4, 0.4])
    kind = make_kind("class", ("a", "b", "c"))
    found = score_draws(kind, kind.measure(probabilities, labels), (), 2000, 0)
    expected = []
    for _ in range(300):
        draw = torch.randint(80, (80,))
        expected.append(kind.point_scores(kind.measure(probabilities[draw], labels[draw])))
    for name, draws in found.items():
        by_images = torch.tensor([scores[name] for scores in expected], dtype=torch.float64)
        assert float(draws.mean()) == pytest.approx(float(by_images.mean()), abs=0.01)
        assert float(draws.std()) == pytest.approx(float(by_images.std()), rel=0.2)


def test_chunks_omit_no_draw(monkeypatch):
    monkeypatch.setattr("turnwise.evaluation.metrics.ENTRIES_AT_ONCE", 100)
    kind = make_kind("class", ("a", "b", "c"))
    draws = score_draws(kind, kind.measure(*predictions(images=40)), (), 7, 0)["auc"]
    assert draws.shape == (7,)
    assert draws.unique().numel() > 1


@pytest.mark.parametrize(("by_group", "covered"), [(True, (0.88, 0.99)), (False, (0.2, 0.65))])
def test_images_of_a_group_are_resampled_together(by_group, covered):
    """Twenty patients with ten images each, all right or all wrong; the truth is 0.8.

    Resampled by group, the intervals contain it about as often as their level; by image they do
    not, because they take 200 images for 200 independent ones.
    """
    kind, contained = make_kind("class", ("a", "b")), 0
    groups = tuple(str(patient) for patient in range(20) for _ in range(10))
    for seed in range(150):
        right = (torch.rand(20) < 0.8).repeat_interleave(10)
        labels = torch.randint(2, (200,))
        measured = kind.measure(certain(torch.where(right, labels, 1 - labels).tolist(), 2), labels)
        given = groups if by_group else ()
        found = score_intervals(kind, measured, given, resamples=200, seed=seed)["accuracy"]
        contained += found.low <= 0.8 <= found.high
    assert covered[0] <= contained / 150 <= covered[1]


def test_the_prediction_of_a_group_is_the_mean_of_its_images():
    """Patient a: one image right by much, two wrong by little; the mean is right."""
    probabilities = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]])
    labels = torch.tensor([1, 1, 1, 0, 0])
    found = group_scores(make_kind("class", ("no", "yes")), probabilities, labels, "aaabc")
    assert (found["count"], found["mixed"]) == (3, 0)
    assert found["scores"]["accuracy"]["value"] == pytest.approx(2 / 3)


def test_groups_of_several_classes_are_counted_and_left_out():
    kind, probabilities = make_kind("class", ("no", "yes")), certain([0, 1, 1, 0], 2)
    found = group_scores(kind, probabilities, torch.tensor([0, 1, 1, 1]), "aabc")
    assert (found["count"], found["mixed"]) == (3, 1)
    assert found["scores"]["accuracy"]["value"] == 0.5
    everyone = group_scores(kind, probabilities, torch.tensor([0, 1, 1, 1]), "aaaa")
    assert everyone == {"count": 1, "mixed": 1, "scores": {}}


def test_the_number_of_a_group_is_the_mean_of_its_images():
    kind, numbers = make_kind("number", ("size",)), torch.tensor([[1.0], [3.0], [5.0]])
    found = group_scores(kind, numbers, torch.tensor([[2.0], [4.0], [5.0]]), "aab")
    assert found["scores"]["mae"]["value"] == pytest.approx(0.5)
