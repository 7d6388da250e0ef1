"""Equivariance errors: small for equivariant functions, large for others."""

import math

import pytest
import torch
from torch import nn

from turnwise.groups import (
    PlanarGroup,
    act_on_image,
    assert_equivariant,
    equivariance_error,
    equivariance_errors,
)


def image(size=6):
    return torch.rand(2, 1, size, size, dtype=torch.float64)


def test_an_invariant_function_passes():
    assert equivariance_error(lambda x: x.square().mean((2, 3)), "D4", image()) < 1e-14


def test_an_equivariant_function_passes():
    pool = nn.AvgPool2d(2)
    assert equivariance_error(pool, "D4", image(), act_out=act_on_image) < 1e-14
    assert_equivariant(pool, "D4", image(), act_out=act_on_image)


def test_a_pixel_is_not_invariant():
    assert equivariance_error(lambda x: x[:, :, 0, 0], "C4", image()) > 0.1


def test_the_error_is_the_formula():
    """max |f(g·x) − f(x)| / max |f(x)| for f = the top left pixel, by hand, over D1."""
    x = torch.tensor([[[[3.0, 5.0], [0.0, 0.0]]]], dtype=torch.float64)
    assert equivariance_errors(lambda x: x[..., 0, 0], "D1", x) == [0.0, pytest.approx(2 / 3)]


def test_elements_can_be_chosen():
    """A left-right symmetric function is invariant under the reflection only."""

    def left_right(x):
        return (x + x.flip(-1))[..., 0, 0]

    reflection, rotation = equivariance_errors(left_right, "D4", image(), elements=[4, 1])
    assert reflection < 1e-14 < 0.01 < rotation


def test_nan_is_an_infinite_error():
    assert equivariance_error(lambda x: x.sum((2, 3)) * math.nan, "C4", image()) == math.inf


def test_the_assertion_names_the_worst_element():
    with pytest.raises(AssertionError, match=r"not equivariant under C4: element \d has error"):
        assert_equivariant(lambda x: x[:, :, 0, 0], "C4", image())


def test_the_assertion_rejects_a_constant():
    """A constant is equivariant, so only noise in the input distinguishes it from a model."""
    with pytest.raises(AssertionError, match="does not depend on the input"):
        assert_equivariant(lambda x: torch.ones(2, 3).double(), "C4", image())


def test_the_tolerance_follows_the_precision():
    """An error of 1e-6 is rounding in float32, but not in float64."""

    def slightly_wrong(x):
        return x.mean((2, 3)) + 1e-6 * x[:, :, 0, 0]

    assert_equivariant(slightly_wrong, "C4", image().float())
    with pytest.raises(AssertionError, match="more than 1e-10"):
        assert_equivariant(slightly_wrong, "C4", image())


def test_the_group_may_be_a_value_or_a_name():
    by_name = equivariance_error(lambda x: x[:, :, 0, 0], "p4", x := image())
    assert by_name == equivariance_error(lambda x: x[:, :, 0, 0], PlanarGroup.named("C4"), x)


def test_an_infinite_output_is_an_infinite_error():
    errors = equivariance_errors(lambda x: x.sum((2, 3)) * math.inf, "C4", image())
    assert errors[1:] == [math.inf] * 3


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("fill", [0, 1, None])
def test_dependence_on_the_input_is_measured_for_zeros_and_integers(kind, fill):
    x = torch.randint(100, (1, 1, 4, 4)) if fill is None else torch.full((1, 1, 4, 4), fill)
    x = x.to(kind)
    assert_equivariant(lambda x: x, "D4", x, act_out=act_on_image)
    assert_equivariant(lambda x: x.float().mean((2, 3)), "D4", x)
    with pytest.raises(AssertionError, match="does not depend on the input"):
        assert_equivariant(lambda x: torch.ones(1), "D4", x)


def test_noise_can_be_added_at_the_limits_of_a_type():
    for kind in (torch.uint8, torch.int8, torch.int64):
        info = torch.iinfo(kind)
        for value in (info.min, info.max):
            x = torch.full((1, 1, 2, 2), value, dtype=kind)
            assert_equivariant(lambda x: x, "C4", x, act_out=act_on_image)
        both = torch.tensor([[info.min, info.max]] * 2, dtype=kind)
        assert_equivariant(lambda x: x, "C4", both, act_out=act_on_image)


def test_differences_of_bytes_do_not_overflow():
    """1 − 3 is −2, not 254; and a difference of 256 is not 0."""
    x = torch.tensor([[[[3, 1], [0, 0]]]], dtype=torch.uint8)
    assert equivariance_errors(lambda x: x[..., 0, 0], "D1", x)[1] == pytest.approx(2 / 3)


def test_a_function_may_work_in_place():
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    kept = x.clone()
    assert equivariance_error(lambda y: y.sub_(0.5).square().sum((1, 2, 3)), "D4", x) < 1e-12
    assert torch.equal(x, kept)
