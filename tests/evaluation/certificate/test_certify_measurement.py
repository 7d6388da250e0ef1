"""What is measured beside the claim: decisions, sizes, precisions, worst images, the original."""

import copy
import math

import pytest
import small_networks as nets
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.evaluation.certificate.controls import invert_quadrant, measure_controls
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor
from turnwise.models import create_model

C4 = PlanarGroup.named("C4")
SMALL_VIT = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}


def measure(model, images, group="C4", **scope):
    return certify(model, group, images, angles=4, scope=Scope(**scope))


def test_the_decisions_of_an_invariant_model_do_not_change(digits_like):
    certificate = measure(nets.group_net(), digits_like)
    for check in (*certificate.elements, *certificate.angles):
        assert check.agreement == 1.0
        assert check.probability < 1e-6
        assert check.margin > 0


def test_the_change_of_probabilities_is_measured(digits_like):
    model = create_model("vit", **SMALL_VIT)
    with torch.no_grad():
        model.head.weight.mul_(50)
    element = measure(model, digits_like).elements[1]
    rotated = act_on_image("C4", 1, digits_like)
    before, after = (
        model(model.preprocess(images)).softmax(-1).detach() for images in (digits_like, rotated)
    )
    change = (after - before).abs().amax(-1)
    assert element.probability == pytest.approx(float(change.max()), rel=1e-4)
    assert element.worst == int(change.argmax())
    assert element.agreement == float((after.argmax(-1) == before.argmax(-1)).double().mean())


def test_the_worst_images_are_ranked_once_each(digits_like):
    certificate = measure(nets.group_net(nets.Position()), digits_like)
    changes = [worst.probability for worst in certificate.worst_images]
    assert changes == sorted(changes, reverse=True)
    assert len({worst.image for worst in certificate.worst_images}) == 5
    everything = (*certificate.elements, *certificate.angles, *certificate.transformations)
    assert changes[0] == max(check.probability for check in everything)


def test_flips_and_shifts_are_measured_and_not_claimed(digits_like):
    certificate = measure(nets.group_net(), digits_like, shifts=2)
    kinds = [t.kind for t in certificate.transformations]
    assert kinds == ["reflection"] * 2 + ["shift"] * 8 + ["corners"]
    assert all(t.change > 1e-4 for t in certificate.transformations), "flips and borders matter"
    assert certificate.holds


@pytest.mark.parametrize(("side", "holds"), [(9, True), (8, False)])
def test_other_sizes_are_part_of_the_claim(side, holds):
    """A stride of 2 is centred only on an odd number of pixels."""
    images = torch.rand(4, 1, 11, 11)
    certificate = measure(nets.plain_net(nets.SymmetricConv(stride=2)), images, sizes=(side,))
    size, _ = certificate.sizes
    assert all(element.holds for element in certificate.elements)
    assert (size.float64 < 1e-10) is holds
    assert certificate.holds is holds


def test_the_error_at_another_size_is_that_of_the_resampled_images(digits_like):
    model = nets.group_net(nets.Position(6))
    size, _ = certify(nets.group_net(), "C4", digits_like, angles=1, scope=Scope(sizes=(6,))).sizes
    assert size.float64 < 1e-12
    small = F.interpolate(digits_like.double(), (6, 6), mode="bilinear", antialias=True)
    expected = max(e.float64 for e in certify(model, "C4", small, angles=1).elements)
    model.insert(0, nn.AdaptiveAvgPool2d(6))  # so that it takes images of 8 pixels, too
    size, _ = certify(model, "C4", digits_like, angles=1, scope=Scope(sizes=(6,))).sizes
    assert size.float64 == pytest.approx(expected)


def test_a_size_that_the_model_refuses_is_reported_and_does_not_fail(digits_like):
    model = create_model("orbit_vit", group="C4", **SMALL_VIT)
    certificate = measure(model, digits_like, sizes=(10,))
    assert "(1, 8, 8)" in certificate.sizes[0].refusal
    assert certificate.sizes[0].float64 is None
    assert certificate.holds


def test_precisions_are_chosen(digits_like):
    certificate = measure(nets.group_net(), digits_like, precisions=("float32", "bfloat16"))
    element = certificate.elements[1]
    assert element.float64 is None
    assert 0 < element.float32 < 1e-4
    assert max(e.bfloat16 for e in certificate.elements) < 5e-2
    assert {e.float16 for e in certificate.elements} == {None}
    assert certificate.holds


def test_a_coarse_precision_can_fail(digits_like):
    certificate = measure(create_model("vit", **SMALL_VIT), digits_like, precisions=("bfloat16",))
    assert [element.holds for element in certificate.elements] == [True, False, False, False]


def test_a_file_must_agree_with_its_original(digits_like):
    model, other = nets.group_net(), nets.group_net()
    same = certify(model, "C4", digits_like, angles=1, original=("copy", copy.deepcopy(model)))
    assert same.original.change == 0.0
    assert same.holds
    different = certify(model, "C4", digits_like, angles=1, original=("another", other))
    assert all(e.holds for e in different.elements)
    assert different.original.change > 1e-3
    assert not different.holds


def test_an_original_with_other_classes_is_refused(digits_like):
    other = nn.Sequential(*nets.group_net()[:-1], nn.Linear(3, 7))
    with pytest.raises(InputError, match="another returns 7 logits, the file 4"):
        certify(nets.group_net(), "C4", digits_like, original=("another", other))


class Function(nn.Module):
    """A model whose logits are a function of the images."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, images):
        return self.function(images)


def test_an_output_that_is_not_a_number_is_an_infinite_error(digits_like):
    broken = Function(lambda x: x.mean((1, 2, 3))[:, None] * torch.tensor([math.nan, 1.0]))
    certificate = certify(broken, C4, digits_like, angles=1)
    assert {e.float64 for e in certificate.elements} == {math.inf}
    assert not certificate.holds


def halves(images):
    """Two logits that a rotation by 180° swaps."""
    half = images.shape[2] // 2
    upper, lower = images[:, :, :half].sum((1, 2, 3)), images[:, :, -half:].sum((1, 2, 3))
    return torch.stack([upper - lower, lower - upper], dim=1)


def rings(images):
    """Two logits that no rotation by 90° changes; shuffled pixels do."""
    side = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
    levels = (images * (side[:, None] ** 2 + side**2).to(images)).mean((1, 2, 3))
    return torch.stack([levels, -levels], dim=1)


def corner(images):
    return images[:, :, :1, :1].mean((1, 2, 3))[:, None]


def similarity_to_the_batch(images):
    return (images * images.mean(0)).sum((1, 2, 3))[:, None]


NOT_INVARIANT = {
    "behind a large number that all classes share": lambda x: 1e12 + halves(x),
    "in a corner where the images are blank": lambda x: rings(x) + 100 * corner(x),
    "through a batch that is transformed as one": lambda x: rings(x) * similarity_to_the_batch(x),
}


@pytest.mark.parametrize("where", NOT_INVARIANT)
def test_a_dependence_is_found(where, digits_like):
    images = digits_like.clone()
    images[:, :, [0, -1]] = images[..., [0, -1]] = 0  # a blank border
    assert certify(Function(rings), "C4", images, angles=1).holds
    assert not certify(Function(NOT_INVARIANT[where]), "C4", images, angles=1).holds


def test_a_model_may_write_on_its_input(digits_like):
    images = digits_like.clone()
    writing = Function(lambda x: rings(x.sub_(0.5).mul_(2)))
    assert certify(writing, "C4", images, angles=1).holds
    assert torch.equal(images, digits_like)


# Negative controls


def controls(function, images, precision="float64"):
    predictor = Predictor(Function(function), precision=precision)
    return measure_controls(predictor, C4, images, predictor.logits(images))


def test_all_controls_pass_for_a_model_that_depends_on_the_image(digits_like):
    assert all(control.holds for control in controls(rings, digits_like))


def test_no_control_passes_for_a_constant(digits_like):
    found = controls(lambda x: torch.ones(len(x), 3, dtype=x.dtype), digits_like)
    assert [control.change for control in found] == [0.0] * 3
    assert not any(control.holds for control in found)


@pytest.mark.parametrize(("precision", "threshold"), [("float64", 1e-6), ("float32", 1e-4)])
def test_the_threshold_is_above_rounding(precision, threshold, digits_like):
    model = nets.group_net().to(getattr(torch, precision))
    predictor = Predictor(model)
    found = measure_controls(predictor, C4, digits_like, predictor.logits(digits_like))
    assert {control.threshold for control in found} == {threshold}


def test_one_quadrant_is_inverted_and_nothing_else():
    images = torch.rand(2, 1, 4, 6)
    inverted = invert_quadrant(images)
    assert torch.equal(inverted[..., :2, :3], 1 - images[..., :2, :3])
    assert torch.equal(inverted[..., 2:, :], images[..., 2:, :])
    assert torch.equal(inverted[..., 3:], images[..., 3:])
