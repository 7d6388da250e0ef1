"""Fitting images to a size keeps their centre and commutes with the symmetries of the square."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.fitting import FITS, REACH, fit_square, fitting_sizes
from turnwise.groups import PlanarGroup, act_on_image

D4 = PlanarGroup.named("D4")
CASES = [("pad", 8, 12), ("crop", 9, 5), ("resize", 9, 12), ("resize", 8, 5)]


@pytest.mark.parametrize(("mode", "before", "after"), CASES)
@pytest.mark.parametrize("g", range(8))
def test_equivariance(mode, before, after, g):
    images = torch.rand(2, 3, before, before, dtype=torch.float64)
    fitted = fit_square(act_on_image(D4, g, images), after, mode)
    expected = act_on_image(D4, g, fit_square(images, after, mode))
    assert fitted.shape == (2, 3, after, after)
    assert (fitted - expected).abs().max() <= 1e-10


def test_definition():
    row = torch.arange(5.0).expand(1, 1, 5, 5)
    assert fit_square(row, 9, "pad")[0, 0, 4].tolist() == [2, 1, 0, 1, 2, 3, 4, 3, 2]
    assert fit_square(row, 3, "crop")[0, 0, 1].tolist() == [1, 2, 3]
    assert fit_square(row, 10, "resize")[0, 0, 0, 3:7].tolist() == pytest.approx(
        [1.25, 1.75, 2.25, 2.75]
    )
    for mode in FITS:
        assert fit_square(row, 5, mode) is row


def test_control_an_odd_difference_moves_the_centre():
    """What `fitting_sizes` never yields is not equivariant: one more pixel on one side only."""
    images = torch.rand(1, 1, 5, 5, dtype=torch.float64)
    padded, rotated = (
        torch.nn.functional.pad(x, (0, 1, 0, 1), mode="reflect")
        for x in (images, act_on_image(D4, 1, images))
    )
    assert (act_on_image(D4, 1, padded) - rotated).abs().max() > 0.1
    with pytest.raises(AssertionError):
        fit_square(images, 6, "pad")


def test_sizes_to_try():
    assert list(fitting_sizes(50, "pad"))[:3] == [52, 54, 56]
    assert list(fitting_sizes(50, "crop"))[:3] == [48, 46, 44]
    assert list(fitting_sizes(50, "resize"))[:4] == [51, 49, 52, 48]
    assert list(fitting_sizes(3, "pad")) == [5, 7]
    assert min(fitting_sizes(300, "crop")) == 300 - REACH
    with pytest.raises(InputError, match="unknown fit 'stretch'"):
        next(fitting_sizes(5, "stretch"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_precision_stays(dtype):
    for mode, size in (("pad", 7), ("resize", 6)):
        assert fit_square(torch.rand(1, 1, 5, 5).to(dtype), size, mode).dtype == dtype
