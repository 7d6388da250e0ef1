"""What stands beside the claim: decisions, sizes, precisions, worst pictures, likeness."""

import copy
import math

import pytest
import small_networks as nets
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.models import create_model


def measured(model, images, group="C4", **scope):
    return certify(model, group, images, angles=4, scope=Scope(**scope))


def test_decisions_of_an_invariant_model_stay(digits_like):
    certificate = measured(nets.group_net(), digits_like)
    for check in (*certificate.elements, *certificate.angles):
        assert check.agreement == 1.0
        assert check.probability < 1e-6
        assert check.margin > 0


def test_what_a_move_does_to_probabilities_is_measured(digits_like):
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8)
    with torch.no_grad():
        model.head.weight.mul_(50)
    certificate = measured(model, digits_like)
    turned = act_on_image("C4", 1, digits_like)
    before, after = (
        model(model.preprocess(images)).softmax(-1).detach() for images in (digits_like, turned)
    )
    change = (after - before).abs().amax(-1)
    element = certificate.elements[1]
    assert element.probability == pytest.approx(float(change.max()), rel=1e-4)
    assert element.worst == int(change.argmax())
    assert element.agreement == float((after.argmax(-1) == before.argmax(-1)).double().mean())


def test_the_worst_pictures_are_ranked_each_once(digits_like):
    certificate = measured(nets.group_net(nets.Position()), digits_like)
    changes = [worst.probability for worst in certificate.worst]
    assert changes == sorted(changes, reverse=True)
    assert len({worst.picture for worst in certificate.worst}) == 5
    everywhere = (*certificate.elements, *certificate.angles, *certificate.moves)
    assert changes[0] == max(check.probability for check in everywhere)


def test_a_mirror_and_shifts_are_measured_and_not_claimed(digits_like):
    certificate = measured(nets.group_net(), digits_like, shifts=2)
    assert [m.kind for m in certificate.moves] == ["mirror"] * 2 + ["shift"] * 8
    assert all(m.change > 1e-4 for m in certificate.moves), "this network sees mirrors and borders"
    assert certificate.holds


@pytest.mark.parametrize(("side", "holds"), [(9, True), (8, False)])
def test_other_sizes_are_part_of_the_claim(side, holds):
    """A stride of 2 is centred on an odd number of pixels alone."""
    images = torch.rand(4, 1, 11, 11)
    certificate = measured(nets.plain_net(nets.SymmetricConv(stride=2)), images, sizes=(side,))
    (size,) = certificate.sizes
    assert all(element.holds for element in certificate.elements)
    assert (size.float64 < 1e-10) is holds
    assert certificate.holds is holds


def test_the_error_at_another_size_is_that_of_the_resampled_pictures(digits_like):
    model = nets.group_net(nets.Position(6))
    (size,) = certify(nets.group_net(), "C4", digits_like, angles=1, scope=Scope(sizes=(6,))).sizes
    assert size.float64 < 1e-12
    small = F.interpolate(digits_like.double(), (6, 6), mode="bilinear", antialias=True)
    expected = max(e.float64 for e in certify(model, "C4", small, angles=1).elements)
    model.insert(0, torch.nn.AdaptiveAvgPool2d(6))  # takes pictures of 8 pixels, too
    (size,) = certify(model, "C4", digits_like, angles=1, scope=Scope(sizes=(6,))).sizes
    assert size.float64 == pytest.approx(expected)


def test_a_size_that_the_model_refuses_is_said_and_breaks_nothing(digits_like):
    model = create_model("orbit_vit", group="C4", width=16, depth=1, heads=2, image_size=8)
    certificate = measured(model, digits_like, sizes=(10,))
    assert "the model takes pictures of shape (1, 8, 8)" in certificate.sizes[0].refusal
    assert certificate.sizes[0].float64 is None
    assert certificate.holds


def test_precisions_are_chosen(digits_like):
    coarse = measured(nets.group_net(), digits_like, precisions=("float32", "bfloat16"))
    element = coarse.elements[1]
    assert element.float64 is None
    assert 0 < element.float32 < 1e-4
    assert max(e.bfloat16 for e in coarse.elements) < 5e-2
    assert {e.float16 for e in coarse.elements} == {None}
    assert coarse.holds


def test_a_coarse_precision_can_fail(digits_like):
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8)
    certificate = measured(model, digits_like, precisions=("bfloat16",))
    assert [element.holds for element in certificate.elements] == [True, False, False, False]


def test_a_file_must_answer_like_its_original(digits_like):
    model, other = nets.group_net(), nets.group_net()
    same = certify(model, "C4", digits_like, angles=1, original=("twin", copy.deepcopy(model)))
    assert same.likeness.change == 0.0
    assert same.holds
    unlike = certify(model, "C4", digits_like, angles=1, original=("another", other))
    assert all(e.holds for e in unlike.elements)
    assert unlike.likeness.change > 1e-3
    assert not unlike.holds


def test_an_original_with_other_classes_is_refused(digits_like):
    other = torch.nn.Sequential(*nets.group_net()[:-1], torch.nn.Linear(3, 7))
    with pytest.raises(InputError, match="another answers with 7 scores, the file with 4"):
        certify(nets.group_net(), "C4", digits_like, original=("another", other))


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"shifts": -1}, "shifts = -1 must be 0 or more"),
        ({"sizes": (1,)}, "must be 2 pixels or more"),
        ({"precisions": ()}, "needs a precision"),
        ({"precisions": ("float8",)}, "unknown precision 'float8'"),
        ({"chunk": 0}, "chunk = 0 must be at least 1"),
    ],
)
def test_nonsense(scope, said):
    with pytest.raises(InputError, match=said):
        Scope(**scope)


def test_not_a_number_is_an_infinite_error(digits_like):
    class Broken(torch.nn.Module):
        def forward(self, images):
            return images.mean((1, 2, 3))[:, None] * torch.tensor([math.nan, 1.0])

    certificate = certify(Broken(), PlanarGroup.named("C4"), digits_like, angles=1)
    assert {e.float64 for e in certificate.elements} == {math.inf}
    assert not certificate.holds


class Scored(nn.Module):
    """Scores by a function of the pictures."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, images):
        return self.scores(images)


def turned_sums(images):
    """Two scores that a half turn swaps."""
    half = images.shape[2] // 2
    upper, lower = images[:, :, :half].sum((1, 2, 3)), images[:, :, -half:].sum((1, 2, 3))
    return torch.stack([upper - lower, lower - upper], dim=1)


def rings(images):
    """Two scores that no turn changes, and a shuffle does."""
    side = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
    levels = (images * (side[:, None] ** 2 + side**2).to(images)).mean((1, 2, 3))
    return torch.stack([levels, -levels], dim=1)


def corner(images):
    return images[:, :, :1, :1].mean((1, 2, 3))[:, None]


def likeness_to_the_batch(images):
    return (images * images.mean(0)).sum((1, 2, 3))[:, None]


FOOLING = {
    "what all scores share": lambda x: 1e12 + turned_sums(x),
    "a corner where digits are blank": lambda x: rings(x) + 100 * corner(x),
    "a batch that moves as one": lambda x: rings(x) * likeness_to_the_batch(x),
}


@pytest.mark.parametrize("trick", FOOLING)
def test_it_is_not_fooled_by(trick, digits_like):
    images = digits_like.clone()
    images[:, :, [0, -1]] = images[..., [0, -1]] = 0  # a blank border
    assert certify(Scored(rings), "C4", images, angles=1).holds
    assert not certify(Scored(FOOLING[trick]), "C4", images, angles=1).holds


def test_a_model_may_write_on_what_it_is_given(digits_like):
    images = digits_like.clone()
    assert certify(Scored(lambda x: rings(x.sub_(0.5).mul_(2))), "C4", images, angles=1).holds
    assert torch.equal(images, digits_like)
