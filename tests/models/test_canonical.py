"""Law, witness, control, definition of the canonical view; and what happens where it is unclear."""

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
    """A classifier with no symmetry, which counts the pictures that it sees."""

    def __init__(self, size=6):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(size * size, 8), nn.Tanh(), nn.Linear(8, 3)
        ).double()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.layers(images)


def pictures(size=6, count=5):
    return torch.rand(count, 1, size, size, dtype=torch.float64)


def symmetric(size=6):
    """The same from all sides."""
    distance = pixel_centres(size, size).norm(dim=-1)
    return torch.exp(-distance)[None, None]


@pytest.mark.parametrize("name", ["C2", "C4", "D1", "D2", "D4"])
@pytest.mark.parametrize("combine", ["mean", "most_certain", "learned_attention"])
def test_law(name, combine):
    model = canonical(Counting(), name, combine=combine)
    assert equivariance_error(model, name, torch.cat([pictures(), symmetric()])) < 1e-12


def test_law_around_a_transformer():
    vit = create_model("vit", image_size=8, width=16, depth=2, heads=2).double().eval()
    turnwise.assert_equivariant(canonical(vit, "D4"), "D4", pictures(8))


def test_law_of_finer_groups_on_the_elements_of_the_grid():
    assert equivariance_error(canonical(Counting(), "C16", mask=True), "C4", pictures()) < 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_law_of_the_scores_and_of_the_choice(name):
    """Scores turn with the picture; the best element h becomes g·h."""
    model, group, x = canonical(Counting(), name), PlanarGroup.named(name), pictures()
    assert (
        equivariance_error(
            model.scores, name, x, act_out=lambda group, g, s: act_on_regular(group, g, s)
        )
        < 1e-12
    )
    best = model.choose(x).element
    for g in range(group.order):
        turned = model.choose(act_on_image(group, g, x)).element
        assert torch.equal(turned, group.product()[g][best])


def test_witness():
    """One pass each, from different poses, and the answers differ from picture to picture."""
    inner, x = Counting(), pictures(count=40)
    model = canonical(inner, "D4", margin=0.0)
    answer = model(x)
    assert inner.seen == 40
    assert len(model.choose(x).element.unique()) > 3
    assert (answer - answer[:1]).abs().max() > 1e-3


def test_definition():
    inner, x, group = Counting(), pictures(), PlanarGroup.named("D4")
    model = canonical(inner, "D4", margin=0.0)
    for picture, answer in zip(x, model(x), strict=True):
        views = [act_on_image(group, group.invert(h), picture[None]) for h in range(8)]
        upright = max(views, key=lambda view: float(harmonic_score(view)))
        torch.testing.assert_close(answer, inner(upright)[0])


def test_control_a_score_that_turns_with_nothing():
    """The same score for all views chooses by the order of the list, unless it is gated."""

    def indifferent(images):
        return images.sum(dim=(1, 2, 3)).round()

    model = canonical(Counting(), "C4", indifferent)
    assert equivariance_error(model, "C4", x := pictures()) < 1e-12
    nothing = torch.zeros(5, dtype=torch.long)
    model.choose = lambda images: Choice(nothing, nothing == 0)  # no gate
    assert equivariance_error(model, "C4", x) > 0.01


def test_where_it_is_unclear_the_orbit_answers():
    inner = Counting()
    x = torch.cat([symmetric(), pictures(count=2)])
    model = canonical(inner, "C4", margin=0.0)
    assert model.choose(x).clear.tolist() == [False, True, True]
    inner.seen = 0
    answer = model(x)
    assert inner.seen == 4 + 2
    torch.testing.assert_close(answer[:1], orbit(inner, "C4")(x[:1]))
    assert torch.equal(model(x[:1]), answer[:1])


def test_a_wider_margin_asks_the_orbit_more_often():
    x = pictures(count=200)
    clear = [
        canonical(Counting(), "D4", margin=m).choose(x).clear.double().mean()
        for m in (0.0, 0.1, 0.9)
    ]
    assert clear[0] > 0.99 > clear[1] > clear[2]


def test_the_template_has_no_symmetry():
    """Else some pictures could never be told from their mirror images."""
    spots = torch.eye(49, dtype=torch.float64).view(49, 1, 7, 7)
    template = harmonic_score(spots).view(1, 1, 7, 7)
    for g in range(1, 8):
        assert (act_on_image("D4", g, template) - template).abs().max() > 1e-3


def test_gradients_reach_the_model():
    model = canonical(Counting(), "C4")
    model(torch.cat([pictures(), symmetric()])).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_what_it_passes_on():
    vit = create_model("vit", image_size=8, width=16, depth=1, heads=2)
    model = canonical(vit, "C4")
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(model.preprocess(images), vit.preprocess(images))
    assert model.exact_size(9) == (8,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: canonical(Counting(), "C1"), "C1 has one view alone"),
        (lambda: canonical(Counting(), margin=1.0), r"margin = 1\.0 must be from 0 to below 1"),
        (lambda: canonical(Counting(), output="map"), 'needs output = "class"'),
        (lambda: canonical(Counting(), combin="max"), "Did you mean 'combine'"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
