"""The certificate holds where it must, and every planted fault is found."""

import json

import pytest
import torch
from torch import nn

import turnwise
from turnwise.errors import InputError
from turnwise.evaluation import certify
from turnwise.evaluation.certificate.certificate import ElementCheck
from turnwise.evaluation.certificate.controls import Control
from turnwise.evaluation.certificate.moves import describe_element
from turnwise.groups import GRID_GROUPS, PlanarGroup
from turnwise.models import create_model, orbit

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
MARK, OTHERS, SHUFFLE = (
    "the measure sees an inverted quadrant",
    "other pictures, other answers",
    "shuffled pixels, another answer",
)


@pytest.fixture
def images():
    return torch.rand(6, 1, 8, 8)


def lopsided():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))


class OverTurns(nn.Module):
    """The mean over chosen quarter turns; an orbit only if they are 0, 1, 2 and 3."""

    def __init__(self, turns, position=None):
        super().__init__()
        self.inner, self.turns = lopsided(), turns
        self.position = None if position is None else nn.Parameter(position)

    def forward(self, images):
        if self.position is not None:
            images = images + self.position
        views = [self.inner(torch.rot90(images, k, (-2, -1))) for k in self.turns]
        return torch.stack(views).mean(0)


class BagOfPixels(nn.Module):
    """It sees how bright the pixels are and not where they stand."""

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
    """An orbit whose answer to the last picture is not a number."""

    def __init__(self):
        super().__init__()
        self.inner = orbit(lopsided(), "C4")

    def forward(self, images):
        answers = self.inner(images).clone()
        answers[-1, 0] = torch.nan
        return answers


def silent(certificate):
    return {control.name for control in certificate.controls if not control.holds}


def broken(certificate):
    return [check.element for check in certificate.elements if not check.holds]


@pytest.mark.parametrize("name", GRID_GROUPS[1:])
def test_an_orbit_is_invariant_under_its_group(name, images):
    certificate = certify(create_model("orbit_vit", group=name, **SMALL), name, images, angles=4)
    assert certificate.holds
    assert len(certificate.elements) == PlanarGroup.named(name).order
    assert max(e.float64 for e in certificate.elements) < 1e-12
    assert not silent(certificate)


def test_the_plain_model_is_not(images):
    certificate = certify(create_model("vit", **SMALL), "D4", images, angles=4)
    assert not certificate.holds
    assert broken(certificate) == [1, 2, 3, 4, 5, 6, 7]
    assert not silent(certificate)


def test_a_larger_group_than_the_models_own_is_refused_its_certificate(images):
    """C4 does not make a model blind to mirrors, and the table says which elements fail."""
    certificate = certify(create_model("orbit_vit", group="C4", **SMALL), "D4", images, angles=1)
    assert broken(certificate) == [4, 5, 6, 7]


def test_control_all_four_turns_are_an_orbit(images):
    assert certify(OverTurns([0, 1, 2, 3]), "C4", images, angles=1).holds


@pytest.mark.parametrize("turns", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 1, 3]])
def test_an_orbit_with_one_wrong_element_is_found(turns, images):
    certificate = certify(OverTurns(turns), "C4", images, angles=1)
    assert broken(certificate)
    assert not certificate.holds
    assert 0 not in broken(certificate)


def test_an_absolute_position_is_found(images):
    """One pixel in one corner gets a little extra, before an orbit that is otherwise right."""
    position = torch.zeros(8, 8)
    position[0, 0] = 1e-3
    assert broken(certify(OverTurns([0, 1, 2, 3], position), "C4", images, angles=1)) == [1, 2, 3]


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_constant_answer_is_worth_nothing(value, images):
    """It obeys the law in every element, and all the controls are silent."""
    certificate = certify(Constant(value), "C4", images, angles=1)
    assert broken(certificate) == []
    assert silent(certificate) == {MARK, OTHERS, SHUFFLE}
    assert not certificate.holds


def test_a_bag_of_pixels_is_found_by_the_shuffle(images):
    certificate = certify(BagOfPixels(), "D4", images, angles=1)
    assert broken(certificate) == []
    assert SHUFFLE in silent(certificate)
    assert OTHERS not in silent(certificate)
    assert not certificate.holds


def test_equal_pictures_prove_nothing(images):
    same = images[:1].repeat(4, 1, 1, 1)
    certificate = certify(OverTurns([0, 1, 2, 3]), "C4", same, angles=1)
    assert silent(certificate) == {OTHERS}
    assert not certificate.holds


def test_an_answer_that_is_not_a_number_does_not_hold(images):
    certificate = certify(OneNaN(), "C4", images, angles=1)
    assert broken(certificate) == [0, 1, 2, 3]
    assert not certificate.holds


@pytest.mark.parametrize(
    ("double", "single", "holds"),
    [
        (1e-10, 1e-4, True),
        (2e-10, 0.0, False),
        (0.0, 2e-4, False),
        (float("nan"), 0.0, False),
        (0.0, float("nan"), False),
        (float("inf"), 0.0, False),
    ],
)
def test_an_element_holds_up_to_its_tolerances(double, single, holds):
    assert ElementCheck(1, "turn by 90°", double, single).holds is holds


@pytest.mark.parametrize(
    ("change", "holds"), [(2e-6, True), (1e-6, False), (0.0, False), (float("nan"), False)]
)
def test_a_control_speaks_where_the_answer_moves(change, holds):
    assert Control("any", change).holds is holds


def test_only_exact_elements_are_claimed(images):
    """C8 has four elements that map pixels to pixels; the others are measured, not claimed."""
    model = create_model("orbit_vit", group="C4", **SMALL)
    certificate = certify(model, "C8", images, angles=8)
    assert [e.element for e in certificate.elements] == [0, 2, 4, 6]
    assert [e.meaning for e in certificate.elements] == [
        "nothing", "turn by 90°", "turn by 180°", "turn by 270°",
    ]  # fmt: skip
    assert certificate.holds
    assert [a.degrees for a in certificate.angles] == [45.0 * k for k in range(8)]


def test_angles_are_measured(images):
    """Quarter turns do not move an orbit model's answer, 45° does; a plain one's always moves."""
    turned = certify(create_model("orbit_vit", group="C4", **SMALL), "C4", images, angles=8).angles
    plain = certify(create_model("vit", **SMALL), "C4", images, angles=8).angles
    assert turned[0].change == plain[0].change == 0.0
    for quarter in (2, 4, 6):
        assert turned[quarter].change < 1e-4 < plain[quarter].change
        assert turned[quarter].agreement == 1.0
    assert turned[1].change > 1e-3


@pytest.mark.parametrize("name", ["C1", "C3", "C5", "C15"])
def test_a_group_without_exact_elements_cannot_be_certified(images, name):
    """Nothing but the identity could be tested, so a plain model would pass."""
    with pytest.raises(InputError, match=f"{name} has no element but the identity"):
        certify(create_model("vit", **SMALL), name, images, angles=1)


def test_the_verdict_names_the_exact_part(images):
    certificate = certify(create_model("orbit_vit", group="C4", **SMALL), "C8", images, angles=1)
    assert certificate.holds
    assert certificate.plain()["exact_part"] == "C4"
    assert certificate.claim == "C4, the exact part of C8"


def test_dropout_is_off_in_the_measurement(images):
    """In train mode the same model answers differently each time; its certificate holds."""
    model = orbit(nn.Sequential(nn.Dropout(0.5), lopsided()), "C4").train()
    assert not torch.equal(model(images), model(images))
    assert certify(model, "C4", images, angles=1).holds


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_model_is_not_changed(training, precision, images):
    model = create_model("orbit_vit", group="C4", **SMALL).to(precision).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    certify(model, "C4", images, angles=2)
    assert model.training is training
    assert all(module.training is training for module in model.modules())
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_pictures_are_preprocessed(images):
    """The model takes numbers around 0; its certificate is on pictures from 0 to 1."""
    asked = []

    class Watching(nn.Module):
        def preprocess(self, images):
            return images - 0.5

        def forward(self, images):
            asked.append(images)
            return images.square().mean((-2, -1)).expand(-1, 2) * torch.tensor([1.0, 2.0])

    certify(Watching(), "C4", images, angles=1)
    assert torch.equal(asked[0], images.double() - 0.5)


def test_what_is_written_down(images):
    model = create_model("orbit_vit", group="D4", **SMALL)
    certificate = certify(model, "p4m", images, target="mine", pictures="noise", angles=3)
    plain = json.loads(json.dumps(certificate.plain(), allow_nan=False))
    assert plain["holds"] is True
    assert (plain["target"], plain["group"]) == ("mine", "D4")
    assert plain["pictures"] == "noise, 6 of shape (1, 8, 8)"
    assert plain["versions"]["turnwise"] == turnwise.__version__
    assert [e["meaning"] for e in plain["elements"]] == [e.meaning for e in certificate.elements]
    assert plain["elements"][1]["float64"] == certificate.elements[1].float64
    assert {c["name"] for c in plain["controls"]} == {MARK, OTHERS, SHUFFLE}
    assert len(plain["angles"]) == 3


def test_a_refusal_is_written_down_too(images):
    plain = certify(create_model("vit", **SMALL), "C4", images, angles=1).plain()
    assert json.loads(json.dumps(plain, allow_nan=False))["holds"] is False


def test_the_hash_is_that_of_the_weights(images):
    model = create_model("vit", **SMALL)
    first = certify(model, "C2", images, angles=1).weights_sha256
    assert certify(model, "C2", images[:2], angles=1).weights_sha256 == first
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    assert certify(model, "C2", images, angles=1).weights_sha256 != first
    assert len(first) == 64


@pytest.mark.parametrize(
    ("name", "g", "words"),
    [
        ("D4", 0, "nothing"),
        ("D4", 1, "turn by 90°"),
        ("D4", 4, "mirror left and right"),
        ("D4", 7, "mirror, then turn by 270°"),
        ("C8", 3, "turn by 135°"),
        ("C16", 1, "turn by 22.5°"),
        ("D1", 1, "mirror left and right"),
    ],
)
def test_elements_in_words(name, g, words):
    assert describe_element(PlanarGroup.named(name), g) == words


def test_a_linear_model_in_an_orbit_is_certified():
    """An added mark would only shift its answer: the control must not rely on adding."""
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    images = torch.rand(4, 1, 6, 6)
    assert certify(turnwise.orbit(linear, "D4"), "D4", images, angles=4).holds
