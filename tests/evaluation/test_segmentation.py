"""Evaluation of masks: of a model that reads them off the image, and of one that is tilted."""

import json

import pytest
import torch
from torch import nn

from turnwise.data import Examples, Target
from turnwise.data.instances import group_instances, score_instances
from turnwise.data.masks import INSTANCE_CLASSES, pixel_classes
from turnwise.evaluation.segmentation import evaluate_masks, score_classes
from turnwise.groups import PlanarGroup

INSTANCES = Target("instances", INSTANCE_CLASSES)
D4 = PlanarGroup.named("D4")


class Reader(nn.Module):
    """Return logits of the class that the grey level of a pixel stands for; `tilt` shifts them."""

    def __init__(self, tilt=0):
        super().__init__()
        self.weight, self.tilt = nn.Parameter(torch.zeros(())), tilt

    def forward(self, images):
        levels = torch.tensor([0, 120, 240]) / 255
        near = (images - levels[:, None, None]).abs()
        return -50 * near.roll(self.tilt, -1) + self.weight


def examples(kind="instances"):
    """Return two images of four blocks, whose grey levels tell the classes of their pixels."""
    labels = torch.zeros(2, 24, 24, dtype=torch.int16)
    for number, (row, col) in enumerate(((2, 2), (2, 13), (14, 3), (13, 14)), start=1):
        labels[:, row : row + 8, col : col + 7] = number
    labels[1, 2:10, 13:20] = 0
    classes = pixel_classes(labels)
    targets = labels if kind == "instances" else classes.to(torch.uint8)
    return Examples((120 * classes).byte()[:, None], targets, ("x/a", "y/b"))


def test_a_perfect_model_scores_one_in_every_view_of_the_grid():
    result = evaluate_masks(Reader(), examples(), INSTANCES, D4, angles=8, batch_size=1)
    assert json.loads(json.dumps(result)) == result
    assert all(score["value"] == 1 for score in result["scores"].values())
    assert all(score["least"] == 1 for score in result["orbit_scores"].values())
    assert result["orbit_agreement"] == 1 and result["main_score"] == "ap50"
    assert [row["dice"] for row in result["classes"]] == [1, 1, 1]
    assert result["angles"]["ap50"][::2] == [1, 1, 1, 1]
    assert set(result["subsets"]) == {"x", "y"} and result["subsets"]["x"]["images"] == 1
    assert 0.5 < result["rotation_agreement"] < 1


def test_a_tilted_model_disagrees_with_itself():
    straight, tilted = (
        evaluate_masks(Reader(tilt), examples(), INSTANCES, D4, angles=2) for tilt in (0, 2)
    )
    assert tilted["orbit_agreement"] < 0.9 and tilted["rotation_agreement"] < 0.9
    for name in ("dice", "iou", "ap", "pq"):
        assert tilted["scores"][name]["value"] < straight["scores"][name]["value"]


def test_masks_of_classes_have_no_instances():
    target = Target("mask", INSTANCE_CLASSES)
    result = evaluate_masks(Reader(), examples("mask"), target, D4, angles=1)
    assert result["main_score"] == "dice" and set(result["scores"]) == {
        "dice",
        "iou",
        "boundary_f1",
    }
    assert result["scores"]["dice"] == {"value": 1, "low": 1, "high": 1}


def test_a_missed_instance_counts():
    """Of four instances three are found: AP ¾; the Dice follows from the pixels."""
    labels = examples().targets
    probabilities = nn.functional.one_hot(pixel_classes(labels), 3).movedim(-1, 1).float()
    probabilities[0, :, :, 12:][:, :12] = torch.tensor([1.0, 0, 0])[:, None, None]
    found = score_instances(probabilities, labels)
    assert found["ap50"].tolist() == [3 / 4, 1]
    assert found["dice"][0].item() == pytest.approx(2 * 3 * 56 / (3 * 56 + 4 * 56))
    assert group_instances(probabilities).amax((1, 2)).tolist() == [3, 3]
    assert score_classes(probabilities, pixel_classes(labels).byte())["dice"][1] == 1
