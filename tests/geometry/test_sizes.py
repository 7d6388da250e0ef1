"""Exact sizes: the rule against what a strided convolution does to a flipped image."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.geometry.sizes import (
    Stage,
    exact_sizes,
    extended,
    output_size,
    remainder_of,
    require_exact_size,
)


@given(st.integers(4, 24), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2))
def test_exact_means_that_a_symmetric_kernel_commutes_with_the_flip(size, kernel, stride, padding):
    """A symmetric window commutes with the flip if and only if there is no remainder."""
    if size + 2 * padding < kernel or padding >= kernel:
        return
    line = torch.rand(1, 1, size, dtype=torch.float64) + torch.arange(size)
    weight = torch.rand(1, 1, kernel, dtype=torch.float64)
    weight = weight + weight.flip(-1)
    out = F.conv1d(line, weight, stride=stride, padding=padding)
    of_flipped = F.conv1d(line.flip(-1), weight, stride=stride, padding=padding).flip(-1)
    exact = output_size(size, [Stage(kernel, stride, padding)])
    assert torch.allclose(out, of_flipped) == (exact is not None)
    assert exact in (None, out.shape[-1])


def test_nearest_sizes():
    patches = [Stage(4, 4)]
    assert exact_sizes(28, patches) == (28,)
    assert exact_sizes(30, patches) == (28, 32)
    assert exact_sizes(2, patches) == (4,)
    assert exact_sizes(31, [Stage(7, 4, 2), Stage(3, 2, 1)]) == (27, 35)


def test_the_error_names_the_nearest_sizes():
    with pytest.raises(
        InputError, match=r"image_size = 30 cannot be exact in vit .* try 28 or 32\."
    ):
        require_exact_size(30, [Stage(4, 4)], "vit")


def test_remainders():
    assert [remainder_of(n, Stage(7, 4, 2)) for n in (128, 129, 131)] == [1, 2, 0]
    assert extended(Stage(3, 2, 1), 1) == Stage(4, 2, 1)
    with pytest.raises(InputError, match=r"2 pixels with 0 around them are too few .* use 3"):
        remainder_of(2, Stage(3, 1, 0))
