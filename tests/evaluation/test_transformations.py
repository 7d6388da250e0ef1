"""Transformations against plain loops, and predictions under them for known classifiers."""

import pytest
import torch
from torch import nn

from turnwise.evaluation.transformations import (
    accuracy_by_view,
    agreement,
    by_angle,
    corner_control,
    describe_element,
    equal_angles,
    predict_over_angles,
    predict_over_group,
    shift_images,
    unclaimed_transformations,
)
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor

C4, D4 = PlanarGroup.named("C4"), PlanarGroup.named("D4")


@pytest.mark.parametrize(
    ("group", "g", "words"),
    [
        ("D4", 0, "identity"),
        ("D4", 1, "rotate by 90°"),
        ("D4", 4, "flip left-right"),
        ("D4", 5, "flip left-right, then rotate by 90°"),
        ("D4", 7, "flip left-right, then rotate by 270°"),
        ("C8", 3, "rotate by 135°"),
        ("C16", 1, "rotate by 22.5°"),
        ("D1", 1, "flip left-right"),
    ],
)
def test_elements_in_words(group, g, words):
    assert describe_element(PlanarGroup.named(group), g) == words


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize(("right", "up"), [(1, 0), (0, 2), (2, 3)])
def test_shifts_by_plain_loops(right, up, circular):
    images = torch.rand(2, 1, 5, 7)
    shifted = shift_images(images, right=right, up=up, circular=circular)
    for row in range(5):
        for col in range(7):
            source = (row + up, col - right)
            inside = source[0] < 5 and source[1] >= 0
            value = images[..., source[0] % 5, source[1] % 7]
            expected = value if inside or circular else torch.zeros_like(value)
            assert torch.equal(shifted[..., row, col], expected)


def test_shifting_leaves_the_given_images_unchanged():
    images = torch.rand(1, 1, 4, 4)
    before = images.clone()
    shift_images(images, right=1, up=1, circular=False)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("right", "up"), [(5, 0), (0, 6)])
def test_a_shift_by_more_than_the_side_leaves_zeros(right, up):
    assert not shift_images(torch.ones(1, 1, 4, 3), right=right, up=up, circular=False).any()


def test_flips_are_unclaimed_only_without_reflections_in_the_group():
    kinds = [each.kind for each in unclaimed_transformations(C4, 2)]
    assert kinds == ["reflection"] * 2 + ["shift"] * 8
    assert {each.kind for each in unclaimed_transformations(D4, 1)} == {"shift"}
    assert unclaimed_transformations(D4, 0) == []


def test_transformations_do_what_their_words_say():
    image = torch.rand(1, 1, 4, 4)
    apply = {each.meaning: each.apply for each in unclaimed_transformations(C4, 1)}
    assert torch.equal(apply["flip left-right"](image), image.flip(-1))
    assert torch.equal(apply["flip up-down"](image), image.flip(-2))
    assert torch.equal(apply["shift up by 1, around the border"](image), image.roll(-1, -2))
    assert apply["shift right by 1, zeros enter"](image)[..., 0].abs().max() == 0


class Asymmetric(nn.Module):
    """A classifier without symmetry that counts its forward passes."""

    def __init__(self):
        super().__init__()
        self.linear, self.passes = nn.Linear(25, 3), 0

    def preprocess(self, images):
        return images * 2 - 1

    def forward(self, images):
        self.passes += 1
        return 5 * self.linear(images.flatten(1))


@pytest.fixture
def predictor():
    return Predictor(Asymmetric(), batch_size=4)


@pytest.fixture
def images():
    return torch.randint(256, (4, 1, 5, 5), dtype=torch.uint8)


def test_rotations_by_90_degrees_are_the_exact_action(predictor, images):
    """They are bitwise the same as under the group."""
    rotated = predict_over_angles(predictor, images, [0.0, 90.0, 180.0, 270.0], fill="zeros")
    assert torch.equal(rotated, predict_over_group(predictor, C4, images))
    for g in range(4):
        seen = act_on_image(C4, g, images)
        expected = predictor.model(predictor.model.preprocess(seen.float() / 255)).softmax(-1)
        torch.testing.assert_close(rotated[g], expected.detach())
    assert (rotated[1] - rotated[0]).abs().max() > 0.01, "control: rotations change the output"


@pytest.mark.parametrize("name", ["C1", "C4", "D4", "D8", "C16"])
def test_predictions_known_from_the_group_are_not_repeated(predictor, images, name):
    group = PlanarGroup.named(name)
    over_group = predict_over_group(predictor, group, images)
    angles = [0.0, 45.0, 90.0, 200.0, 270.0]
    expected = predict_over_angles(predictor, images, angles, fill="zeros")
    before = predictor.model.passes
    known = by_angle(group, over_group)
    assert torch.equal(
        predict_over_angles(predictor, images, angles, fill="zeros", known=known), expected
    )
    assert predictor.model.passes - before == (4 if name == "C1" else 2)


def test_other_angles_are_rotated_too(predictor, images):
    upright, slanted = predict_over_angles(predictor, images, [0.0, 30.0], fill="zeros")
    assert (upright - slanted).abs().max() > 0.01


def test_only_elements_that_map_pixels_to_pixels_are_used(predictor, images):
    assert len(predict_over_group(predictor, D4, images)) == 8
    fine = predict_over_group(predictor, PlanarGroup.named("C8"), images)
    assert torch.equal(fine, predict_over_group(predictor, C4, images))


def test_equal_angles_end_before_360_degrees():
    assert equal_angles(4) == [0.0, 90.0, 180.0, 270.0]
    assert equal_angles(1) == [0.0]
    assert equal_angles(24)[1] == 15.0


def certain(classes):
    """Return probabilities (view, image, class) of 1 for the given classes."""
    return nn.functional.one_hot(torch.tensor(classes), 3).float()


def test_accuracy_by_view_by_hand():
    views = certain([[0, 1, 2, 0], [0, 1, 1, 1], [2, 2, 1, 1]])
    assert accuracy_by_view(views, torch.tensor([0, 1, 2, 0])) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("classes", "share"),
    [
        ([[0, 1, 2, 0], [0, 1, 1, 0], [0, 2, 2, 0]], 0.5),
        ([[0, 1], [1, 0]], 0.0),
        ([[2, 2, 1], [2, 2, 1]], 1.0),
        ([[0], [1], [0]], 0.0),  # the last view agrees with the first, the middle one does not
    ],
)
def test_agreement_by_hand(classes, share):
    assert agreement(certain(classes)) == share


class CornerIsBlack(nn.Module):
    """Predicts class 1 if the upper left pixel is black."""

    def forward(self, images):
        black = (images[:, :, 0, 0].amax(1) < 0.01).float()
        return torch.stack([1 - black, black], dim=-1)


@pytest.mark.parametrize(("fill", "sees_corners"), [("zeros", True), ("reflect", False)])
def test_the_control_shows_what_a_model_loses_to_the_corners(fill, sees_corners):
    predictor, images = Predictor(CornerIsBlack()), torch.full((3, 1, 8, 8), 0.7)
    rotated = predict_over_angles(predictor, images, [45.0], fill=fill)[0]
    control = predictor.probabilities(images, corner_control(fill).apply)
    assert torch.equal(control, rotated)
    assert bool(control.argmax(-1).all()) is sees_corners
