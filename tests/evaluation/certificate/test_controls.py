"""Controls speak for a model that looks, and are silent for one that does not."""

import torch
from torch import nn

from turnwise.evaluation.certificate.controls import Control, invert_quadrant, measure_controls
from turnwise.evaluation.certificate.scores import answerer
from turnwise.groups import PlanarGroup

C4 = PlanarGroup.named("C4")


class Rings(nn.Module):
    """The mean brightness near the centre and at the border: invariant, and not blind."""

    def forward(self, images):
        centre = images[..., 2:6, 2:6]
        parts = [images.mean((1, 2, 3)), centre.mean((1, 2, 3)), centre.pow(2).mean((1, 2, 3))]
        return torch.stack(parts, dim=-1)


class Blind(nn.Module):
    def forward(self, images):
        return torch.ones(len(images), 3, dtype=images.dtype)


def controls(model, images, precision="float64"):
    answer = answerer(model, precision, 64)
    return measure_controls(answer, C4, images, answer(images))


def test_a_model_that_looks_is_heard(digits_like):
    assert all(control.holds for control in controls(Rings(), digits_like))


def test_a_blind_model_is_silent(digits_like):
    found = controls(Blind(), digits_like)
    assert [control.change for control in found] == [0.0] * 3
    assert not any(control.holds for control in found)


def test_float32_must_move_more_than_its_rounding(digits_like):
    assert {c.visible for c in controls(Rings(), digits_like)} == {1e-6}
    assert {c.visible for c in controls(Rings(), digits_like, "float32")} == {1e-4}


def test_what_is_not_a_number_does_not_speak():
    assert not Control("any", float("inf")).holds
    assert not Control("any", float("nan")).holds
    assert Control("any", 0.5).holds


def test_a_quadrant_is_inverted_and_nothing_else():
    images = torch.rand(2, 1, 4, 6)
    inverted = invert_quadrant(images)
    assert torch.equal(inverted[..., :2, :3], 1 - images[..., :2, :3])
    assert torch.equal(inverted[..., 2:, :], images[..., 2:, :])
    assert torch.equal(inverted[..., 3:], images[..., 3:])
