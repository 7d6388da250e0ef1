"""Shifts move pixels as said; mirrors are measured where the group does not claim them."""

import pytest
import torch

from turnwise.evaluation.certificate.moves import describe_element, shift_images, unclaimed_moves
from turnwise.groups import PlanarGroup


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(("right", "up"), [(1, 0), (0, 2), (2, 3)])
def test_shifts_by_plain_loops(right, up, around):
    images = torch.rand(2, 1, 5, 7)
    moved = shift_images(images, right=right, up=up, around=around)
    for row in range(5):
        for col in range(7):
            source = (row + up, col - right)
            inside = source[0] < 5 and source[1] >= 0
            value = images[..., source[0] % 5, source[1] % 7]
            expected = value if inside or around else torch.zeros_like(value)
            assert torch.equal(moved[..., row, col], expected)


def test_the_picture_that_is_shifted_stays_as_it_was():
    images = torch.rand(1, 1, 4, 4)
    kept = images.clone()
    shift_images(images, right=1, up=1, around=False)
    assert torch.equal(images, kept)


def test_mirrors_are_measured_only_where_they_are_not_claimed():
    kinds = [move.kind for move in unclaimed_moves(PlanarGroup.named("C4"), 2)]
    assert kinds == ["mirror"] * 2 + ["shift"] * 8
    assert {move.kind for move in unclaimed_moves(PlanarGroup.named("D4"), 1)} == {"shift"}
    assert unclaimed_moves(PlanarGroup.named("D4"), 0) == []


def test_words_say_what_is_done():
    image = torch.rand(1, 1, 4, 4)
    moves = {m.meaning: m.apply for m in unclaimed_moves(PlanarGroup.named("C4"), 1)}
    assert torch.equal(moves["mirror left and right"](image), image.flip(-1))
    assert torch.equal(moves["mirror upside down"](image), image.flip(-2))
    assert torch.equal(moves["shift up by 1, around the border"](image), image.roll(-1, -2))
    assert moves["shift right by 1, zeros enter"](image)[..., 0].abs().max() == 0


@pytest.mark.parametrize(
    ("g", "words"), [(0, "nothing"), (2, "turn by 180°"), (5, "mirror, then turn by 90°")]
)
def test_elements_in_words(g, words):
    assert describe_element(PlanarGroup.named("D4"), g) == words


def test_shifts_beyond_the_side_leave_nothing():
    images = torch.ones(1, 1, 4, 3)
    for right, up in ((5, 0), (0, 6)):
        assert not shift_images(images, right=right, up=up, around=False).any()
