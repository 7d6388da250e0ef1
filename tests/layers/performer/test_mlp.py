"""Law, witness, control, definition; in parts it is what it is at once, forward and backward."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.layers.performer import mlp as perceptron
from turnwise.layers.performer.dropout import Dropout
from turnwise.layers.performer.mlp import MLP


def layer_for(rate=0.0, backend="auto"):
    torch.manual_seed(0)
    return MLP(6, 10, Dropout(rate), backend=backend).double()


def rows(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)


def answers(layer, x):
    """The output, and the gradients of a sum that weighs every entry differently."""
    torch.manual_seed(2)
    out = layer(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])


@pytest.fixture
def parts(monkeypatch):
    """How many parts were taken."""
    taken = []
    ours = perceptron._parts
    monkeypatch.setattr(perceptron, "_parts", lambda *x: taken.append(ours(*x)) or taken[-1])
    return taken


@pytest.mark.parametrize("at_once", [1, 30, 1 << 20])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_parts_and_plain_agree_forward_and_backward(monkeypatch, parts, at_once, rate):
    """The same bits are drawn for both."""
    monkeypatch.setattr(perceptron, "AT_ONCE", at_once)
    x = rows(2, 7)
    in_parts, at_once_ = answers(layer_for(rate), x), answers(layer_for(rate, "plain"), x)
    assert len(parts) == 2, "forward and backward of one of them"
    assert len(parts[0]) == {1: 14, 30: 5, 1 << 20: 1}[at_once]
    for one, other in zip(in_parts, at_once_, strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_law_shuffled_tokens_give_shuffled_answers():
    layer, x, order = layer_for(), rows(2, 7), torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_witness_and_control():
    layer, x = layer_for(), rows(2, 7)
    assert layer(x).std(dim=1).max() > 1e-2, "tokens differ"
    assert (layer(2 * x) - 2 * layer(x)).abs().max() > 1e-2, "it is not linear"
    assert (layer(x[..., [1, 0, 2, 3, 4, 5]]) - layer(x)).abs().max() > 1e-2, "channels count"


def test_definition():
    layer, x = layer_for(), rows(3)
    for token, found in zip(x, layer(x), strict=True):
        hidden = [F.gelu(w @ token + b) for w, b in zip(*layer.spread.parameters(), strict=True)]
        for w, b, channel in zip(*layer.gather.parameters(), found, strict=True):
            heard = sum(a * h for a, h in zip(w, hidden, strict=True))
            torch.testing.assert_close(channel, heard + b)


def test_what_is_wide_is_kept_once_and_in_use_not_at_all():
    saved = {}
    for backend in ("auto", "plain"):
        layer, x, found = layer_for(backend=backend), rows(50), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, found=found: found.append(tensor.shape) or tensor, lambda tensor: tensor
        ):
            layer(x)
            with torch.no_grad():
                layer(x)
        saved[backend] = found.count((50, 10))
    assert saved == {"auto": 1, "plain": 2}


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_can_be_differentiated_again(rate):
    layer = layer_for(rate)

    def answer(x, *weights):
        torch.manual_seed(3)  # the same bits each time
        for name, weight in zip(("spread", "gather"), weights, strict=True):
            part = getattr(layer, name)
            del part.weight
            part.weight = weight  # a plain tensor, in the place of the parameter
        return layer(x)

    weights = [torch.randn(10, 6).double(), torch.randn(6, 10).double()]
    given = (rows(2), *(weight.requires_grad_() for weight in weights))
    assert torch.autograd.gradgradcheck(answer, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_parts_in_sixteen_bits_round_once(monkeypatch, dtype):
    """What is summed over the parts is not rounded between them."""
    layer, x = layer_for().to(dtype), rows(4096).to(dtype).detach()
    errors = []
    for at_once in (1 << 20, 320):  # one part, 128 of them
        monkeypatch.setattr(perceptron, "AT_ONCE", at_once)
        found = torch.autograd.grad(layer(x).sum(), list(layer.parameters())[:3])
        truth = copy.deepcopy(layer).double()
        right = torch.autograd.grad(truth(x.double()).sum(), list(truth.parameters())[:3])
        pairs = zip(found, right, strict=True)
        errors.append(max(((a - b).norm() / b.norm()).item() for a, b in pairs))
    assert errors[1] < 2 * errors[0] < 2e-2


@pytest.mark.parametrize("frozen", [(), ("x",), ("spread",), ("gather",), ("spread", "gather")])
def test_what_is_frozen_costs_nothing(monkeypatch, frozen):
    asked = []
    for name in ("map_rows", "weight_gradient"):
        ours = getattr(perceptron, name)
        monkeypatch.setattr(
            perceptron, name, lambda *x, ours=ours, name=name: asked.append(name) or ours(*x)
        )
    layer, x = layer_for(), rows(5).detach().requires_grad_("x" not in frozen)
    for name in ("spread", "gather"):
        getattr(layer, name).requires_grad_(name not in frozen)
    out = layer(x)
    asked.clear()
    if out.requires_grad:
        out.sum().backward()
    wanted = [part for part in ("spread", "gather") if part not in frozen]
    assert asked.count("weight_gradient") == len(wanted)
    assert asked.count("map_rows") == ("spread" in wanted or "x" not in frozen) + (
        "x" not in frozen
    )
    plain = layer_for(backend="plain")
    y = rows(5).detach().requires_grad_()
    plain(y).sum().backward()
    if "x" not in frozen:
        torch.testing.assert_close(x.grad, y.grad)
    for name in wanted:
        for one, other in zip(
            getattr(layer, name).parameters(), getattr(plain, name).parameters(), strict=True
        ):
            torch.testing.assert_close(one.grad, other.grad)


def test_a_map_without_a_bias_is_called(parts):
    layer, x = layer_for(), rows(3)
    layer.spread.bias = None
    layer(x).sum().backward()
    assert x.grad is not None and not parts


@pytest.mark.parametrize("part", ["spread", "gather", "dropout"])
def test_a_part_of_another_kind_is_called(part, parts):
    layer, called = layer_for(), []

    class Mine(nn.Module):
        def __init__(self, theirs):
            super().__init__()
            self.theirs = theirs

        def forward(self, x):
            called.append(True)
            return self.theirs(x)

    setattr(layer, part, Mine(getattr(layer, part)))
    layer(rows(2))
    assert called and not parts


def test_who_listens_to_a_part_is_told(parts):
    layer, heard = layer_for(), []
    layer.spread.register_forward_hook(lambda *given: heard.append(given))
    layer(rows(2))
    assert len(heard) == 1 and not parts


def test_mixed_precision_and_torch_func_take_no_parts(parts):
    layer, x = layer_for().float(), rows(2).float().detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    torch.func.grad(lambda x: layer(x).sum())(x)
    assert not parts
    layer(x)
    assert parts


def test_no_tokens_and_unknown_names():
    assert layer_for(0.5)(rows(0, 3)).shape == (0, 3, 6)
    with pytest.raises(InputError, match=r"unknown backend 'parts'"):
        layer_for(backend="parts")
