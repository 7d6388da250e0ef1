"""Frequencies: from sharp to wide, whole numbers of periods or learned."""

import math

import pytest
import torch
from torch import nn

from turnwise.layers.performer.positions import FREQUENCIES, REACHES, reaches, set_frequency


def test_reaches_fall_by_a_constant_factor():
    found = reaches(5)
    assert found[[0, -1]].tolist() == pytest.approx(REACHES)
    factors = found[1:] / found[:-1]
    torch.testing.assert_close(factors, factors[:1].expand(4))
    assert factors[0] < 1
    assert reaches(1).tolist() == [1.0]


@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_periods_across_the_picture(frequencies):
    layer, radians = nn.Module(), torch.tensor([[2 * math.pi / 8, 0.1], [-1.0, 3.0]])
    set_frequency(layer, radians, 16, frequencies)
    expected = radians * 16 / (2 * math.pi)
    if frequencies == "torus":
        assert not list(layer.parameters())
        assert layer.frequency.tolist() == [[2.0, 0.0], [-3.0, 8.0]] == expected.round().tolist()
    else:
        assert layer.frequency.requires_grad
        torch.testing.assert_close(layer.frequency.detach(), expected)
    assert "frequency" in layer.state_dict()
