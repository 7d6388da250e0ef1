"""What a model answers to moved pictures, on classifiers whose answers are known by hand."""

import pytest
import torch
from torch import nn

from turnwise.data import Examples
from turnwise.evaluation.rotations import (
    accuracy_by_view,
    agreement,
    by_angle,
    device_of,
    equal_angles,
    predict_over_angles,
    predict_over_group,
    predict_probabilities,
)
from turnwise.groups import PlanarGroup, act_on_image


class Lopsided(nn.Module):
    """A classifier with no symmetry, which remembers in which mode it was asked."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(25, 3)
        self.modes = []

    def preprocess(self, images):
        return images * 2 - 1

    def forward(self, images):
        self.modes.append(self.training)
        return 5 * self.linear(images.flatten(1))


@pytest.fixture
def pictures():
    images = torch.randint(256, (7, 1, 5, 5), dtype=torch.uint8)
    return Examples(images, torch.arange(7) % 3)


def by_hand(model, images):
    with torch.no_grad():
        return model(images.float() / 255 * 2 - 1).softmax(-1)


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_probabilities_in_batches_of_any_size(pictures, batch_size):
    model = Lopsided()
    given = predict_probabilities(model, pictures, batch_size=batch_size)
    torch.testing.assert_close(given, by_hand(model, pictures.images))
    torch.testing.assert_close(given.sum(-1), torch.ones(7))
    assert not given.requires_grad


def test_a_move_is_applied_before_the_model(pictures):
    model = Lopsided()
    given = predict_probabilities(model, pictures, move=lambda images: images.flip(-1))
    torch.testing.assert_close(given, by_hand(model, pictures.images.flip(-1)))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_answers_in_eval_mode_and_is_left_in_its_own(pictures, training):
    model = Lopsided().train(training)
    predict_probabilities(model, pictures)
    assert model.modes == [False]
    assert model.training is training


def test_quarter_turns_are_the_exact_action(pictures):
    """The turned pictures are those of the group, to the last digit."""
    model, group = Lopsided(), PlanarGroup.named("C4")
    turned = predict_over_angles(model, pictures, [0.0, 90.0, 180.0, 270.0], batch_size=4)
    moved = predict_over_group(model, group, pictures, batch_size=4)
    assert torch.equal(turned, moved)
    for g in range(4):
        seen = act_on_image(group, g, pictures.images)
        torch.testing.assert_close(turned[g], by_hand(model, seen))
    assert (turned[1] - turned[0]).abs().max() > 0.01  # the witness: turning does matter


@pytest.mark.parametrize("name", ["C1", "C4", "D4", "D8", "C16"])
def test_what_the_group_was_asked_is_not_asked_again(pictures, name):
    """Turns come out to the last digit as without; only angles that the grid lacks are asked."""
    model, group = Lopsided(), PlanarGroup.named(name)
    moved = predict_over_group(model, group, pictures)
    angles = [0.0, 45.0, 90.0, 200.0, 270.0]
    expected = predict_over_angles(model, pictures, angles)
    before = len(model.modes)
    found = predict_over_angles(model, pictures, angles, known=by_angle(group, moved))
    assert torch.equal(found, expected)
    assert len(model.modes) - before == (4 if name == "C1" else 2)


def test_other_angles_are_turned_too(pictures):
    upright, slanted = predict_over_angles(Lopsided(), pictures, [0.0, 30.0])
    assert (upright - slanted).abs().max() > 0.01


def test_only_elements_that_map_pixels_to_pixels_are_used(pictures):
    model = Lopsided()
    assert len(predict_over_group(model, PlanarGroup.named("D4"), pictures)) == 8
    fine = predict_over_group(model, PlanarGroup.named("C8"), pictures)
    assert torch.equal(fine, predict_over_group(model, PlanarGroup.named("C4"), pictures))


def test_the_device_is_that_of_the_weights():
    assert device_of(nn.Linear(2, 2)) == torch.device("cpu")
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")
    assert device_of(nn.Identity()) == torch.device("cpu")


def test_equal_angles_stop_before_the_full_turn():
    assert equal_angles(4) == [0.0, 90.0, 180.0, 270.0]
    assert equal_angles(1) == [0.0]
    assert equal_angles(24)[1] == 15.0


def votes(answers):
    """Probabilities (view, picture, class) whose largest is at the given answers."""
    return nn.functional.one_hot(torch.tensor(answers), 3).float()


def test_accuracy_by_view_by_hand():
    views = votes([[0, 1, 2, 0], [0, 1, 1, 1], [2, 2, 1, 1]])
    assert accuracy_by_view(views, torch.tensor([0, 1, 2, 0])) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        ([[0, 1, 2, 0], [0, 1, 1, 0], [0, 2, 2, 0]], 0.5),
        ([[0, 1], [1, 0]], 0.0),
        ([[2, 2, 1], [2, 2, 1]], 1.0),
        ([[0], [1], [0]], 0.0),  # the last view agrees with the first, the middle one does not
    ],
)
def test_agreement_by_hand(answers, share):
    assert agreement(votes(answers)) == share
