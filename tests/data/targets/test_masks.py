"""Masks: the overlap of each class, by hand and against torchmetrics."""

import pytest
import torch
import torchmetrics.functional.classification as reference

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
    assert KIND.point_scores(measured) == pytest.approx({"mean_iou": 0.25, "pixel_accuracy": 0.5})
    assert [row["pixels"] for row in KIND.details(measured)] == [0, 2, 0]


def test_rare_classes_can_weigh_more():
    masks = torch.zeros(1, 2, 4, dtype=torch.uint8)
    masks[0, 0, 0] = 1
    weights = make_kind("mask", ("back", "cell")).balanced_weights(masks)
    assert weights == pytest.approx((8 / 14, 4.0))


def test_sampling_by_class_is_refused():
    with pytest.raises(InputError, match="these have masks"):
        KIND.strata(torch.zeros(2, 4, 4, dtype=torch.uint8))
