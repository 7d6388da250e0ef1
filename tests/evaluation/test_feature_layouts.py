"""Features that transform in a known way have that layout, and no others do."""

import math

import pytest
import torch

from turnwise.evaluation.feature_layouts import (
    declared_layouts,
    possible_layouts,
    relative_error,
    same_element,
)
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, act_on_regular

C4, D4 = PlanarGroup.named("C4"), PlanarGroup.named("D4")
BATCH, SIDE, WIDTH = 2, 5, 3


def random_field():
    return torch.rand(BATCH, 4, SIDE, SIDE, WIDTH, dtype=torch.float64)


def as_tokens(x):
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)


# how a layout stores a field (batch, group, row, col, channel)
FROM_FIELD = {
    "field of C4": lambda x: x,
    "regular of C4": lambda x: x.permute(0, 4, 1, 2, 3),
    "maps of C4": lambda x: x.permute(0, 1, 4, 2, 3).flatten(1, 2),
    "image, group inside of C4": lambda x: x.permute(0, 4, 1, 2, 3).flatten(1, 2),
    "tokens of C4": as_tokens,
    "tokens, group first of C4": lambda x: x.flatten(2, 3),
    "plain_tokens, group outside of C4": lambda x: as_tokens(x).flatten(2),
    "images of C4 in the batch": lambda x: x.permute(0, 1, 4, 2, 3).flatten(0, 1),
    "image, channels last, group outside of C4": lambda x: x.permute(0, 2, 3, 1, 4).flatten(3),
    "image": lambda x: x[:, 0].permute(0, 3, 1, 2),
    "image, channels last": lambda x: x[:, 0],
    "plain_tokens": lambda x: x[:, 0].flatten(1, 2),
    "plain_tokens, channels first": lambda x: x[:, 0].flatten(1, 2).mT,
    "plain_tokens after one": lambda x: torch.cat([x[:, 0, :1, 0], x[:, 0].flatten(1, 2)], 1),
    "vector of C4": lambda x: x.mean((2, 3)),
    "vector, group inside of C4": lambda x: x.mean((2, 3)).mT.flatten(1),
    "invariant": lambda x: x.mean((1, 2, 3)),
}  # fmt: skip
WITHOUT_GROUP = {
    "image", "image, channels last", "plain_tokens", "plain_tokens, channels first",
    "plain_tokens after one",
}  # fmt: skip


def errors_of(name, g, transform):
    """Return the error of every possible layout, for features that `transform` transformed."""
    before = random_field()
    features = FROM_FIELD[name](torch.cat([before, transform(g, before)]))
    layouts = possible_layouts(features, 2 * BATCH, (C4,))
    return {layout.name: layout.error(C4, g, features) for layout in layouts}


def action(name):
    """Return the action on a field; without a group axis, each element transforms as an image."""
    if name not in WITHOUT_GROUP:
        return lambda g, x: act_on_field(C4, g, x)
    return lambda g, x: act_on_image(C4, g, x.permute(0, 1, 4, 2, 3)).permute(0, 1, 3, 4, 2)


@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("name", FROM_FIELD)
def test_a_layout_fits_features_that_transform_so(name, g):
    assert errors_of(name, g, action(name))[name] < 1e-12


@pytest.mark.parametrize("name", [name for name in FROM_FIELD if name != "invariant"])
def test_control_a_layout_does_not_fit_features_that_transform_otherwise(name):
    """The same features left as they were, or rotated the wrong way."""
    assert errors_of(name, 1, lambda g, x: x)[name] > 0.1
    assert errors_of(name, 1, lambda g, x: action(name)(C4.invert(g), x))[name] > 0.1


def test_the_views_of_an_orbit_lie_one_after_the_other_along_the_batch():
    before = torch.rand(BATCH, 4, 6)
    both = torch.cat([before, act_on_regular(C4, 1, before)])
    views = both.transpose(0, 1).flatten(0, 1)
    (layout,) = possible_layouts(views, 2 * BATCH, (C4,))
    assert layout.name == "views of C4"
    assert layout.error(C4, 1, views) == 0.0
    assert layout.error(C4, 3, views) > 0.1


@pytest.mark.parametrize("x", [torch.rand(()), torch.rand(7, 3), torch.ones(4, 3, dtype=torch.int)])
def test_a_tensor_without_an_image_in_each_row_has_no_layout(x):
    assert list(possible_layouts(x, 4, (C4,))) == []


DECLARED = {
    "field": "field of C4", "regular": "regular of C4", "tokens": "tokens of C4",
    "maps": "maps of C4", "image": "image", "plain_tokens": "plain_tokens",
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_layout_is_the_only_one(name):
    before, full = random_field(), DECLARED[name]
    features = FROM_FIELD[full](torch.cat([before, action(full)(1, before)]))
    (layout,) = declared_layouts(features, 2 * BATCH, (C4,), name, None)
    assert layout.name == full
    assert layout.error(C4, 1, features) < 1e-12
    assert layout.error(C4, 3, features) > 0.1


def test_declared_tokens_may_form_a_rectangle():
    tokens = torch.rand(BATCH, 6, 4, WIDTH)
    (layout,) = declared_layouts(tokens, BATCH, (C4,), "tokens", (2, 3))
    assert layout.to_field(tokens).shape == (BATCH, 4, 2, 3, WIDTH)


def test_a_declaration_that_does_not_fit_gives_no_layout():
    assert list(declared_layouts(torch.rand(4, 3, 5, 5, 2), 4, (C4, D4), "field", None)) == []
    assert list(declared_layouts(torch.rand(7, 4, 5, 5, 2), 4, (C4,), "field", None)) == []


def test_elements_are_the_same_if_they_act_on_the_plane_alike():
    assert same_element(PlanarGroup.named("C8"), 6, D4) == 3
    assert same_element(D4, 5, PlanarGroup.named("D8")) == 10
    assert same_element(D4, 4, C4) is None


def test_an_element_that_the_group_axis_does_not_have_has_an_infinite_error():
    x = torch.rand(4, 4, 5, 5, 3)
    layout = next(each for each in possible_layouts(x, 4, (C4,)) if each.name == "field of C4")
    assert layout.error(D4, 4, x) == math.inf


def test_the_error_is_relative_and_infinite_without_a_number():
    expected = torch.tensor([2.0, -4.0])
    assert relative_error(expected, torch.tensor([2.0, -3.0])) == 0.25
    assert relative_error(expected, torch.tensor([math.nan, 0.0])) == math.inf
