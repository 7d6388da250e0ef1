"""What training minimises: definitions of the losses, symmetry, scores, refused combinations."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.data.dataset import Target
from turnwise.data.masks import INSTANCE_CLASSES, pixel_classes
from turnwise.data.targets.masks import dice_loss
from turnwise.errors import InputError
from turnwise.groups import act_on_image
from turnwise.training.objectives import (
    OBJECTIVES,
    ClassObjective,
    PixelObjective,
    make_objective,
)
from turnwise.training.recipe import OptimisationPart

INSTANCES = Target("instances", INSTANCE_CLASSES)


def example(size=8):
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
    objective = make_objective(INSTANCES, OptimisationPart())
    expected = entropy + dice_loss(logits.float(), classes)
    torch.testing.assert_close(objective.loss(logits, labels), expected)


def test_the_loss_does_not_depend_on_the_orientation_and_ignores_pixels():
    logits, labels = example()
    objective = make_objective(INSTANCES, OptimisationPart())
    loss = objective.loss(logits, labels)
    for g in range(8):
        transformed = (act_on_image("D4", g, x) for x in (logits, labels))
        torch.testing.assert_close(objective.loss(*transformed), loss)
    changed = logits.clone()
    changed[0, :, 0, :3] += torch.randn(3, 3).double()
    torch.testing.assert_close(objective.loss(changed, labels), loss)
    changed[0, :, 1, :3] += torch.randn(3, 3).double()
    assert abs(objective.loss(changed, labels) - loss) > 1e-4


def test_right_masks_have_the_highest_score_and_the_lowest_loss():
    _, labels = example()
    objective = make_objective(INSTANCES, OptimisationPart())
    right = F.one_hot(pixel_classes(labels).clamp_min(0), 3).movedim(-1, 1) * 20.0
    scores = []
    for logits in (right, right.flip(1)):
        metric = objective.make_score()
        objective.update_score(metric, logits, labels)
        scores.append(float(metric.compute()))
    assert scores[0] == 1 > scores[1]
    assert objective.loss(right, labels) < 0.01 < objective.loss(right.flip(1), labels)


def test_classes_are_trained_by_cross_entropy():
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    objective = make_objective(Target("class", ("a", "b", "c")), OptimisationPart())
    assert isinstance(objective, ClassObjective)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(objective.loss(logits, labels, 0.1), expected)


def test_what_does_not_fit_is_refused():
    assert OBJECTIVES["mask"] is PixelObjective
    with pytest.raises(InputError, match="mixup and cutmix combine images of one class each"):
        make_objective(INSTANCES, OptimisationPart(mixup=0.2))
    with pytest.raises(InputError, match=r"kind 'number' yet; use one of class, "):
        make_objective(Target("number", ("age",)), OptimisationPart())
    with pytest.raises(InputError, match="train a model with one output per pixel"):
        make_objective(INSTANCES, OptimisationPart()).loss(torch.zeros(2, 3), example()[1])
