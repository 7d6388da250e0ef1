"""Law, witness, control, definition; as a convolution it is `nn.Linear`, forward and backward."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.layers.performer import token_linear
from turnwise.layers.performer.token_linear import (
    TokenLinear,
    map_rows,
    may_convolve,
    weight_gradient,
)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # with one torch would not ask oneDNN
    yield
    torch.set_num_threads(before)


@pytest.fixture
def convolutions(monkeypatch):
    """The convolutions that were asked for."""
    asked = []
    ours = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *given: asked.append(given) or ours(*given))
    return asked


def pair(width=24, out_width=40):
    """The layer, and torch's with the same weights."""
    torch.manual_seed(0)
    layer, plain = TokenLinear(width, out_width), nn.Linear(width, out_width)
    plain.load_state_dict(layer.state_dict())
    return layer, plain


def tokens(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, requires_grad=True)


def answers(layer, x):
    out = layer(x)
    weights = torch.linspace(0, 1, out.numel()).view(out.shape)
    return out, *torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])


@pytest.mark.parametrize("shape", [(3000, 24), (5, 700, 24), (2, 3, 500, 24)])
def test_convolution_and_product_agree_forward_and_backward(convolutions, shape):
    layer, plain = pair()
    x = tokens(*shape)
    ours, theirs = answers(layer, x), answers(plain, x)
    assert len(convolutions) == 1
    for one, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 1e-2
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


def test_tokens_that_do_not_lie_side_by_side(convolutions):
    layer, plain = pair()
    x = tokens(24, 5, 700).permute(1, 2, 0)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-5)
    assert len(convolutions) == 1


def test_the_gradient_of_the_weights():
    x, gradient = tokens(3000, 24).detach(), torch.randn(3000, 40)
    assert may_convolve(x)
    torch.testing.assert_close(weight_gradient(gradient, x), gradient.mT @ x, rtol=1e-4, atol=1e-3)
    few = weight_gradient(gradient[:3], x[:3])
    torch.testing.assert_close(few, gradient[:3].mT @ x[:3])


def test_law_shuffled_tokens_give_shuffled_answers():
    (layer, _), x, order = pair(), tokens(2, 900, 24), torch.randperm(900)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_witness_and_control():
    (layer, _), x = pair(), tokens(2, 900, 24)
    out = layer(x)
    assert out.std(dim=1).min() > 1e-2, "tokens differ"
    mirrored = layer(x.flip(-1))
    assert (mirrored - out).abs().max() > 1e-2, "channels count"


def test_definition():
    (layer, _), x = pair(), tokens(1500, 24)
    out = layer(x)
    for row in (0, 1, 1499):
        for channel in (0, 39):
            heard = sum(w * value for w, value in zip(layer.weight[channel], x[row], strict=True))
            torch.testing.assert_close(
                out[row, channel], heard + layer.bias[channel], rtol=1e-4, atol=1e-5
            )


def test_the_start_and_the_names_are_those_of_torch():
    torch.manual_seed(5)
    ours = TokenLinear(6, 4).state_dict()
    torch.manual_seed(5)
    theirs = nn.Linear(6, 4).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert repr(TokenLinear(6, 4)) == "TokenLinear(6 -> 4)"


def test_gradients_can_be_differentiated_again(convolutions):
    (layer, plain), x = pair(), tokens(2000, 24)
    penalties = []
    for linear in (layer, plain):
        (slope,) = torch.autograd.grad(linear(x).square().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), linear.weight)[0])
    assert convolutions
    torch.testing.assert_close(*penalties, rtol=1e-3, atol=1e-5 * penalties[1].abs().max().item())


def test_where_it_does_not_pay_it_is_a_product(convolutions, monkeypatch):
    layer, plain = pair()
    few, many = tokens(10, 24), tokens(3000, 24)
    torch.testing.assert_close(layer(few), plain(few))
    double = copy.deepcopy(layer).double()
    torch.testing.assert_close(double(many.double()), copy.deepcopy(plain).double()(many.double()))
    assert layer(tokens(0, 24)).shape == (0, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(many).dtype == torch.bfloat16
    torch.func.grad(lambda x: layer(x).sum())(many)
    monkeypatch.setattr(token_linear, "may_be_lean", lambda x: False)  # as when compiled
    map_rows(many, layer.weight)
    assert not convolutions
    monkeypatch.undo()
    assert may_convolve(many)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not may_convolve(many)
    monkeypatch.undo()
    torch.set_num_threads(1)
    assert not may_convolve(many)


def test_one_very_long_token(convolutions):
    layer, plain = pair(40_000, 3)
    x = tokens(40_000)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-3, atol=1e-4)
    assert convolutions and layer(x).shape == (3,)
