"""Steered attention: equivariance, witness, control, definition; circular shifts; cost."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from turnwise.attention.linear import attend_linearly
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import action_on, regular_to_tokens, tokens_to_regular
from turnwise.groups import PlanarGroup, equivariance_error
from turnwise.layers.performer.steered import SteeredAttention

GROUPS = pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4"])
FORMS = {
    "linear": {},
    "softmax": {"attention": "softmax"},
    "free": {"frequencies": "free"},
    "relu, no local branch": {"kernel": "relu", "local": 0},
    "zeros around": {"wrap": False},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def layer_for(name, side=4, **options):
    group = PlanarGroup.named(name)
    return SteeredAttention(group, 4, 2, side, features=16, **options).double()


def features(layer, rows=4, cols=4):
    """Return regular features."""
    return torch.randn(2, 4, layer.group.order, rows, cols, dtype=torch.float64)


def error_of(layer, rows=4, cols=4):
    actions = {"act_in": action_on("regular"), "act_out": action_on("regular")}
    return equivariance_error(layer, layer.group, features(layer, rows, cols), **actions)


@EVERY_FORM
@GROUPS
def test_equivariance(name, form):
    assert error_of(layer_for(name, **FORMS[form])) < 1e-10


def test_equivariance_on_a_rectangle():
    assert error_of(layer_for("D4"), rows=4, cols=3) < 1e-10


@pytest.mark.parametrize("form", ["linear", "softmax", "relu, no local branch"])
def test_equivariance_to_circular_shifts(form):
    layer = layer_for("D4", **FORMS[form])
    x = features(layer)
    for shift in ((1, 0), (0, 2), (3, 1)):
        shifted = layer(x.roll(shift, dims=(3, 4)))
        assert (shifted - layer(x).roll(shift, dims=(3, 4))).abs().max() < 1e-10


@pytest.mark.parametrize("form", ["free", "zeros around"])
def test_control_of_circular_shifts(form):
    layer = layer_for("D4", **FORMS[form])
    x = features(layer)
    assert (layer(x.roll(1, dims=3)) - layer(x).roll(1, dims=3)).abs().max() > 1e-3


@pytest.mark.parametrize("part", ["matrices", "relative"])
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_control_a_wrong_table(part, attention):
    layer = layer_for("C4", attention=attention, frequencies="free", local=0)
    table = getattr(layer, part)
    table.copy_(table.index_select(0, torch.tensor([1, 0, 2, 3])))
    assert error_of(layer) > 1e-3


@EVERY_FORM
def test_witness_the_output_depends_on_other_pixels_and_group_elements(form):
    layer = layer_for("C4", **FORMS[form])
    with torch.no_grad():
        layer.frequency.copy_(torch.randint(-2, 3, layer.frequency.shape))
    x = features(layer)
    out, other = layer(x), x.clone()
    other[:, :, 2, 1, 1] += 1
    change = (layer(other) - out).abs().amax(dim=(0, 1))
    assert change[0, 3, 3] > 1e-6
    assert (out - out.flip(3)).abs().max() > 1e-2


def test_definition():
    """Projections, linear attention by the formula, divided by its mean square, the local sum."""
    layer, (rows, cols) = layer_for("C4"), (3, 4)
    x = features(layer, rows, cols)
    projected = layer.to_query_key_value(regular_to_tokens(x))
    query, key, value = (
        projected[..., a:b].unflatten(-1, (2, -1)) for a, b in ((0, 32), (32, 64), (64, 68))
    )
    orbit = (
        layer.group.matrices().double()
        @ (layer.frequency * 2 * math.pi / 4).unsqueeze(-2).mT[:, :, None]
    )  # (head, base, a, 2, 1)
    phases = torch.einsum(
        "hbax,tx->htba", orbit[..., 0], pixel_centres(rows, cols).flatten(0, 1)
    ).flatten(2)[None]
    mixed = attend_linearly(query, key, value, phases, layer.group.relative(), backend="plain")
    mixed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-8).sqrt()
    near = regular_to_tokens(layer.local(tokens_to_regular(value.flatten(3), rows, cols)))
    expected = tokens_to_regular(layer.to_output(mixed.flatten(3) + near), rows, cols)
    torch.testing.assert_close(layer(x), expected)


def flops(group, side):
    def by_element(group, in_features, out_features):
        return torch.nn.Linear(in_features, out_features)

    layer = SteeredAttention(PlanarGroup.named(group), 4, 2, side, features=16, linear=by_element)
    x = torch.randn(1, 4, layer.group.order, side, side)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    return sum(
        count for op, count in counter.get_flop_counts()["Global"].items() if "conv" not in str(op)
    )


def test_the_cost_is_linear_in_pixels_and_in_group_elements():
    assert flops("C4", 8) == 4 * flops("C4", 4)
    assert flops("D4", 8) == 2 * flops("C4", 8)


def test_gradients_reach_every_parameter():
    layer = layer_for("D4", frequencies="free")
    layer(features(layer)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "sofmax"}, r"unknown attention 'sofmax'\. Did you mean 'softmax'\?"),
        ({"kernel": "elo"}, "unknown kernel 'elo'"),
        ({"frequencies": "whole"}, "unknown frequencies 'whole'"),
        ({"local": 2}, "kernel_size = 2 must be odd"),
    ],
)
def test_invalid_options_raise_errors(options, words):
    with pytest.raises(InputError, match=words):
        layer_for("C4", **options)


def test_sizes_that_do_not_fit_raise_errors():
    with pytest.raises(InputError, match=r"features = 12 must be a multiple of 8 \(pairs for 4"):
        SteeredAttention(PlanarGroup(4), 4, 2, 4, features=12)
    with pytest.raises(InputError, match="takes features of 4 channels and 4 group elements"):
        layer_for("C4")(torch.randn(1, 4, 8, 3, 4).double())
