"""The learning rate at known points, and which parameters decay."""

import itertools
import math

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.models import create_model, orbit
from turnwise.training.optim import make_optimiser, make_schedule, rate_factor, split_by_decay
from turnwise.training.recipe import OptimisationPart


def test_the_warm_up_is_linear_and_the_cosine_decreases_to_zero():
    factors = [rate_factor(step, 10, 110, "cosine") for step in range(111)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[60] == pytest.approx(0.5)
    assert factors[35] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert factors[110] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(factors[9:]))


def test_the_constant_schedule_is_constant_after_its_warm_up():
    assert [rate_factor(step, 2, 9, "constant") for step in (0, 1, 2, 8)] == [0.5, 1.0, 1.0, 1.0]


def test_noam_has_the_published_values():
    """Those of the program of Horn et al. for 100 steps of warm-up."""
    steps = (0, 1, 50, 99, 100, 400, 10_000)
    factors = [rate_factor(step, 100, 0, "noam") for step in steps]
    assert factors == pytest.approx([0, 0.01, 0.5, 0.99, 1, 0.5, 0.1])


def test_noam_without_a_warm_up_decreases_from_its_peak():
    factors = [rate_factor(step, 0, 0, "noam") for step in (1, 4, 100)]
    assert factors == pytest.approx([1, 0.5, 0.1])


def test_the_warm_up_can_be_given_in_steps():
    part = OptimisationPart(schedule="noam", warmup_steps=4)
    optimiser = make_optimiser(nn.Linear(2, 2), part)
    schedule = make_schedule(optimiser, part, total=20, epochs=5)
    rates = []
    for _ in range(17):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    peak = part.learning_rate
    assert [rates[step] for step in (0, 2, 4, 16)] == pytest.approx([0, peak / 2, peak, peak / 2])


def test_the_schedule_drives_the_optimiser():
    part = OptimisationPart(learning_rate=0.1, warmup_epochs=1.0)
    optimiser = make_optimiser(nn.Linear(2, 2), part)
    schedule = make_schedule(optimiser, part, total=20, epochs=5)
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


TABLE = {f"place.{axis}.vector.weight" for axis in ("row", "col")}
FREE = {"depth": 1, "frequencies": "free"}
POSITIONS = [
    ("vit", {"depth": 1}, {"position"}),
    ("orbit_vit", {"depth": 1, "combine": "mean_features"}, {"model.position"}),
    ("turnwise_vit_nano", {"depths": [1]}, {"stages.0.0.attention.frequency"}),
    (
        "gsa_net",
        {"encoding": "table", "widths": [[12]], "crops": [[2]], "window": 3},
        {
            *(f"lift.{name}" for name in TABLE),
            *(f"stages.0.0.attention.{name}" for name in ("pose", *TABLE)),
        },
    ),
    ("ge_vit", {"widths": [[12]], "window": 3}, {"stages.0.0.attention.pose"}),
    ("relative_performer", FREE, {f"blocks.0.attention.{name}" for name in ("frequency", "lead")}),
    (
        "relative_performer",
        {"variant": "tep-2021", "depth": 1},
        {f"blocks.0.attention.{name}" for name in ("alpha", "beta")},
    ),
    ("clipped_relative_performer", {"depth": 1}, {"blocks.0.attention.table"}),
    ("group_performer", FREE, {"blocks.0.attention.frequency"}),
    ("resnet18", {"depths": [1], "widths": [8]}, set()),
]


@pytest.mark.parametrize(("name", "options", "positions"), POSITIONS)
def test_all_matrices_decay_except_positions(name, options, positions):
    """Weight decay would pull what a layer has learned about positions towards zero."""
    model = create_model(name, **options)
    names = {id(p): key for key, p in model.named_parameters()}
    decayed, others = split_by_decay(model)
    assert {names[id(p)] for p in others if p.ndim >= 2} == positions
    assert all(p.ndim >= 2 for p in decayed)
    assert len(decayed) + len(others) == len(names)
    assert positions <= model.no_weight_decay()


def test_models_of_other_libraries_declare_their_positions():
    """As timm does, in a method that returns names; here inside an orbit."""

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Parameter(torch.zeros(3, 4)), nn.Linear(4, 2)

        def no_weight_decay(self):
            return {"table"}

    for model, prefix in ((Other(), ""), (orbit(Other(), "C4"), "model.")):
        names = {id(p): key for key, p in model.named_parameters()}
        decayed, _ = split_by_decay(model)
        assert {names[id(p)] for p in decayed} == {f"{prefix}fc.weight"}


def test_multistep_multiplies_the_rate_after_each_milestone():
    part = OptimisationPart(schedule="multistep", milestones=(2, 3), decay=0.2, learning_rate=1.0)
    optimiser = make_optimiser(nn.Linear(2, 2), part)
    schedule, rates = make_schedule(optimiser, part, total=40, epochs=4), []
    for _ in range(40):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    expected = [1.0] * 20 + [0.2] * 10 + [0.04] * 10
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    "options", [{"schedule": "multistep"}, {"schedule": "cosine", "milestones": (5,)}]
)
def test_milestones_belong_to_multistep(options):
    with pytest.raises(InputError, match="milestones are for multistep, which needs some"):
        OptimisationPart(**options)
