"""Neighbourhoods that the group maps to themselves, and who stands at the border."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import (
    disc_neighbourhood,
    is_closed,
    neighbour_index,
    rectangle_of_offsets,
    square_neighbourhood,
)
from turnwise.groups import PlanarGroup


@pytest.mark.parametrize("window", [1, 3, 5, 9])
@pytest.mark.parametrize("shape", [square_neighbourhood, disc_neighbourhood])
def test_closed_under_the_symmetries_of_the_grid(shape, window):
    assert is_closed(PlanarGroup.named("D4"), shape(window))


def test_closed_can_say_no():
    assert not is_closed(PlanarGroup.named("C8"), square_neighbourhood(3))
    assert not is_closed(PlanarGroup.named("C4"), square_neighbourhood(3)[1:])


def test_sizes():
    assert [len(square_neighbourhood(k)) for k in (1, 3, 5)] == [1, 9, 25]
    assert [len(disc_neighbourhood(k)) for k in (1, 3, 5, 7)] == [1, 9, 21, 37]


def test_a_rectangle_runs_row_by_row_from_the_top_left():
    """y falls by 1 from row to row; within a row x grows by 1."""
    by_hand = [[x, y] for y in (1, 0, -1) for x in (-2, -1, 0, 1, 2)]
    assert rectangle_of_offsets(3, 5).tolist() == by_hand
    assert torch.equal(rectangle_of_offsets(5, 5), square_neighbourhood(5))


def test_a_rectangle_is_kept_by_half_turns_and_mirrors_alone():
    assert is_closed(PlanarGroup.named("D2"), rectangle_of_offsets(3, 5))
    assert not is_closed(PlanarGroup.named("C4"), rectangle_of_offsets(3, 5))


@pytest.mark.parametrize("window", [0, 4, -1])
def test_a_window_without_centre_is_refused(window):
    with pytest.raises(InputError, match="must be odd and positive"):
        square_neighbourhood(window)


@pytest.mark.parametrize("offsets", [square_neighbourhood(3), disc_neighbourhood(5)])
def test_neighbours_are_where_the_offsets_point(offsets):
    """On a rectangle: index and mask against the positions, one by one."""
    rows, cols = 3, 5
    centre = pixel_centres(rows, cols).flatten(0, 1)
    index, inside = neighbour_index(rows, cols, offsets)
    for token, o in itertools.product(range(rows * cols), range(len(offsets))):
        here = (centre == centre[token] + offsets[o]).all(-1)
        assert bool(here.any()) == bool(inside[token, o])
        if here.any():
            assert index[token, o] == torch.nonzero(here).item()
