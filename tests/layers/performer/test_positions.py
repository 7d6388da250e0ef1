"""Where tokens are, in a Performer: exactly relative, relative in expectation, or absolute."""

import math

import pytest
import torch

from turnwise.errors import InputError
from turnwise.layers.performer.block import make_kernel
from turnwise.layers.performer.positions import LearnedSinusoids, PositionedAttention, WaveAttention

SIDE = 5
FAR = torch.tensor([100.0, -31.0], dtype=torch.float64)


def places():
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


def code_of(places):
    code = LearnedSinusoids(2, 2.0 * SIDE).double()(places)
    return torch.cat([torch.zeros_like(code[:1]), code])


def rolled(x, shift):
    """The class token stays, the pixels move round."""
    grid = x[:, 1:].unflatten(1, (SIDE, SIDE)).roll(shift, dims=(1, 2)).flatten(1, 2)
    return torch.cat([x[:, :1], grid], dim=1)


def change(a, b):
    return float((a - b).detach().abs().max() / a.detach().abs().max())


@pytest.mark.parametrize("kernel", ["elu", "relu", "favor"])
@pytest.mark.parametrize("frequencies", ["torus", "free"])
def test_law_all_coordinates_may_move(kernel, frequencies):
    layer, x = wave(kernel, frequencies), tokens()
    assert change(layer(x, places()), layer(x, places() + FAR)) < 1e-10


@pytest.mark.parametrize("shift", [(1, 0), (0, 2), (3, -1)])
def test_law_of_circular_shifts(shift):
    layer, x = wave(), tokens()
    assert change(rolled(layer(x, places()), shift), layer(rolled(x, shift), places())) < 1e-10


def test_periods_are_not_rounded_in_sixteen_bits():
    """40 pixels with 8 periods: whole numbers beyond 256, which bfloat16 does not have."""
    layer = WaveAttention(16, 2, 40, make_kernel("elu", 8))
    layer.frequency.fill_(8.0)
    side = torch.arange(40, dtype=torch.float32)
    many, x = torch.cartesian_prod(side, side), torch.randn(1, 1601, 16)
    right = layer(x, many)
    assert change(right, layer.bfloat16()(x.bfloat16(), many).float()) < 0.05


def test_control_free_frequencies_feel_the_border():
    layer, x = wave(frequencies="free"), tokens()
    moved = change(rolled(layer(x, places()), (1, 0)), layer(rolled(x, (1, 0)), places()))
    assert moved > 1e-3


def test_strategy_one_is_relative_with_the_softmax_and_not_with_random_features():
    x, here, there = tokens(), code_of(places()), code_of(places() + FAR)
    exact, random = positioned(None), positioned("favor")
    assert change(exact(x, here), exact(x, there)) < 1e-10
    assert change(random(x, here), random(x, there)) > 1e-4


@pytest.mark.parametrize("make", [wave, lambda: positioned(None)])
def test_witness_pixels_hear_where_the_others_are_and_the_class_token_does_not(make):
    layer, x = make(), tokens()
    code = places() if isinstance(layer, WaveAttention) else code_of(places())
    shuffled = torch.cat([x[:, :1], x[:, 1:][:, torch.randperm(SIDE * SIDE)]], dim=1)
    heard, other = layer(x, code), layer(shuffled, code)
    assert change(heard[:, :1], other[:, :1]) < 1e-10
    assert change(heard[:, 1:].sort(1).values, other[:, 1:].sort(1).values) > 1e-3


def test_definition_of_the_code():
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
    layer, x, code = positioned(None), tokens(), code_of(places())
    query, key, value = (
        to(x).view(2, -1, 2, 8) for to in (layer.to_query, layer.to_key, layer.to_value)
    )
    frequency = (2.0 * SIDE) ** (-torch.arange(2) / 2)
    score = torch.einsum("bthd,bshd->bhts", query, key)
    step = places()[:, None] - places()[None]
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
    turn = torch.zeros(2, 1 + SIDE**2, 1 + SIDE**2, 8, dtype=torch.float64)
    step = places()[None] - places()[:, None]
    turn[:, 1:, 1:] = torch.einsum("hfx,tsx->htsf", layer.frequency, step) * 2 * math.pi / SIDE
    turn[:, 1:, 1:] += layer.lead[:, None, None].detach()
    mixed = (product * turn.cos()).sum(-1) @ value / product.sum(-1).sum(-1, keepdim=True)
    normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-8).sqrt()
    torch.testing.assert_close(
        layer(x, places()), layer.to_output(normed.transpose(1, 2).flatten(2))
    )


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_the_class_token_may_ask_alone(kernel):
    """It has no place; weights that it does not use have a gradient, of 0."""
    for layer, code, unused in (
        (wave(kernel, "free"), places(), {"lead", "frequency"}),
        (positioned(kernel), code_of(places()), {"alpha", "beta"}),
    ):
        x = tokens()
        alone = layer(x, code, True)
        torch.testing.assert_close(alone, layer(x, code)[:, :1])
        alone.square().sum().backward()
        still = {n for n, weight in layer.named_parameters() if weight.grad.abs().max() == 0}
        assert still == unused


def test_torus_frequencies_are_whole_numbers_and_kept_with_the_weights():
    layer = wave()
    assert torch.equal(layer.frequency, layer.frequency.round())
    assert layer.frequency.abs().max() > 0
    assert "frequency" in layer.state_dict()
    assert not any(name == "frequency" for name, _ in layer.named_parameters())


def test_gradients_reach_every_parameter():
    for layer, code in (
        (wave(frequencies="free"), places()),
        (positioned("favor"), code_of(places())),
    ):
        layer(tokens(), code).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_making_features_again_changes_no_gradient(kernel):
    """In training they are not kept; in use they are."""
    layer, x = wave(kernel, "free"), tokens().requires_grad_()
    given = [x, *layer.parameters()]
    grads = {}
    for mode in (True, False):
        layer.train(mode)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            out = layer(x, places())
        grads[mode] = torch.autograd.grad(out.square().sum(), given), sum(kept)
    torch.testing.assert_close(grads[True][0], grads[False][0])
    assert grads[True][1] < 0.7 * grads[False][1]


def test_refusals():
    with pytest.raises(InputError, match="unknown frequencies 'whole'"):
        wave(frequencies="whole")
    with pytest.raises(InputError, match="width = 15 must be a multiple of 2"):
        WaveAttention(15, 2, SIDE, make_kernel("elu", 7))
