"""The canonical view: invariance, negative controls, definition, images without a clear view."""

import pytest
import torch
from torch import nn

import turnwise
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup, act_on_image, act_on_regular, equivariance_error
from turnwise.models import create_model, orbit
from turnwise.models.canonical import Choice, canonical, harmonic_score


class Counting(nn.Module):
    """A classifier with no symmetry that counts its input images."""

    def __init__(self, size=6):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(size * size, 8), nn.Tanh(), nn.Linear(8, 3)
        ).double()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.layers(images)


def random_images(size=6, count=5):
    return torch.rand(count, 1, size, size, dtype=torch.float64)


def symmetric(size=6):
    """Return an image that no rotation changes."""
    distance = pixel_centres(size, size).norm(dim=-1)
    return torch.exp(-distance)[None, None]


@pytest.mark.parametrize("name", ["C2", "C4", "D1", "D2", "D4"])
@pytest.mark.parametrize("combine", ["mean", "most_certain", "learned_attention"])
def test_the_logits_are_invariant(name, combine):
    model = canonical(Counting(), name, combine=combine)
    assert equivariance_error(model, name, torch.cat([random_images(), symmetric()])) < 1e-12


def test_invariance_around_a_transformer():
    vit = create_model("vit", image_size=8, width=16, depth=2, heads=2).double().eval()
    turnwise.assert_equivariant(canonical(vit, "D4"), "D4", random_images(8))


def test_finer_groups_are_exact_on_the_elements_of_the_grid():
    assert (
        equivariance_error(canonical(Counting(), "C16", mask=True), "C4", random_images()) < 1e-12
    )


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_the_scores_and_the_chosen_element_are_equivariant(name):
    """Scores are a function on the group; the best element h becomes g·h."""
    model, group, x = canonical(Counting(), name), PlanarGroup.named(name), random_images()
    assert (
        equivariance_error(
            model.scores, name, x, act_out=lambda group, g, s: act_on_regular(group, g, s)
        )
        < 1e-12
    )
    best = model.choose(x).element
    for g in range(group.order):
        transformed = model.choose(act_on_image(group, g, x)).element
        assert torch.equal(transformed, group.product()[g][best])


def test_each_image_takes_one_pass_and_logits_differ_between_images():
    inner, x = Counting(), random_images(count=40)
    model = canonical(inner, "D4", margin=0.0)
    logits = model(x)
    assert inner.seen == 40
    assert len(model.choose(x).element.unique()) > 3
    assert (logits - logits[:1]).abs().max() > 1e-3


def test_definition():
    inner, x, group = Counting(), random_images(), PlanarGroup.named("D4")
    model = canonical(inner, "D4", margin=0.0)
    for image, logits in zip(x, model(x), strict=True):
        views = [act_on_image(group, group.invert(h), image[None]) for h in range(8)]
        upright = max(views, key=lambda view: float(harmonic_score(view)))
        torch.testing.assert_close(logits, inner(upright)[0])


def test_negative_control_a_constant_score():
    """Without the check for a clear view, equal scores would choose by the order of the list."""

    def indifferent(images):
        return images.sum(dim=(1, 2, 3)).round()

    model = canonical(Counting(), "C4", indifferent)
    assert equivariance_error(model, "C4", x := random_images()) < 1e-12
    nothing = torch.zeros(5, dtype=torch.long)
    model.choose = lambda images: Choice(nothing, nothing == 0)  # always clear
    assert equivariance_error(model, "C4", x) > 0.01


def test_images_without_a_clear_view_are_classified_by_the_orbit():
    inner = Counting()
    x = torch.cat([symmetric(), random_images(count=2)])
    model = canonical(inner, "C4", margin=0.0)
    assert model.choose(x).clear.tolist() == [False, True, True]
    inner.seen = 0
    logits = model(x)
    assert inner.seen == 4 + 2
    torch.testing.assert_close(logits[:1], orbit(inner, "C4")(x[:1]))
    assert torch.equal(model(x[:1]), logits[:1])


def test_a_wider_margin_uses_the_orbit_more_often():
    x = random_images(count=200)
    clear = [
        canonical(Counting(), "D4", margin=m).choose(x).clear.double().mean()
        for m in (0.0, 0.1, 0.9)
    ]
    assert clear[0] > 0.99 > clear[1] > clear[2]


def test_the_template_has_no_symmetry():
    """Otherwise some images would be indistinguishable from their reflections."""
    spots = torch.eye(49, dtype=torch.float64).view(49, 1, 7, 7)
    template = harmonic_score(spots).view(1, 1, 7, 7)
    for g in range(1, 8):
        assert (act_on_image("D4", g, template) - template).abs().max() > 1e-3


def test_gradients_reach_the_model():
    model = canonical(Counting(), "C4")
    model(torch.cat([random_images(), symmetric()])).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_preprocessing_and_sizes_are_those_of_the_model_inside():
    vit = create_model("vit", image_size=8, width=16, depth=1, heads=2)
    model = canonical(vit, "C4")
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(model.preprocess(images), vit.preprocess(images))
    assert model.exact_size(9) == (8,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: canonical(Counting(), "C1"), "C1 has one view only"),
        (lambda: canonical(Counting(), margin=1.0), r"margin = 1\.0 must be from 0 to below 1"),
        (lambda: canonical(Counting(), output="map"), 'needs output = "class"'),
        (lambda: canonical(Counting(), combin="max"), "Did you mean 'combine'"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
