"""The certificate holds where it must, and every kind of broken invariance is found."""

import pytest
import torch
from torch import nn

import turnwise
from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import GRID_GROUPS, PlanarGroup
from turnwise.models import create_model, orbit

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
INVERTED, DIFFERENT, SHUFFLED = (
    "an inverted quadrant breaks the invariance",
    "different images, different outputs",
    "shuffled pixels, another output",
)


@pytest.fixture
def images():
    return torch.rand(6, 1, 8, 8)


def asymmetric():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))


class OverRotations(nn.Module):
    """The mean over chosen rotations by k·90°; an orbit only if they are 0, 1, 2 and 3."""

    def __init__(self, rotations, position=None):
        super().__init__()
        self.inner, self.rotations = asymmetric(), rotations
        self.position = None if position is None else nn.Parameter(position)

    def forward(self, images):
        if self.position is not None:
            images = images + self.position
        views = [self.inner(torch.rot90(images, k, (-2, -1))) for k in self.rotations]
        return torch.stack(views).mean(0)


class BagOfPixels(nn.Module):
    """Depends on the values of the pixels, not on their positions."""

    def forward(self, images):
        flat = images.flatten(1)
        return torch.stack([flat.mean(1), flat.square().mean(1), flat.amax(1)], dim=-1)


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]) * value)

    def forward(self, images):
        return self.value.expand(len(images), 3)


class OneNaN(nn.Module):
    """An orbit whose output for the last image is not a number."""

    def __init__(self):
        super().__init__()
        self.inner = orbit(asymmetric(), "C4")

    def forward(self, images):
        logits = self.inner(images).clone()
        logits[-1, 0] = torch.nan
        return logits


def failed_controls(certificate):
    return {control.name for control in certificate.controls if not control.holds}


def failed_elements(certificate):
    return [check.element for check in certificate.elements if not check.holds]


@pytest.mark.parametrize("name", GRID_GROUPS[1:])
def test_an_orbit_is_invariant_under_its_group(name, images):
    certificate = certify(create_model("orbit_vit", group=name, **SMALL), name, images, angles=4)
    assert certificate.holds
    assert len(certificate.elements) == PlanarGroup.named(name).order
    assert max(e.float64 for e in certificate.elements) < 1e-12
    assert not failed_controls(certificate)


def test_the_plain_model_is_not_invariant(images):
    certificate = certify(create_model("vit", **SMALL), "D4", images, angles=4)
    assert not certificate.holds
    assert failed_elements(certificate) == [1, 2, 3, 4, 5, 6, 7]
    assert not failed_controls(certificate)


def test_a_group_larger_than_the_models_own_fails(images):
    """C4 does not make a model invariant under reflections; exactly those elements fail."""
    certificate = certify(create_model("orbit_vit", group="C4", **SMALL), "D4", images, angles=1)
    assert failed_elements(certificate) == [4, 5, 6, 7]


def test_control_all_four_rotations_are_an_orbit(images):
    assert certify(OverRotations([0, 1, 2, 3]), "C4", images, angles=1).holds


@pytest.mark.parametrize("rotations", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 1, 3]])
def test_an_orbit_with_one_wrong_element_fails(rotations, images):
    certificate = certify(OverRotations(rotations), "C4", images, angles=1)
    assert failed_elements(certificate)
    assert not certificate.holds
    assert 0 not in failed_elements(certificate)


def test_an_absolute_position_fails(images):
    """One pixel in one corner is a little brighter, before an orbit that is otherwise right."""
    position = torch.zeros(8, 8)
    position[0, 0] = 1e-3
    certificate = certify(OverRotations([0, 1, 2, 3], position), "C4", images, angles=1)
    assert failed_elements(certificate) == [1, 2, 3]


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_constant_output_fails_all_negative_controls(value, images):
    certificate = certify(Constant(value), "C4", images, angles=1)
    assert failed_elements(certificate) == []
    assert failed_controls(certificate) == {INVERTED, DIFFERENT, SHUFFLED}
    assert not certificate.holds


def test_a_bag_of_pixels_fails_the_shuffle(images):
    certificate = certify(BagOfPixels(), "D4", images, angles=1)
    assert failed_elements(certificate) == []
    assert SHUFFLED in failed_controls(certificate)
    assert DIFFERENT not in failed_controls(certificate)
    assert not certificate.holds


def test_equal_images_prove_nothing(images):
    same = images[:1].repeat(4, 1, 1, 1)
    certificate = certify(OverRotations([0, 1, 2, 3]), "C4", same, angles=1)
    assert failed_controls(certificate) == {DIFFERENT}
    assert not certificate.holds


def test_an_output_that_is_not_a_number_fails(images):
    certificate = certify(OneNaN(), "C4", images, angles=1)
    assert failed_elements(certificate) == [0, 1, 2, 3]
    assert not certificate.holds


def test_only_exact_elements_are_claimed(images):
    """C8 has four elements that map pixels to pixels; the others are measured, not claimed."""
    model = create_model("orbit_vit", group="C4", **SMALL)
    certificate = certify(model, "C8", images, angles=8)
    assert [e.element for e in certificate.elements] == [0, 2, 4, 6]
    assert [e.meaning for e in certificate.elements] == [
        "identity", "rotate by 90°", "rotate by 180°", "rotate by 270°",
    ]  # fmt: skip
    assert certificate.holds
    assert certificate.exact_subgroup == "C4"
    assert [a.degrees for a in certificate.angles] == [45.0 * k for k in range(8)]


def test_angles_are_measured(images):
    """Rotations by 90° leave the output of an orbit unchanged, 45° does not; a plain model's
    output always changes."""
    orbits = certify(create_model("orbit_vit", group="C4", **SMALL), "C4", images, angles=8).angles
    plain = certify(create_model("vit", **SMALL), "C4", images, angles=8).angles
    assert orbits[0].change == plain[0].change == 0.0
    for index in (2, 4, 6):
        assert orbits[index].change < 1e-4 < plain[index].change
        assert orbits[index].agreement == 1.0
    assert orbits[1].change > 1e-3


@pytest.mark.parametrize("name", ["C1", "C3", "C5", "C15"])
def test_a_group_without_exact_elements_cannot_be_certified(images, name):
    """Only the identity could be tested, so a plain model would pass."""
    with pytest.raises(InputError, match=f"{name} has no element but the identity"):
        certify(create_model("vit", **SMALL), name, images, angles=1)


def test_dropout_is_off_in_the_measurement(images):
    """In train mode the outputs of the same model differ from call to call."""
    model = orbit(nn.Sequential(nn.Dropout(0.5), asymmetric()), "C4").train()
    assert not torch.equal(model(images), model(images))
    assert certify(model, "C4", images, angles=1).holds


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_model_is_not_changed(training, precision, images):
    model = create_model("orbit_vit", group="C4", **SMALL).to(precision).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    certify(model, "C4", images, angles=2)
    assert all(module.training is training for module in model.modules())
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_images_are_preprocessed(images):
    seen = []

    class Recording(nn.Module):
        def preprocess(self, images):
            return images - 0.5

        def forward(self, images):
            seen.append(images)
            return images.square().mean((-2, -1)).expand(-1, 2) * torch.tensor([1.0, 2.0])

    certify(Recording(), "C4", images, angles=1)
    assert torch.equal(seen[0], images.double() - 0.5)


def test_the_hashes_are_those_of_weights_and_images(images):
    model = create_model("vit", **SMALL)
    first = certify(model, "C2", images, angles=1)
    fewer = certify(model, "C2", images[:2], angles=1)
    assert len(first.weights_sha256) == len(first.data_sha256) == 64
    assert fewer.weights_sha256 == first.weights_sha256
    assert fewer.data_sha256 != first.data_sha256
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    assert certify(model, "C2", images, angles=1).weights_sha256 != first.weights_sha256


def test_a_linear_model_in_an_orbit_is_certified():
    """Its output is linear in what is added to the image: the control must not rely on adding."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    images = torch.rand(4, 1, 6, 6)
    assert certify(turnwise.orbit(linear, "D4"), "D4", images, angles=4).holds


def test_a_model_that_is_no_classifier_is_refused(images):
    with pytest.raises(InputError, match=r"shape \(6, 1, 8, 8\) for 6 images"):
        certify(nn.Tanh(), "C4", images)


@pytest.mark.parametrize("count", [0, 1])
def test_a_certificate_needs_two_images(count):
    """With one image no output could differ from another's."""
    with pytest.raises(InputError, match=f"needs 2 images or more, .* got {count}"):
        certify(asymmetric(), "C4", torch.rand(count, 1, 8, 8), angles=1)


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ({"shifts": -1}, "shifts = -1 must be 0 or more"),
        ({"sizes": (1,)}, "must be 2 pixels or more"),
        ({"precisions": ()}, "needs a precision"),
        ({"precisions": ("float8",)}, "unknown precision 'float8'"),
        ({"chunk": 0}, "chunk = 0 must be at least 1"),
    ],
)
def test_an_invalid_scope_is_refused(scope, message):
    with pytest.raises(InputError, match=message):
        Scope(**scope)
