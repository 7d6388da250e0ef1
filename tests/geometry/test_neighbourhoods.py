"""Sources stand where the offsets point, and offsets are seen from the pose that looks."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources, rotated_offsets
from turnwise.groups import GRID_GROUPS, PlanarGroup, act_on_points

NEIGHBOURHOODS = [Neighbourhood(3), Neighbourhood(5, "disc"), Neighbourhood(0)]


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
        aim = tokens[t] + offsets[sources.offset[t, s]]
        here = (centre.flatten(0, 1) == aim).all(-1)
        assert bool(here.any()) == bool(sources.inside[t, s])
        if here.any():
            assert sources.pixel[t, s] == torch.nonzero(here).item()
            row, col = divmod(int(sources.pixel[t, s]), cols)
            at = divmod(t, cols - 2 * crop)
            steps = sources.steps[sources.offset[t, s]].tolist()
            assert [row, col] == [at[0] + crop + steps[0], at[1] + crop + steps[1]]


@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
def test_no_pixel_is_heard_twice_and_all_that_are_near_are_heard(neighbourhood):
    rows, cols = 3, 5
    centre = pixel_centres(rows, cols).flatten(0, 1)
    offsets = {tuple(offset) for offset in neighbourhood.offsets(rows, cols).tolist()}
    sources = find_sources(neighbourhood, rows, cols)
    for t in range(rows * cols):
        near = [q for q in range(rows * cols) if tuple((centre[q] - centre[t]).tolist()) in offsets]
        assert sorted(sources.pixel[t, sources.inside[t]].tolist()) == near


def test_the_whole_picture_is_heard_from_everywhere():
    sources = find_sources(Neighbourhood(0), 3, 4)
    assert sources.inside.all()
    assert torch.equal(sources.pixel, torch.arange(12).expand(12, 12))


def test_reach():
    assert [Neighbourhood(w).reach(28, 20) for w in (1, 5, 9, 0)] == [0, 2, 4, 27]
    for neighbourhood in NEIGHBOURHOODS:
        assert neighbourhood.offsets(4, 6).abs().max() == neighbourhood.reach(4, 6)


def test_definition_of_what_a_pose_sees():
    """h⁻¹δ, by the action on points; down is the first step, right is the second."""
    group, offsets = PlanarGroup.named("D3"), Neighbourhood(3).offsets(9, 9)
    seen = rotated_offsets(group, offsets)
    for h, o in itertools.product(range(6), range(9)):
        x, y = act_on_points(group, group.invert(h), offsets[o].double())
        torch.testing.assert_close(seen[h, o], torch.stack([-y, x]))


@pytest.mark.parametrize("name", GRID_GROUPS)
def test_the_symmetries_of_the_grid_give_whole_steps(name):
    """Not a digit is lost; finer turns give real numbers."""
    seen = rotated_offsets(PlanarGroup.named(name), Neighbourhood(7).offsets(9, 9))
    assert torch.equal(seen, seen.round())
    eighth = rotated_offsets(PlanarGroup.named("C8"), Neighbourhood(7).offsets(9, 9))
    assert not torch.equal(eighth, eighth.round())


@pytest.mark.parametrize("name", ["C8", "D3", "D4", "D6"])
def test_law_of_what_a_pose_sees(name):
    """When everything turns by g, pose h sees what pose g⁻¹h saw."""
    group, offsets = PlanarGroup.named(name), Neighbourhood(5).offsets(9, 9)
    seen = rotated_offsets(group, offsets)
    for g in group.grid_elements():
        moved = rotated_offsets(group, act_on_points(group, g, offsets.double()).long())
        torch.testing.assert_close(moved, seen[group.product()[group.invert(g)]])


def test_control_the_element_in_place_of_its_inverse():
    group, offsets = PlanarGroup.named("C4"), Neighbourhood(3).offsets(9, 9)
    wrong = rotated_offsets(group, offsets)[group.inverse()]
    moved = rotated_offsets(group, act_on_points(group, 1, offsets.double()).long())
    assert (moved[group.inverse()] - wrong[group.product()[3]]).abs().max() >= 1


@pytest.mark.parametrize(
    ("window", "shape", "words"),
    [
        (4, "square", r"window = 4 must be odd and positive, .* try 3 or 5"),
        (-3, "square", "must be odd and positive"),
        (0, "disc", r"the whole picture \(window = 0\) is no disc; give a window"),
        (3, "disk", r"unknown shape of a neighbourhood 'disk'\. Did you mean 'disc'\?"),
    ],
)
def test_what_is_no_neighbourhood_is_refused(window, shape, words):
    with pytest.raises(InputError, match=words):
        Neighbourhood(window, shape)


def test_a_crop_must_leave_something():
    assert len(find_sources(Neighbourhood(3), 3, 5, crop=1).pixel) == 3
    with pytest.raises(InputError, match="3 x 5 pixels has none left 2 pixels from its border"):
        find_sources(Neighbourhood(3), 3, 5, crop=2)
