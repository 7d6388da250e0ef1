"""Masks: the overlap of each class, by hand and against torchmetrics."""

import pytest
import torch
import torchmetrics.functional.classification as reference

from turnwise.data.masks import pixel_classes
from turnwise.data.targets import make_kind
from turnwise.errors import InputError

KIND = make_kind("mask", ("back", "cell", "edge"))


def test_overlap_and_accuracy_are_those_of_torchmetrics():
    masks = torch.randint(3, (6, 5, 4), dtype=torch.uint8)
    predictions = KIND.predict(torch.randn(6, 3, 5, 4))
    found = KIND.point_scores(KIND.measure(predictions, masks))
    iou = reference.multiclass_jaccard_index(predictions, masks.long(), 3)
    right = reference.multiclass_accuracy(predictions, masks.long(), 3, average="micro")
    assert found["mean_iou"] == pytest.approx(float(iou), abs=1e-6)
    assert found["pixel_accuracy"] == pytest.approx(float(right), abs=1e-6)


def test_pixels_by_hand():
    """Two pixels: one cell found, one cell taken for an edge."""
    outputs = torch.zeros(1, 3, 1, 2)
    outputs[0, 1, 0, 0] = outputs[0, 2, 0, 1] = 9.0
    masks = torch.ones(1, 1, 2, dtype=torch.uint8)
    measured = KIND.measure(KIND.predict(outputs), masks)
    expected = {"mean_dice": 1 / 3, "mean_iou": 0.25, "pixel_accuracy": 0.5}
    assert KIND.point_scores(measured) == pytest.approx(expected)
    assert [row["pixels"] for row in KIND.details(measured)] == [0, 2, 0]


def test_rare_classes_can_weigh_more():
    masks = torch.zeros(1, 2, 4, dtype=torch.uint8)
    masks[0, 0, 0] = 1
    weights = make_kind("mask", ("back", "cell")).balanced_weights(masks)
    assert weights == pytest.approx((8 / 14, 4.0))


def test_sampling_by_class_is_refused():
    with pytest.raises(InputError, match="these have masks"):
        KIND.strata(torch.zeros(2, 4, 4, dtype=torch.uint8))


def test_ignored_pixels_do_not_count():
    masks = torch.randint(3, (6, 5, 4), dtype=torch.uint8)
    masks[:, 0] = 255
    predictions = KIND.predict(torch.randn(6, 3, 5, 4))
    found = KIND.point_scores(KIND.measure(predictions, masks))
    rest = KIND.point_scores(KIND.measure(predictions[:, :, 1:], masks[:, 1:]))
    assert found == pytest.approx(rest)


def test_instances_are_scored_by_the_classes_of_their_pixels():
    kind = make_kind("instances", ("background", "inside", "border"))
    labels = torch.randint(3, (2, 2, 2)).repeat_interleave(4, 1).repeat_interleave(4, 2).short()
    classes = pixel_classes(labels)
    right = torch.nn.functional.one_hot(classes, 3).movedim(-1, 1).float()
    assert kind.accepts(labels) and not kind.accepts(labels.byte())
    assert kind.point_scores(kind.measure(right, labels))["mean_dice"] == 1
    counts = torch.bincount(classes.flatten(), minlength=3)
    assert [row["pixels"] for row in kind.details(kind.measure(right, labels))] == counts.tolist()
