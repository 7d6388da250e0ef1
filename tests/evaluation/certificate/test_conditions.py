"""Faults that hide from batches of fixed images in eval mode are found, or named as untested."""

import pytest
import torch
from torch import nn

from turnwise.evaluation import Scope, certify
from turnwise.evaluation.certificate.conditions import random_images, sizes_to_sweep
from turnwise.models import create_model, orbit

FRESH = {"fresh_seed": 1}


class Hidden(nn.Module):
    """An invariant network, plus a corner pixel wherever `is_broken` says so."""

    def __init__(self, is_broken, everywhere=False):
        super().__init__()
        inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1))
        self.inner = orbit(nn.Sequential(inner, nn.Flatten(), nn.Linear(4, 3)), "C4")
        self.is_broken, self.everywhere = is_broken, everywhere

    def forward(self, images):
        broken = torch.as_tensor(self.is_broken(self, images)).to(images)
        return self.inner(images) + broken.view(-1, 1) * images[:, :, 0, 0].expand(-1, 3)


def brightness(images):
    return images.mean((1, 2, 3))


class Copied(Hidden):
    """A network whose copies are invariant, while it is not."""

    def __init__(self, is_copy=False):
        super().__init__(lambda *_: not is_copy)
        self.is_copy = is_copy

    def __deepcopy__(self, memo):
        copied = Copied(is_copy=True)
        copied.load_state_dict(self.state_dict())
        return copied


DEFAULT = {
    "only alone": Hidden(lambda model, x: len(x) == 1),
    "only bright": Hidden(lambda model, x: brightness(x) > 0.85),
    "only dark": Hidden(lambda model, x: brightness(x) < 0.1),
    "only at other sizes": Hidden(lambda model, x: x.shape[-1] > 12),
    "only in float32": Hidden(lambda model, x: x.dtype == torch.float32),
    "only the model itself": Copied(),
}
THOROUGH = {
    "only in training mode": Hidden(lambda model, x: model.training),
    "only in bfloat16": Hidden(lambda model, x: x.dtype == torch.bfloat16),
    "1 of 100 images": Hidden(lambda model, x: (brightness(x) * 1e4).floor() % 100 == 0),
}


@pytest.fixture
def images():
    return 0.3 + 0.4 * torch.rand(6, 1, 12, 12)


@pytest.fixture
def no_compiler(monkeypatch):
    """torch.compile takes a minute; one slow test uses it."""

    def refuse(model):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", refuse)


def test_an_invariant_model_holds_under_all_conditions(images, no_compiler):
    model = Hidden(lambda *_: False)
    found = certify(model, "C4", images, angles=1, scope=Scope(thorough=True, **FRESH))
    assert found.holds
    assert [c.condition for c in found.conditions] == [
        "one image at a time", "the model itself, not a copy",
        "512 random images, dark to bright, of seed 1", "training mode, without dropout",
        "compiled by torch.compile",
    ]  # fmt: skip
    assert found.conditions[-1].refusal == "no compiler here"
    assert [s.size for s in found.sizes] == [44, 76]
    assert "compiled by torch.compile" in found.untested
    assert "training mode" not in found.untested


@pytest.mark.parametrize("name", DEFAULT)
def test_a_fault_that_passed_before_is_found(images, name):
    found = certify(DEFAULT[name], "C4", images, angles=1, scope=Scope(layers=False, **FRESH))
    assert not found.holds


@pytest.mark.parametrize("name", THOROUGH)
def test_a_fault_that_passes_by_default_is_named_and_found_by_a_thorough_certificate(
    images, name, no_compiler
):
    few = Scope(layers=False, fresh=2, **FRESH)
    default = certify(THOROUGH[name], "C4", images, angles=1, scope=few)
    assert default.holds
    words = {"only in training mode": "training mode", "only in bfloat16": "bfloat16"}
    assert any(words.get(name, "fewer than 1 in") in what for what in default.untested)
    scope = Scope(layers=False, thorough=True, **FRESH)
    assert not certify(THOROUGH[name], "C4", images, angles=1, scope=scope).holds


@pytest.mark.slow
def test_a_fault_of_compiled_code_is_found(images):
    model = Hidden(lambda model, x: torch.compiler.is_compiling())
    scope = Scope(layers=False, thorough=True, **FRESH)
    found = certify(model, "C4", images, angles=1, scope=scope)
    assert [c.condition for c in found.conditions if not c.holds] == ["compiled by torch.compile"]


def test_the_seed_of_random_images_is_new_each_time_and_printed(images):
    model = create_model("orbit_vit", width=8, depth=1, heads=2, image_size=12)
    scope = Scope(layers=False)
    words = {certify(model, "C4", images, angles=1, scope=scope).conditions[-1].condition
             for _ in range(2)}  # fmt: skip
    assert len(words) == 2 and all("random images, dark to bright, of seed" in w for w in words)


def test_random_images_are_dark_bright_and_neither():
    images = random_images(40, (3, 9, 11), seed=0)
    assert images.shape == (40, 3, 9, 11) and images.min() >= 0 and images.max() <= 1
    assert (brightness(images) < 0.1).sum() >= 8 and (brightness(images) > 0.9).sum() >= 8
    assert (brightness(images) - 0.5).abs().min() < 0.2
    assert torch.equal(images, random_images(40, (3, 9, 11), seed=0))
    assert not torch.equal(images, random_images(40, (3, 9, 11), seed=1))


def test_a_model_is_measured_at_its_own_sizes():
    """At even sizes this network would be inexact and says so; a plain vit has one size."""
    net = create_model("g_cnn", group="C4", image_size=28)
    assert all(size in net.exact_size(size) for size in sizes_to_sweep(net, 28))
    assert sizes_to_sweep(create_model("vit"), 28) == ()
    assert sizes_to_sweep(nn.Identity(), 28) == (60,)
