"""Positions of pixels, and conversions between the coordinate systems."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from turnwise.geometry.grids import offset_to_steps, pixel_centres, to_sampling_grid

size = st.integers(1, 7)


@given(size, size)
def test_centres_are_centred_and_one_pixel_apart(rows, cols):
    centre = pixel_centres(rows, cols)
    assert centre.shape == (rows, cols, 2)
    assert centre.sum((0, 1)).abs().max() == 0
    assert (centre[:, 1:] - centre[:, :-1] == torch.tensor([1.0, 0.0])).all()
    assert (centre[1:] - centre[:-1] == torch.tensor([0.0, -1.0])).all()


def test_top_left_has_negative_x_and_positive_y():
    assert pixel_centres(3, 5)[0, 0].tolist() == [-2.0, 1.0]


def test_steps_lead_to_the_pixel_of_the_offset():
    centre = pixel_centres(5, 5)
    for offset in torch.tensor([[1, 0], [0, 1], [-2, 1]]):
        down, right = offset_to_steps(offset).tolist()
        assert torch.equal(centre[2 + down, 2 + right], offset.double())


@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (3, 5)])
def test_sampling_at_the_centres_returns_the_image(rows, cols):
    image = torch.rand(1, 1, rows, cols, dtype=torch.float64)
    grid = to_sampling_grid(pixel_centres(rows, cols), rows, cols)[None]
    torch.testing.assert_close(F.grid_sample(image, grid, align_corners=False), image)
