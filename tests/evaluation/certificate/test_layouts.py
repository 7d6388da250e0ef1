"""A tensor that turns in a known way is read so; one that turns otherwise is not."""

import pytest
import torch

from turnwise.evaluation.certificate.layouts import reading_error, readings, same_element
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, act_on_regular

C4, D4 = PlanarGroup.named("C4"), PlanarGroup.named("D4")
BATCH, SIDE, WIDTH = 2, 5, 3


def field():
    return torch.rand(BATCH, 4, SIDE, SIDE, WIDTH, dtype=torch.float64)


def as_tokens(x):
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)


FORMS = {
    "field of C4": lambda x: x,
    "field, poses inside of C4": lambda x: x.permute(0, 4, 1, 2, 3),
    "maps, poses outer of C4": lambda x: x.permute(0, 1, 4, 2, 3).flatten(1, 2),
    "maps, poses inner of C4": lambda x: x.permute(0, 4, 1, 2, 3).flatten(1, 2),
    "tokens with poses of C4": as_tokens,
    "tokens of poses of C4": lambda x: x.flatten(2, 3),
    "tokens, poses outer of C4": lambda x: as_tokens(x).flatten(2),
    "maps of poses of C4": lambda x: x.permute(0, 1, 4, 2, 3).flatten(0, 1),
    "maps, channels last, poses outer of C4": lambda x: x.permute(0, 2, 3, 1, 4).flatten(3),
    "maps": lambda x: x[:, 0].permute(0, 3, 1, 2),
    "maps, channels last": lambda x: x[:, 0],
    "tokens": lambda x: x[:, 0].flatten(1, 2),
    "tokens, channels first": lambda x: x[:, 0].flatten(1, 2).mT,
    "tokens after one": lambda x: torch.cat([x[:, 0, :1, 0], x[:, 0].flatten(1, 2)], 1),
    "poses of C4": lambda x: x.mean((2, 3)),
    "poses, inner of C4": lambda x: x.mean((2, 3)).mT.flatten(1),
    "fixed": lambda x: x.mean((1, 2, 3)),
}
SCALAR = ("maps", "maps, channels last", "tokens", "tokens, channels first", "tokens after one")


def errors(form, g, move):
    before = field()
    both = torch.cat([before, move(g, before)])
    pictures = 2 * BATCH
    x = FORMS[form](both)
    return {
        reading.name + (f" of {reading.poses}" if reading.poses else ""): reading_error(
            reading, C4, g, x
        )
        for reading in readings(x, pictures, (C4,))
    }


def act(form):
    """Scalar forms take one pose out of the field, which moves as a picture does."""
    if form not in SCALAR:
        return lambda g, x: act_on_field(C4, g, x)
    return lambda g, x: act_on_image(C4, g, x.permute(0, 1, 4, 2, 3)).permute(0, 1, 3, 4, 2)


@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form, g):
    assert errors(form, g, act(form))[form] < 1e-12


@pytest.mark.parametrize("form", [form for form in FORMS if form != "fixed"])
def test_control_what_does_not_turn_is_not_read_as_turning(form):
    """The same tensor, left where it was, or turned the wrong way round."""
    assert errors(form, 1, lambda g, x: x)[form] > 0.1
    assert errors(form, 1, lambda g, x: act(form)(C4.invert(g), x))[form] > 0.1


def test_views_are_read():
    """An orbit puts its views one after the other along the batch."""
    before = torch.rand(BATCH, 4, 6)
    both = torch.cat([before, act_on_regular(C4, 1, before)])
    views = both.transpose(0, 1).flatten(0, 1)
    (reading,) = readings(views, 2 * BATCH, (C4,))
    assert reading.name == "views"
    assert reading_error(reading, C4, 1, views) == 0.0
    assert reading_error(reading, C4, 3, views) > 0.1


@pytest.mark.parametrize("x", [torch.rand(()), torch.rand(7, 3), torch.ones(4, 3, dtype=torch.int)])
def test_what_has_no_picture_has_no_reading(x):
    assert list(readings(x, 4, (C4,))) == []


def test_elements_are_the_same_by_what_they_do():
    assert same_element(PlanarGroup.named("C8"), 6, D4) == 3
    assert same_element(D4, 5, PlanarGroup.named("D8")) == 10
    assert same_element(D4, 4, C4) is None


def test_an_element_that_the_poses_do_not_have_is_an_infinite_error():
    x = torch.rand(4, 4, 5, 5, 3)
    reading = next(r for r in readings(x, 4, (C4,)) if r.name == "field")
    assert reading_error(reading, D4, 4, x) == float("inf")
