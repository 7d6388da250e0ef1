"""Masks: the overlap of each class, by hand and against torchmetrics."""

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.functional.classification as reference

from turnwise.data.masks import INSTANCE_CLASSES, pixel_classes
from turnwise.data.targets import make_kind
from turnwise.data.targets.masks import dice_loss
from turnwise.errors import InputError
from turnwise.groups import act_on_image

KIND = make_kind("mask", ("back", "cell", "edge"))
INSTANCES = make_kind("instances", INSTANCE_CLASSES)


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


def test_instances_are_selected_by_those_that_are_found():
    """One of two squares is missed: AP ½, whatever the pixels of the classes are."""
    labels = torch.zeros(2, 16, 16, dtype=torch.int16)
    labels[0, 2:8, 2:8], labels[0, 9:15, 9:15] = 1, 2
    p = F.one_hot(pixel_classes(labels), 3).movedim(-1, 1).float()
    p[0, :, 9:] = torch.tensor([1.0, 0, 0])[:, None, None]
    found = INSTANCES.point_scores(INSTANCES.measure(p, labels))
    assert INSTANCES.selection == "ap50" and set(found) == set(INSTANCES.score_names)
    assert found["ap50"] == 1 / 2 and found["dice"] == pytest.approx(2 / 3), "image 2 is empty"
    twice = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    again = INSTANCES.scores(INSTANCES.measure(p, labels), twice)
    assert float(again["ap50"]) == 1 / 2


def example(size=8):
    """Return logits and instances, of which three pixels are ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)
    small = torch.randint(0, 3, (2, size // 4, size // 4), generator=generator)
    labels = small.repeat_interleave(4, 1).repeat_interleave(4, 2).short()
    labels[0, 0, :3] = -1
    return logits, labels


def test_definition_of_the_dice_loss():
    logits, labels = example()
    classes, p = pixel_classes(labels), logits.softmax(1)
    ratios = []
    for c in range(3):
        both = either = 0.0
        for i, r, k in (classes >= 0).nonzero().tolist():
            y = float(classes[i, r, k] == c)
            both, either = both + p[i, c, r, k] * y, either + p[i, c, r, k] + y
        ratios.append((2 * both + 1) / (either + 1))
    expected = 1 - sum(ratios) / 3
    torch.testing.assert_close(dice_loss(logits, classes), expected)


def test_the_loss_of_masks_is_cross_entropy_and_dice():
    logits, labels = example()
    classes = pixel_classes(labels)
    entropy = F.cross_entropy(logits.float(), classes, ignore_index=-1)
    expected = entropy + dice_loss(logits.float(), classes)
    torch.testing.assert_close(INSTANCES.make_loss()(logits, labels), expected)


def test_the_loss_does_not_depend_on_the_orientation_and_ignores_pixels():
    logits, labels = example()
    loss_of = INSTANCES.make_loss()
    loss = loss_of(logits, labels)
    for g in range(8):
        transformed = (act_on_image("D4", g, x) for x in (logits, labels))
        torch.testing.assert_close(loss_of(*transformed), loss)
    changed = logits.clone()
    changed[0, :, 0, :3] += torch.randn(3, 3).double()
    torch.testing.assert_close(loss_of(changed, labels), loss)
    changed[0, :, 1, :3] += torch.randn(3, 3).double()
    assert abs(loss_of(changed, labels) - loss) > 1e-4


def test_right_masks_have_the_highest_score_and_the_lowest_loss():
    _, labels = example()
    right = F.one_hot(pixel_classes(labels).clamp_min(0), 3).movedim(-1, 1) * 20.0
    best, worst = (
        INSTANCES.point_scores(INSTANCES.measure(INSTANCES.predict(logits), labels))
        for logits in (right, right.flip(1))
    )
    assert best["mean_dice"] == 1 > worst["mean_dice"]
    loss_of = INSTANCES.make_loss()
    assert loss_of(right, labels) < 0.01 < loss_of(right.flip(1), labels)


def test_masks_need_a_map():
    with pytest.raises(InputError, match="train a model with one output per pixel"):
        INSTANCES.make_loss()(torch.zeros(2, 3), example()[1])
