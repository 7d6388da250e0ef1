"""The learning rate at known points, and which weights decay."""

import itertools
import math

import pytest
from torch import nn

from turnwise.models import create_model
from turnwise.training.optim import make_optimiser, make_schedule, rate_factor
from turnwise.training.recipe import OptimisationPart


def test_warm_up_is_linear_and_the_cosine_falls_to_zero():
    factors = [rate_factor(step, 10, 110, "cosine") for step in range(111)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[60] == pytest.approx(0.5)
    assert factors[35] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert factors[110] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(factors[9:]))


def test_constant_stays():
    assert [rate_factor(step, 2, 9, "constant") for step in (0, 1, 2, 8)] == [0.5, 1.0, 1.0, 1.0]


def test_noam_as_published():
    """The values of the program of Horn et al., at a warm-up of 100 steps."""
    steps = (0, 1, 50, 99, 100, 400, 10_000)
    factors = [rate_factor(step, 100, 0, "noam") for step in steps]
    assert factors == pytest.approx([0, 0.01, 0.5, 0.99, 1, 0.5, 0.1])


def test_noam_without_a_warm_up_falls_from_its_peak():
    factors = [rate_factor(step, 0, 0, "noam") for step in (1, 4, 100)]
    assert factors == pytest.approx([1, 0.5, 0.1])


def test_a_warm_up_may_be_given_in_steps():
    how = OptimisationPart(schedule="noam", warmup_steps=4)
    optimiser = make_optimiser(nn.Linear(2, 2), how)
    schedule = make_schedule(optimiser, how, total=20, epochs=5)
    rates = []
    for _ in range(17):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    peak = how.learning_rate
    assert [rates[step] for step in (0, 2, 4, 16)] == pytest.approx([0, peak / 2, peak, peak / 2])


def test_the_schedule_drives_the_optimiser():
    how = OptimisationPart(learning_rate=0.1, warmup_epochs=1.0)
    optimiser = make_optimiser(nn.Linear(2, 2), how)
    schedule = make_schedule(optimiser, how, total=20, epochs=5)
    rates = []
    for _ in range(20):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[-1] < 0.01


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_only_matrices_decay(name):
    model = create_model("vit", width=16, heads=2, depth=1)
    decayed, others = make_optimiser(model, OptimisationPart(optimiser=name)).param_groups
    assert decayed["weight_decay"] > 0 == others["weight_decay"]
    names = {id(p): n for n, p in model.named_parameters()}
    assert all(names[id(p)].endswith("weight") for p in decayed["params"])
    assert "position" in {names[id(p)] for p in others["params"]}
    assert len(decayed["params"]) + len(others["params"]) == len(names)
