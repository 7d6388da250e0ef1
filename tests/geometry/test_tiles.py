"""Tile plans cover the image, rotate with it, and what is stitched from them rotates, too."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.geometry.tiles import (
    TilePlan,
    blending_window,
    shared_lengths,
    stitch_tiles,
    tile_starts,
)
from turnwise.groups import PlanarGroup, act_on_image

D4 = PlanarGroup.named("D4")


@st.composite
def axes(draw):
    side = draw(st.integers(1, 30))
    return draw(st.integers(1, 200)), side, draw(st.integers(0, side - 1))


@given(axes())
def test_starts_are_symmetric_and_cover_the_axis_with_the_overlap(axis):
    length, side, overlap = axis
    starts = tile_starts(*axis)
    assert list(starts) == sorted(set(starts))
    assert {length - side - start for start in starts} == set(starts)
    assert all(b - a <= side - overlap for a, b in pairwise(starts))
    if length >= side:
        assert starts[0] == 0 and starts[-1] + side == length
    else:
        assert all(start <= 0 and start + side >= length for start in starts)


@given(axes())
def test_few_tiles_are_added_for_symmetry(axis):
    length, side, overlap = axis
    needed = max(1, -(-(length - side) // (side - overlap)) + 1)
    assert len(tile_starts(*axis)) <= needed + 1


def covered(plan):
    """Return how often each pixel is covered."""
    count = torch.zeros(plan.rows, plan.cols, dtype=torch.int64)
    for row, col in plan:
        count[max(0, row) : row + plan.side, max(0, col) : col + plan.side] += 1
    return count


@pytest.mark.parametrize(("rows", "cols"), [(23, 23), (23, 40), (5, 17), (24, 8)])
@pytest.mark.parametrize("g", range(8))
def test_the_plan_of_the_transformed_image_is_the_transformed_plan(rows, cols, g):
    count = covered(TilePlan(rows, cols, 8, 3))
    moved = act_on_image(D4, g, count)
    assert count.min() >= 1
    assert torch.equal(covered(TilePlan(*moved.shape, 8, 3)), moved)


def test_control_a_regular_grid_does_not_rotate_with_the_image():
    count = torch.zeros(23, dtype=torch.int64)
    for start in range(0, 23, 5):
        count[start : start + 8] += 1
    assert not torch.equal(count, count.flip(0))


def test_a_plan_is_a_sequence_of_tiles():
    plan = TilePlan(20, 9, 8, 2)
    assert list(plan) == [plan[i] for i in range(len(plan))]
    assert list(plan) == [(r, c) for r in plan.row_starts for c in plan.col_starts]
    for index in (-1, len(plan)):
        with pytest.raises(IndexError, match=f"the plan has {len(plan)} tiles"):
            plan[index]


@pytest.mark.parametrize("side", [1, 4, 5])
def test_the_blending_window_is_symmetric_and_positive(side):
    window = blending_window(side)
    assert window.min() > 0 and window.max() == 1
    for g in range(8):
        assert torch.equal(act_on_image(D4, g, window), window)


def tile_means(plan, image):
    """Return a vector for each tile that no rotation of the tile changes: its mean and maximum."""
    tiles = [image[..., r : r + plan.side, c : c + plan.side] for r, c in plan]
    return torch.stack([torch.stack([tile.mean(), tile.max()]) for tile in tiles])


@pytest.mark.parametrize("cells", [(7, 5), (20, 33), (40, 66)])
@pytest.mark.parametrize("g", range(8))
def test_the_stitched_map_rotates_with_the_image(cells, g):
    image = torch.rand(20, 33, dtype=torch.float64)
    plan = TilePlan(20, 33, 8, 3)
    values = tile_means(plan, image)
    values[3] = torch.nan  # background
    expected = act_on_image(D4, g, stitch_tiles(plan, values, cells))

    moved = act_on_image(D4, g, image)
    moved_plan = TilePlan(*moved.shape, 8, 3)
    moved_values = tile_means(moved_plan, moved)
    gone = (moved_values - tile_means(plan, image)[3]).abs().amax(dim=1) < 1e-12
    assert gone.sum() == 1
    moved_values[gone] = torch.nan
    found = stitch_tiles(moved_plan, moved_values, tuple(expected.shape[1:]))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_stitching_is_the_area_weighted_mean():
    """By definition: pixel by pixel, on a rectangle."""
    plan = TilePlan(9, 14, 4, 1)
    values = torch.rand(len(plan), 2, dtype=torch.float64)
    total, count = torch.zeros(2, 9, 14).double(), torch.zeros(9, 14).double()
    for (row, col), value in zip(plan, values, strict=True):
        total[:, row : row + 4, col : col + 4] += value[:, None, None]
        count[row : row + 4, col : col + 4] += 1
    torch.testing.assert_close(stitch_tiles(plan, values, (9, 14)), total / count)
    coarse = total.unflatten(1, (3, 3)).unflatten(3, (2, 7)).sum(dim=(2, 4))
    weight = count.unflatten(0, (3, 3)).unflatten(2, (2, 7)).sum(dim=(1, 3))
    torch.testing.assert_close(stitch_tiles(plan, values, (3, 2)), coarse / weight)


def test_cells_without_a_known_tile_are_nan():
    plan = TilePlan(8, 8, 4)
    values = torch.tensor([[1.0], [torch.nan], [3.0], [4.0]])
    found = stitch_tiles(plan, values, (2, 2))[0]
    assert found[0, 0] == 1 and found[0, 1].isnan() and found[1, 0] == 3


def test_lengths_add_up_to_the_cells():
    shared = shared_lengths((0, 4, 8), 4, 12, 5)
    torch.testing.assert_close(shared.sum(dim=1), torch.full((5,), 12 / 5).double())
    assert torch.equal(shared, shared.flip(0, 1))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0, 4), "length = 0"), ((9, 0), "side = 0"), ((9, 4, 4), "overlap = 4 must be from 0 to")],
)
def test_impossible_plans_are_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        tile_starts(*numbers)


def test_values_for_another_plan_are_refused():
    with pytest.raises(InputError, match="4 tiles, but 3 have values"):
        stitch_tiles(TilePlan(8, 8, 4), torch.rand(3, 1), (2, 2))
