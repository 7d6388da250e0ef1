"""Law, witness, control, definition of the orbit; around anything that classifies."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import turnwise
from turnwise.checks import InputError
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_image,
    act_on_regular,
    equivariance_error,
)
from turnwise.models import create_model, orbit

SMALL = {"width": 16, "depth": 2, "heads": 2, "image_size": 8}


def lopsided(size=6):
    """A classifier with no symmetry at all."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()


def pictures(size=6):
    return torch.rand(3, 1, size, size, dtype=torch.float64)


@pytest.mark.parametrize("name", GRID_GROUPS)
@pytest.mark.parametrize("training", [True, False])
def test_law(name, training):
    model = create_model("orbit_vit", group=name, **SMALL).double().train(training)
    assert equivariance_error(model, name, pictures(8)) < 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_law_around_any_module(name):
    turnwise.assert_equivariant(orbit(lopsided(), name), name, pictures())


def test_law_of_the_features():
    """The answers to the views are a function on the group, and it turns with the picture."""
    model = orbit(lopsided(), "D4")

    def act(group, g, x):
        return act_on_regular(group, g, x)

    assert equivariance_error(model.forward_features, "D4", pictures(), act_out=act) < 1e-12


def test_witness():
    """Different pictures, different answers; and the views do differ before they are averaged."""
    model = orbit(lopsided(), "C4")
    assert (model(pictures()) - model(pictures())).abs().max() > 1e-3
    assert model.forward_features(pictures()).std(dim=1).min() > 1e-3


def test_control():
    """Without the orbit, and with the orbit of a smaller group, the measure must see it."""
    inner = lopsided()
    assert equivariance_error(inner, "C4", x := pictures()) > 0.01
    assert equivariance_error(orbit(inner, "C2"), "C4", x) > 0.01
    assert equivariance_error(orbit(inner, "C2"), "C2", x) < 1e-12


def test_definition():
    """1/|G| Σ_h φ(h⁻¹f) as a loop, on D4, where an element and its inverse differ."""
    inner, x, group = lopsided(), pictures(), PlanarGroup.named("D4")
    total = torch.zeros(3, 3, dtype=torch.float64)
    for h in range(8):
        view = inner(act_on_image(group, group.invert(h), x))
        torch.testing.assert_close(orbit(inner, "D4").forward_features(x)[:, h], view)
        total += view
    torch.testing.assert_close(orbit(inner, "D4")(x), total / 8)


def test_definition_on_a_rectangle():
    """Half turns and mirrors keep rectangles."""
    inner = nn.Sequential(nn.Flatten(), nn.Linear(15, 2)).double()
    x = torch.rand(1, 1, 3, 5, dtype=torch.float64)
    by_hand = (inner(x) + inner(x.flip(-1)) + inner(x.flip(-2)) + inner(x.flip(-1, -2))) / 4
    torch.testing.assert_close(orbit(inner, "D2")(x), by_hand)


def test_law_holds_after_training():
    model = create_model("orbit_vit", group="D4", **SMALL)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(4, 1, 8, 8)), torch.arange(4)).backward()
        optimiser.step()
    assert equivariance_error(model.double().eval(), "D4", pictures(8)) < 1e-12


def test_groups_off_the_grid_are_refused():
    with pytest.raises(InputError, match="C8 does not map pixels to pixels; use C1, C2, C4"):
        orbit(lopsided(), "C8")


def test_unknown_combination():
    with pytest.raises(InputError, match=r"unknown combination 'median'\. .*Known: mean"):
        orbit(lopsided(), "C4", combine="median")


def test_preprocessing_is_that_of_the_model_inside():
    model = create_model("orbit_vit", **SMALL)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(model.preprocess(images), model.model.preprocess(images))
    assert torch.equal(orbit(lopsided(), "C4").preprocess(images), images)
    assert model.exact_size(9) == (8, 12)


COMPILED = """
import torch, turnwise
model = turnwise.create_model("orbit_vit", group="D4", width=16, depth=1, heads=2, image_size=8)
model = model.double().eval()
compiled = torch.compile(model, backend="eager", fullgraph=True)
images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
torch.testing.assert_close(compiled(images), model(images))
turnwise.assert_equivariant(compiled, "D4", images)
"""


def test_law_compiled_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
