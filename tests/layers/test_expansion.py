"""Expanded weights are cached in inference, and the cache never shows: not in any output."""

import copy
import pickle

import pytest
import torch
from torch import nn

from turnwise.layers import GroupConv2d, GroupLinear, LiftingConv2d, RotoConv2d
from turnwise.layers.expansion import CachedExpansion

LAYERS = {
    "lifting": (lambda: LiftingConv2d("D4", 2, 3, 3), (2, 2, 6, 6)),
    "group": (lambda: GroupConv2d("C4", 2, 3, 3), (2, 2, 4, 6, 6)),
    "continuous": (lambda: GroupConv2d("C8", 2, 3, 3), (2, 2, 8, 6, 6)),
    "linear": (lambda: GroupLinear("D4", 2, 3), (2, 5, 8, 2)),
    "irreps": (lambda: GroupLinear("D4", 2, 3, basis="irreps"), (2, 5, 8, 2)),
    "roto": (lambda: RotoConv2d("D4", 2, 3, 3), (2, 2, 6, 6)),
    "bank": (lambda: RotoConv2d("D4", 2, 3, 3, algorithm="bank"), (2, 2, 6, 6)),
}


@pytest.fixture(params=LAYERS)
def layer_and_input(request):
    make, shape = LAYERS[request.param]
    return make().eval(), torch.randn(shape)


def caches(layer):
    return [part for part in vars(layer).values() if isinstance(part, CachedExpansion)]


def is_cached(layer):
    return any(cache._cached is not None for cache in caches(layer))


def expected(layer, x):
    """Return the output with gradients, which uses no cache."""
    return layer(x).detach()


CHANGES = {
    "in place": lambda layer: nn.init.normal_(layer.weight),
    "through .data": lambda layer: layer.weight.data.mul_(2),
    "one value through numpy": lambda layer: layer.weight.detach().numpy().ravel().put(0, 7.0),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: x + 1 for name, x in layer.state_dict().items()}
    ),
    "double": lambda layer: layer.double(),
    "new parameter": lambda layer: setattr(
        layer, "weight", nn.Parameter(torch.randn_like(layer.weight))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weight_is_noticed(layer_and_input, change):
    layer, x = layer_and_input
    with torch.no_grad():
        before = layer(x)
        assert is_cached(layer)
        assert torch.equal(layer(x), before)
    assert torch.equal(before, expected(layer, x))
    CHANGES[change](layer)
    x = x.to(layer.weight.dtype)
    with torch.no_grad():
        after = layer(x)
    assert torch.equal(after, expected(layer, x))
    assert change == "double" or not torch.equal(after, before)


def test_an_optimiser_step_is_noticed(layer_and_input):
    layer, x = layer_and_input
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1)
    with torch.no_grad():
        before = layer(x)
    layer(x).square().sum().backward()
    optimiser.step()
    with torch.no_grad():
        assert not torch.equal(layer(x), before)
        assert torch.equal(layer(x), expected(layer, x))


def test_the_weight_is_expanded_once():
    calls, weight, cache = [], torch.randn(3), CachedExpansion()

    def expand(weight):
        calls.append(weight)
        return weight * 2

    for _ in range(3):
        assert torch.equal(cache(weight, expand), weight * 2)
    assert len(calls) == 1
    weight.requires_grad_()
    assert cache(weight, expand).requires_grad  # training needs the graph of every call
    assert len(calls) == 2


def test_copies_pickles_and_saved_weights_hold_no_cache(layer_and_input):
    layer, x = layer_and_input
    names = set(layer.state_dict())
    with torch.no_grad():
        layer(x)
    assert set(layer.state_dict()) == names
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert caches(other)
        assert not is_cached(other)


def test_frozen_layer_after_inference_mode_passes_gradients_to_its_input(layer_and_input):
    layer, x = layer_and_input
    with torch.inference_mode():
        layer(x)
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad.abs().max() > 0


def test_autocast_does_not_leave_rounded_filters(layer_and_input):
    layer, x = layer_and_input
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        assert torch.equal(layer(x), expected(layer, x))


@pytest.mark.parametrize("name", ["group", "linear"])
def test_exported_graphs_hold_the_parameter_not_the_cache(name):
    make, shape = LAYERS[name]
    layer, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        layer(x)
        program = torch.export.export(layer, (x,))
    assert "weight" in program.state_dict
    weight = next(n for n in program.graph.nodes if n.name == "p_weight")
    assert weight.users
    assert not is_cached_constant(program, layer)


def is_cached_constant(program, layer):
    expanded = [cache._cached[1] for cache in caches(layer) if cache._cached]
    return any(
        isinstance(x, torch.Tensor) and x.shape == y.shape and torch.equal(x, y)
        for x in program.constants.values()
        for y in expanded
    )
