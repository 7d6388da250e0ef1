"""Positions in a Performer: exactly relative, relative in expectation, or absolute."""

import math

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.layers.performer.block import make_kernel
from turnwise.layers.performer.positions import (
    FREQUENCIES,
    REACHES,
    LearnedSinusoids,
    PositionedAttention,
    WaveAttention,
    reaches,
    set_frequency,
)

SIDE = 5
DISTANCE = torch.tensor([100.0, -31.0], dtype=torch.float64)


def positions():
    side = torch.arange(SIDE, dtype=torch.float64)
    return torch.cartesian_prod(side, side)


def tokens():
    return torch.randn(2, 1 + SIDE * SIDE, 16, dtype=torch.float64)


def wave(kernel="elu", frequencies="torus"):
    layer = WaveAttention(16, 2, SIDE, make_kernel(kernel, 8), frequencies=frequencies).double()
    with torch.no_grad():
        layer.lead.normal_()
    return layer


def positioned(kernel):
    made = None if kernel is None else make_kernel(kernel, 8 + 8, "tep-2021")
    return PositionedAttention(16, 2, 4, made).double()


def encoded(positions):
    encoding = LearnedSinusoids(2, 2.0 * SIDE).double()(positions)
    return torch.cat([torch.zeros_like(encoding[:1]), encoding])


def rolled(x, shift):
    """Shift the pixels circularly; the class token stays."""
    grid = x[:, 1:].unflatten(1, (SIDE, SIDE)).roll(shift, dims=(1, 2)).flatten(1, 2)
    return torch.cat([x[:, :1], grid], dim=1)


def change(a, b):
    return float((a - b).detach().abs().max() / a.detach().abs().max())


@pytest.mark.parametrize("kernel", ["elu", "relu", "favor"])
@pytest.mark.parametrize("frequencies", ["torus", "free"])
def test_invariance_to_shifts_of_all_positions(kernel, frequencies):
    layer, x = wave(kernel, frequencies), tokens()
    assert change(layer(x, positions()), layer(x, positions() + DISTANCE)) < 1e-10


@pytest.mark.parametrize("shift", [(1, 0), (0, 2), (3, -1)])
def test_equivariance_to_circular_shifts(shift):
    layer, x = wave(), tokens()
    assert (
        change(rolled(layer(x, positions()), shift), layer(rolled(x, shift), positions())) < 1e-10
    )


def test_periods_are_not_rounded_in_sixteen_bits():
    """8 periods in 40 pixels: their products exceed 256, where bfloat16 has no odd numbers."""
    layer = WaveAttention(16, 2, 40, make_kernel("elu", 8))
    layer.frequency.fill_(8.0)
    side = torch.arange(40, dtype=torch.float32)
    many, x = torch.cartesian_prod(side, side), torch.randn(1, 1601, 16)
    right = layer(x, many)
    assert change(right, layer.bfloat16()(x.bfloat16(), many).float()) < 0.05


def test_control_free_frequencies_are_not_equivariant_to_circular_shifts():
    layer, x = wave(frequencies="free"), tokens()
    shifted = layer(rolled(x, (1, 0)), positions())
    assert change(rolled(layer(x, positions()), (1, 0)), shifted) > 1e-3


def test_strategy_one_is_relative_with_the_softmax_and_not_with_random_features():
    x, here, there = tokens(), encoded(positions()), encoded(positions() + DISTANCE)
    exact, random = positioned(None), positioned("favor")
    assert change(exact(x, here), exact(x, there)) < 1e-10
    assert change(random(x, here), random(x, there)) > 1e-4


@pytest.mark.parametrize("make", [wave, lambda: positioned(None)])
def test_witness_pixels_depend_on_the_positions_of_others_and_the_class_token_does_not(make):
    layer, x = make(), tokens()
    code = positions() if isinstance(layer, WaveAttention) else encoded(positions())
    shuffled = torch.cat([x[:, :1], x[:, 1:][:, torch.randperm(SIDE * SIDE)]], dim=1)
    out, other = layer(x, code), layer(shuffled, code)
    assert change(out[:, :1], other[:, :1]) < 1e-10
    assert change(out[:, 1:].sort(1).values, other[:, 1:].sort(1).values) > 1e-3


def test_definition_of_the_sinusoids():
    code = LearnedSinusoids(3, 64.0).double()
    found = code(torch.tensor([[5.0, 2.0]]))
    for j in range(3):
        omega = 64.0 ** (-j / 3)
        for axis, t in enumerate((5.0, 2.0)):
            expected = torch.tensor([math.sin(omega * t), math.cos(omega * t)])
            torch.testing.assert_close(found[0, 3 * axis + j].float(), expected)
    published = LearnedSinusoids(4, 64.0).frequency.tolist()
    assert published == pytest.approx([1, 0.3536, 0.125, 0.0442], abs=1e-4)


def test_definition_of_strategy_one():
    layer, x, code = positioned(None), tokens(), encoded(positions())
    query, key, value = (
        to(x).view(2, -1, 2, 8) for to in (layer.to_query, layer.to_key, layer.to_value)
    )
    frequency = (2.0 * SIDE) ** (-torch.arange(2) / 2)
    score = torch.einsum("bthd,bshd->bhts", query, key)
    step = positions()[:, None] - positions()[None]
    for axis in range(2):
        for j in range(2):
            phase = frequency[j] * step[..., axis]
            alpha, beta = layer.alpha[:, 2 * axis + j], layer.beta[:, 2 * axis + j]
            extra = alpha[:, None, None] * phase.cos() + beta[:, None, None] * phase.sin()
            score[:, :, 1:, 1:] += extra
    mixed = torch.einsum("bhts,bshd->bthd", (score / 4).softmax(-1), value)
    torch.testing.assert_close(
        layer(x, code), layer.to_output(mixed.flatten(2)), atol=1e-6, rtol=1e-5
    )


def test_definition_of_waves():
    layer, x = wave(), tokens()
    query, key, value = (
        to(x).view(2, -1, 2, 8).transpose(1, 2)
        for to in (layer.to_query, layer.to_key, layer.to_value)
    )
    elu = lambda x: torch.nn.functional.elu(x) + 1  # noqa: E731
    product = elu(query)[:, :, :, None] * elu(key)[:, :, None]
    phase = torch.zeros(2, 1 + SIDE**2, 1 + SIDE**2, 8, dtype=torch.float64)
    step = positions()[None] - positions()[:, None]
    phase[:, 1:, 1:] = torch.einsum("hfx,tsx->htsf", layer.frequency, step) * 2 * math.pi / SIDE
    phase[:, 1:, 1:] += layer.lead[:, None, None].detach()
    mixed = (product * phase.cos()).sum(-1) @ value / product.sum(-1).sum(-1, keepdim=True)
    normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-8).sqrt()
    torch.testing.assert_close(
        layer(x, positions()), layer.to_output(normed.transpose(1, 2).flatten(2))
    )


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_the_output_of_the_class_token_can_be_computed_alone(kernel):
    """It has no position; the gradients of unused parameters are 0, not None."""
    for layer, code, unused in (
        (wave(kernel, "free"), positions(), {"lead", "frequency"}),
        (positioned(kernel), encoded(positions()), {"alpha", "beta"}),
    ):
        x = tokens()
        alone = layer(x, code, True)
        torch.testing.assert_close(alone, layer(x, code)[:, :1])
        alone.square().sum().backward()
        zero = {n for n, weight in layer.named_parameters() if weight.grad.abs().max() == 0}
        assert zero == unused


def test_torus_frequencies_are_whole_numbers_in_the_state_dict():
    layer = wave()
    assert torch.equal(layer.frequency, layer.frequency.round())
    assert layer.frequency.abs().max() > 0
    assert "frequency" in layer.state_dict()
    assert not any(name == "frequency" for name, _ in layer.named_parameters())


def test_gradients_reach_every_parameter():
    for layer, code in (
        (wave(frequencies="free"), positions()),
        (positioned("favor"), encoded(positions())),
    ):
        layer(tokens(), code).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_reaches_fall_by_a_constant_factor():
    found = reaches(5)
    assert found[[0, -1]].tolist() == pytest.approx(REACHES)
    factors = found[1:] / found[:-1]
    torch.testing.assert_close(factors, factors[:1].expand(4))
    assert factors[0] < 1
    assert reaches(1).tolist() == [1.0]


@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_frequencies_are_stored_in_periods_per_image(frequencies):
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


def test_invalid_options_raise_errors():
    with pytest.raises(InputError, match="unknown frequencies 'whole'"):
        wave(frequencies="whole")
    with pytest.raises(InputError, match="width = 15 must be a multiple of 2"):
        WaveAttention(15, 2, SIDE, make_kernel("elu", 7))
