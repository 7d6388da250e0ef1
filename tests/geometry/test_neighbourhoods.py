"""Neighbourhoods are closed under the group, and sources are where the offsets point."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import (
    Neighbourhood,
    disc_neighbourhood,
    find_sources,
    neighbour_index,
    rectangle_of_offsets,
    rotated_offsets,
    square_neighbourhood,
)
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_points

NEIGHBOURHOODS = [Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)]


def is_closed(group, offsets):
    """Return whether every element of the group maps the offsets to themselves."""
    expected = {tuple(offset) for offset in offsets.tolist()}
    transformed = [act_on_points(group, g, offsets.double()) for g in range(group.order)]
    return all({tuple(point) for point in points.tolist()} == expected for points in transformed)


@pytest.mark.parametrize("window", [1, 3, 5, 9])
@pytest.mark.parametrize("shape", [square_neighbourhood, disc_neighbourhood])
def test_windows_are_closed_under_the_symmetries_of_the_grid(shape, window):
    assert is_closed(PlanarGroup.named("D4"), shape(window))


def test_control_a_neighbourhood_that_is_not_closed_is_detected():
    assert not is_closed(PlanarGroup.named("C8"), square_neighbourhood(3))
    assert not is_closed(PlanarGroup.named("C4"), square_neighbourhood(3)[1:])


def test_window_sizes():
    assert [len(square_neighbourhood(k)) for k in (1, 3, 5)] == [1, 9, 25]
    assert [len(disc_neighbourhood(k)) for k in (1, 3, 5, 7)] == [1, 9, 21, 37]


def test_a_rectangle_is_ordered_row_by_row_from_the_top_left():
    """y decreases by 1 from row to row; within a row x increases by 1."""
    by_hand = [[x, y] for y in (1, 0, -1) for x in (-2, -1, 0, 1, 2)]
    assert rectangle_of_offsets(3, 5).tolist() == by_hand
    assert torch.equal(rectangle_of_offsets(5, 5), square_neighbourhood(5))


def test_a_rectangle_is_closed_only_under_rotation_by_180_degrees_and_reflections():
    assert is_closed(PlanarGroup.named("D2"), rectangle_of_offsets(3, 5))
    assert not is_closed(PlanarGroup.named("C4"), rectangle_of_offsets(3, 5))


@pytest.mark.parametrize("window", [0, 4, -1])
def test_a_window_without_centre_is_rejected(window):
    with pytest.raises(InputError, match="must be odd and positive"):
        square_neighbourhood(window)


@pytest.mark.parametrize("offsets", [square_neighbourhood(3), disc_neighbourhood(5)])
def test_neighbours_are_where_the_offsets_point(offsets):
    """On a rectangle: index and mask against the positions, one by one."""
    rows, cols = 3, 5
    centre = pixel_centres(rows, cols).flatten(0, 1)
    index, inside = neighbour_index(rows, cols, offsets)
    for token, o in itertools.product(range(rows * cols), range(len(offsets))):
        match = (centre == centre[token] + offsets[o]).all(-1)
        assert bool(match.any()) == bool(inside[token, o])
        if match.any():
            assert index[token, o] == torch.nonzero(match).item()


@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
@pytest.mark.parametrize("crop", [0, 1])
def test_sources_are_where_the_offsets_point(neighbourhood, crop):
    """On a rectangle: every token and source against the positions, one by one."""
    rows, cols = 3, 5
    centre = pixel_centres(rows, cols)
    tokens = centre[crop : rows - crop, crop : cols - crop].flatten(0, 1)
    offsets = neighbourhood.offsets(rows, cols)
    sources = find_sources(neighbourhood, rows, cols, crop)
    assert len(sources.pixel) == len(tokens)
    for t, s in itertools.product(range(len(tokens)), range(sources.pixel.shape[1])):
        target = tokens[t] + offsets[sources.offset[t, s]]
        match = (centre.flatten(0, 1) == target).all(-1)
        assert bool(match.any()) == bool(sources.inside[t, s])
        if match.any():
            assert sources.pixel[t, s] == torch.nonzero(match).item()
            row, col = divmod(int(sources.pixel[t, s]), cols)
            token_row, token_col = divmod(t, cols - 2 * crop)
            down, right = sources.steps[sources.offset[t, s]].tolist()
            assert [row, col] == [token_row + crop + down, token_col + crop + right]


@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
def test_every_near_pixel_is_a_source_once(neighbourhood):
    rows, cols = 3, 5
    centre = pixel_centres(rows, cols).flatten(0, 1)
    offsets = {tuple(offset) for offset in neighbourhood.offsets(rows, cols).tolist()}
    sources = find_sources(neighbourhood, rows, cols)
    for t in range(rows * cols):
        near = [q for q in range(rows * cols) if tuple((centre[q] - centre[t]).tolist()) in offsets]
        assert sorted(sources.pixel[t, sources.inside[t]].tolist()) == near


def test_every_pixel_of_the_image_is_a_source_without_a_window():
    sources = find_sources(Neighbourhood(0), 3, 4)
    assert sources.inside.all()
    assert torch.equal(sources.pixel, torch.arange(12).expand(12, 12))


def test_reach():
    assert [Neighbourhood(w).reach(28, 20) for w in (1, 5, 9, 0)] == [0, 2, 4, 27]
    for neighbourhood in NEIGHBOURHOODS:
        assert neighbourhood.offsets(4, 6).abs().max() == neighbourhood.reach(4, 6)


def test_rotated_offsets_are_the_inverse_action_on_points():
    """h⁻¹δ; down is the first step, right is the second."""
    group, offsets = PlanarGroup.named("D3"), Neighbourhood(3).offsets(9, 9)
    rotated = rotated_offsets(group, offsets)
    for h, o in itertools.product(range(6), range(9)):
        x, y = act_on_points(group, group.invert(h), offsets[o].double())
        torch.testing.assert_close(rotated[h, o], torch.stack([-y, x]))


@pytest.mark.parametrize("name", GRID_GROUPS)
def test_the_symmetries_of_the_grid_give_integer_steps_exactly(name):
    rotated = rotated_offsets(PlanarGroup.named(name), Neighbourhood(7).offsets(9, 9))
    assert torch.equal(rotated, rotated.round())
    eighth = rotated_offsets(PlanarGroup.named("C8"), Neighbourhood(7).offsets(9, 9))
    assert not torch.equal(eighth, eighth.round())


@pytest.mark.parametrize("name", ["C8", "D3", "D4", "D6"])
def test_rotated_offsets_are_equivariant(name):
    """If the offsets are transformed by g, element h has the offsets that g⁻¹h had."""
    group, offsets = PlanarGroup.named(name), Neighbourhood(5).offsets(9, 9)
    rotated = rotated_offsets(group, offsets)
    for g in group.grid_elements():
        transformed = act_on_points(group, g, offsets.double()).long()
        expected = rotated[group.product()[group.invert(g)]]
        torch.testing.assert_close(rotated_offsets(group, transformed), expected)


def test_control_the_element_instead_of_its_inverse_is_not_equivariant():
    group, offsets = PlanarGroup.named("C4"), Neighbourhood(3).offsets(9, 9)
    wrong = rotated_offsets(group, offsets)[group.inverse()]
    transformed = rotated_offsets(group, act_on_points(group, 1, offsets.double()).long())
    assert (transformed[group.inverse()] - wrong[group.product()[3]]).abs().max() >= 1


@pytest.mark.parametrize(
    ("window", "shape", "message"),
    [
        (4, "square", r"window = 4 must be odd and positive, .* try 3 or 5"),
        (-3, "square", "must be odd and positive"),
        (0, "disc", r"the whole image \(window = 0\) is not a disc; give a window"),
        (3, "disk", r"unknown shape of a neighbourhood 'disk'\. Did you mean 'disc'\?"),
    ],
)
def test_an_invalid_neighbourhood_is_rejected(window, shape, message):
    with pytest.raises(InputError, match=message):
        Neighbourhood(window, shape)


def test_a_crop_must_leave_tokens():
    assert len(find_sources(Neighbourhood(3), 3, 5, crop=1).pixel) == 3
    with pytest.raises(InputError, match="3 x 5 pixels has none left 2 pixels from its border"):
        find_sources(Neighbourhood(3), 3, 5, crop=2)
