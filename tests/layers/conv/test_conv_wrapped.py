"""Convolutions on a torus: the formula, circular shifts, the law of the group, a control."""

import itertools

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import act_on_field, equivariance_error
from turnwise.layers.conv.conv import DepthwiseConv, Wrapped, field_to_maps, maps_to_field


def maps(rows=5, cols=7, channels=2):
    return torch.randn(2, channels, rows, cols, dtype=torch.float64)


def test_definition():
    """Whatever the layer pads by itself is cut off."""
    conv = nn.Conv2d(2, 3, 3, padding=1).double()
    x = maps()
    out = Wrapped(conv, 3)(x)
    for row, col in itertools.product(range(5), range(7)):
        expected = conv.bias.expand(2, 3)
        for a, b in itertools.product(range(3), range(3)):
            seen = x[:, :, (row + a - 1) % 5, (col + b - 1) % 7]
            expected = expected + seen @ conv.weight[:, :, a, b].T
        torch.testing.assert_close(out[:, :, row, col], expected)


def test_law_of_circular_shifts_and_control_without_wrapping():
    conv, x = nn.Conv2d(2, 3, 5, padding=2).double(), maps()
    for layer, exact in ((Wrapped(conv, 5), True), (conv, False)):
        gap = (layer(x.roll((2, 3), (2, 3))) - layer(x).roll((2, 3), (2, 3))).abs().max()
        assert (gap < 1e-12) == exact


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_law_of_the_group_survives(group):
    conv = Wrapped(DepthwiseConv(group, 2, 3), 3).double()
    poses = conv.layer.filters.order

    def of_field(field):
        return maps_to_field(conv(field_to_maps(field)), poses)

    field = torch.randn(1, poses, 5, 5, 2, dtype=torch.float64)
    error = equivariance_error(of_field, group, field, act_in=act_on_field, act_out=act_on_field)
    assert error < 1e-10
    wrong = equivariance_error(of_field, group, field, act_in=act_on_field)
    assert wrong > 0.1


def test_windows_that_go_round_twice_are_refused():
    with pytest.raises(InputError, match=r"windows of 7 pixels go round maps of 2 x 4 .* most 5"):
        Wrapped(nn.Identity(), 7)(torch.zeros(1, 1, 2, 4))


def test_even_windows_are_refused():
    with pytest.raises(InputError, match="kernel = 4 must be odd to keep the size; try 5"):
        Wrapped(nn.Identity(), 4)
