"""Durations of training steps: measured, and given up early where they are hopeless."""

import time

import pytest
import torch
from torch import nn

from turnwise.data import Examples
from turnwise.groups import PlanarGroup
from turnwise.training import probe
from turnwise.training.recipe import make_recipe

CPU = torch.device("cpu")


class Slow(nn.Module):
    """A model that sleeps for so many seconds per image."""

    group = PlanarGroup(1)

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.weight, self.seen = seconds, nn.Parameter(torch.ones(())), []

    def preprocess(self, images):
        return images

    def forward(self, images):
        self.seen.append(len(images))
        time.sleep(self.seconds * len(images))
        return self.weight * images.mean((1, 2, 3))


@pytest.fixture
def examples():
    return Examples(torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2)


def recipe(*settings):
    values = {"model": {"name": "vit"}, "data": {"name": "digits"}}
    return make_recipe(values, ["optimisation.batch_size=16", *settings])


def test_a_step_is_timed_after_one_that_is_not(examples):
    model = Slow(0.002)
    step = probe.seconds_per_step(model, recipe(), examples, CPU, limit=100.0)
    assert 0.032 <= step < 0.3
    assert model.seen == [2, 2, *[16] * (1 + probe.STEPS)]


def test_a_hopeless_model_is_timed_on_a_part_of_a_batch(examples):
    model = Slow(0.005)
    bound = probe.seconds_per_step(model, recipe(), examples, CPU, limit=0.005)
    assert model.seen == [2, 2]
    assert bound >= 0.01


def test_augmentation_and_precision_of_the_recipe_are_timed(examples, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Slow,
        "forward",
        lambda self, x: seen.append((x.std() > 0, (x @ x.mT).dtype)) or self.weight * x,
    )
    settings = ("data.augment.noise=0.1", "trainer.precision=bf16-mixed")
    probe.seconds_per_step(Slow(0.0), recipe(*settings), examples, CPU, limit=1.0)
    assert all(noisy and dtype == torch.bfloat16 for noisy, dtype in seen)
