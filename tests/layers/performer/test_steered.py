"""Steered attention: law, witness, control, definition; circular shifts; cost."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from turnwise.attention.linear import attend_linearly
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup, act_on_field
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


def on_field(layer, field):
    """The layer as a map from field to field."""
    rows, cols = field.shape[2:4]
    tokens = field.permute(0, 2, 3, 1, 4).flatten(1, 2)
    return layer(tokens, rows, cols).unflatten(1, (rows, cols)).permute(0, 3, 1, 2, 4)


def field_for(layer, rows=4, cols=4):
    return torch.randn(2, layer.group.order, rows, cols, 4, dtype=torch.float64)


def law_error(layer, rows=4, cols=4):
    field = field_for(layer, rows, cols)
    out = on_field(layer, field)
    gaps = []
    for g in range(layer.group.order):
        moved = on_field(layer, act_on_field(layer.group, g, field))
        gaps.append((moved - act_on_field(layer.group, g, out)).abs().max() / out.abs().max())
    return float(torch.stack(gaps).detach().max())


@EVERY_FORM
@GROUPS
def test_law(name, form):
    assert law_error(layer_for(name, **FORMS[form])) < 1e-10


def test_law_on_a_rectangle():
    assert law_error(layer_for("D4"), rows=4, cols=3) < 1e-10


@pytest.mark.parametrize("form", ["linear", "softmax", "relu, no local branch"])
def test_law_of_circular_shifts(form):
    layer = layer_for("D4", **FORMS[form])
    field = field_for(layer)
    for shift in ((1, 0), (0, 2), (3, 1)):
        moved = on_field(layer, field.roll(shift, dims=(2, 3)))
        assert (moved - on_field(layer, field).roll(shift, dims=(2, 3))).abs().max() < 1e-10


@pytest.mark.parametrize("form", ["free", "zeros around"])
def test_control_of_circular_shifts(form):
    layer = layer_for("D4", **FORMS[form])
    field = field_for(layer)
    moved = on_field(layer, field.roll(1, dims=2))
    assert (moved - on_field(layer, field).roll(1, dims=2)).abs().max() > 1e-3


@pytest.mark.parametrize("part", ["matrices", "relative"])
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_control_a_wrong_table_breaks_the_law(part, attention):
    layer = layer_for("C4", attention=attention, frequencies="free", local=0)
    table = getattr(layer, part)
    table.copy_(table.index_select(0, torch.tensor([1, 0, 2, 3])))
    assert law_error(layer) > 1e-3


@EVERY_FORM
def test_witness_poses_and_places_count(form):
    layer = layer_for("C4", **FORMS[form])
    with torch.no_grad():
        layer.frequency.copy_(torch.randint(-2, 3, layer.frequency.shape))
    field = field_for(layer)
    out = on_field(layer, field)
    one = field.clone()
    one[:, 2, 1, 1] += 1
    change = (on_field(layer, one) - out).abs().amax(dim=(0, 4))
    assert change[0, 3, 3] > 1e-6, "another pose, another place"
    assert (out - out.flip(2)).abs().max() > 1e-2


def test_definition():
    """Projections, linear attention by the plain formula, its mean square, the local sum."""
    layer, (rows, cols) = layer_for("C4"), (3, 4)
    tokens = torch.randn(2, 12, 4, 4, dtype=torch.float64)
    projected = layer.to_query_key_value(tokens)
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
    maps = value.flatten(3).permute(0, 2, 3, 1).reshape(2, 16, rows, cols)
    near = layer.local(maps).reshape(2, 4, 4, 12).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(tokens, rows, cols), layer.to_output(mixed.flatten(3) + near))


def flops(group, side):
    def pose_map(group, in_width, out_width):
        return torch.nn.Linear(in_width, out_width)

    layer = SteeredAttention(PlanarGroup.named(group), 4, 2, side, features=16, linear=pose_map)
    tokens = torch.randn(1, side * side, layer.group.order, 4)
    with FlopCounterMode(display=False) as counter:
        layer(tokens, side, side)
    return sum(
        count for op, count in counter.get_flop_counts()["Global"].items() if "conv" not in str(op)
    )


def test_cost_is_linear_in_pixels_and_in_poses():
    assert flops("C4", 8) == 4 * flops("C4", 4)
    assert flops("D4", 8) == 2 * flops("C4", 8)


def test_gradients_reach_every_parameter():
    layer = layer_for("D4", frequencies="free")
    on_field(layer, field_for(layer)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "sofmax"}, r"unknown attention 'sofmax'\. Did you mean 'softmax'\?"),
        ({"kernel": "elo"}, "unknown kernel 'elo'"),
        ({"frequencies": "whole"}, "unknown frequencies 'whole'"),
        ({"local": 2}, "kernel = 2 must be odd"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=words):
        layer_for("C4", **options)


def test_features_hold_whole_orbits():
    with pytest.raises(InputError, match=r"features = 12 must be a multiple of 8 \(pairs for 4"):
        SteeredAttention(PlanarGroup(4), 4, 2, 4, features=12)
    with pytest.raises(InputError, match="3 x 4 tokens in 4 poses expected, got 5 in 4"):
        layer_for("C4")(torch.randn(1, 5, 4, 4).double(), 3, 4)
