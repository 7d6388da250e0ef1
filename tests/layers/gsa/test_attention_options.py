"""The constructors of lifting and group self-attention: options, plans, copies, maps, errors."""

import copy
import pickle

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on
from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup, assert_equivariant
from turnwise.layers.gsa.attention import AttentionPlan, GroupSelfAttention, LiftingSelfAttention

BOTH = pytest.mark.parametrize("kind", [LiftingSelfAttention, GroupSelfAttention])


def layer_and_input(kind):
    options = {"window": 5, "num_heads": 3, "head_dim": 6, "shape": "disc", "dropout": 0.25}
    layer = kind("D4", 3, 4, **options)
    return layer, torch.randn(1, 3, *([] if kind is LiftingSelfAttention else [8]), 4, 5)


@BOTH
def test_the_constructor_makes_the_layer_of_the_same_plan(kind):
    layer, x = layer_and_input(kind)
    plan = AttentionPlan(
        PlanarGroup(4, reflections=True), Neighbourhood(5, "disc"), 3, dropout=0.25, queries="own"
    )
    other = kind(plan.group, 3, 4, head_dim=6, **plan.options)
    other.load_state_dict(layer.state_dict())
    assert type(other) is kind and other.project.plan == layer.project.plan
    assert str(other) == str(layer)
    torch.manual_seed(1)
    expected = layer.train()(x)
    torch.manual_seed(1)
    assert torch.equal(other.train()(x), expected)


@pytest.mark.parametrize("encoding", ["mlp", "table"])
def test_layers_of_the_constructors_are_equivariant(encoding):
    options = {"num_heads": 1, "encoding": encoding, "window": 0, "image_size": 4}
    lift = LiftingSelfAttention("p4m", 3, 2, **options).double()
    group_layer = GroupSelfAttention("p4m", 2, 3, **options).double()
    model, x = nn.Sequential(lift, group_layer), torch.randn(1, 3, 4, 4, dtype=torch.float64)
    assert_equivariant(model, "D4", x, act_out=action_on("regular"))


@BOTH
def test_copies_compute_the_same(kind):
    layer, x = layer_and_input(kind)
    for other in (copy.deepcopy(layer.eval()), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            (1, 2, 4, 5, 5),
            r"takes features of 3 channels and 4 group elements, .* \(1, 2, 4, 5, 5\)",
        ),
        ((1, 3, 8, 5, 5), r"\(batch, 3, 4, row, col\); got shape \(1, 3, 8, 5, 5\)"),
    ],
)
def test_features_of_another_shape_raise_an_error(shape, words):
    with pytest.raises(InputError, match=words):
        GroupSelfAttention("C4", 3, 4)(torch.zeros(shape))


def test_a_table_over_the_whole_image_needs_the_image_size():
    with pytest.raises(InputError, match="over the whole image needs image_size"):
        GroupSelfAttention("C4", 3, 4, window=0, encoding="table")


@pytest.mark.parametrize(
    ("options", "side"),
    [({"window": 3}, 3), ({"image_size": 4, "window": 0}, 7), ({"window": 0}, 15)],
)
@BOTH
def test_position_maps_rotate_with_the_group_element(kind, options, side):
    for maps in kind("C4", 3, 4, **options).position_maps().values():
        assert maps.shape == (4, side, side)
        assert torch.allclose(maps[1], maps[0].rot90(1), atol=1e-6)
        assert (maps[1] - maps[0]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_heads": 0}, "num_heads = 0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout = 1\.0 must be from 0 to below 1"),
        ({"dropout": -0.1}, r"dropout = -0\.1 must be from 0 to below 1"),
        ({"queries": "one"}, r"unknown queries 'one'\. .*Known: all, own"),
        ({"backend": "tritan"}, r"unknown backend 'tritan'\. Did you mean 'triton'\?"),
        ({"encoding": "mpl"}, r"unknown encoding 'mpl'\. Did you mean 'mlp'\?"),
        ({"group": "C8", "encoding": "table"}, "C8 does not map pixels to pixels; use"),
    ],
)
def test_an_invalid_plan_raises_an_error(options, words):
    with pytest.raises(InputError, match=words):
        LiftingSelfAttention(**{"group": "C4", "in_channels": 3, "out_channels": 4} | options)


def test_an_even_window_raises_an_error():
    with pytest.raises(InputError, match=r"window = 4 must be odd and positive, .*try 3 or 5"):
        LiftingSelfAttention("C4", 1, 4, window=4)


@pytest.mark.parametrize(
    ("layer", "sizes", "words"),
    [
        (LiftingSelfAttention, (3, 4, 1), "head_dim = 1 must be at least 2: rows and columns"),
        (
            GroupSelfAttention,
            (3, 4, 2),
            "head_dim = 2 must be at least 3: rows, columns and orientations",
        ),
        (GroupSelfAttention, (0, 4, 3), "in_channels = 0 must be at least 1"),
        (LiftingSelfAttention, (3, 0, 3), "out_channels = 0 must be at least 1"),
    ],
)
def test_invalid_sizes_raise_errors(layer, sizes, words):
    with pytest.raises(InputError, match=words):
        layer("C4", *sizes[:2], head_dim=sizes[2])


def test_a_crop_must_leave_a_pixel():
    with pytest.raises(InputError, match="3 x 4 pixels has none left 2 pixels from its border"):
        LiftingSelfAttention("C4", 3, 4)(torch.zeros(1, 3, 3, 4), crop=2)
