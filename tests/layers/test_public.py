"""What all layers of `turnwise.layers` have in common: groups, docstrings, repr, equivariance."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import turnwise.layers
from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on
from turnwise.groups import (
    PlanarGroup,
    act_on_image,
    act_on_regular,
    assert_equivariant,
    leave_fixed,
)
from turnwise.layers import (
    CircularConv2d,
    FieldHead,
    GroupBatchNorm2d,
    GroupConv2d,
    GroupDepthwiseConv2d,
    GroupLayerNorm,
    GroupLinear,
    GroupPool2d,
    GroupResidualBlock,
    GroupRotaryAttention,
    GroupSelfAttention,
    GroupTransformerBlock,
    GroupUpsample2d,
    InvariantPool,
    LiftingConv2d,
    LiftingSelfAttention,
    MaxOverGroup,
    PatchLift,
    RotoConv2d,
)
from turnwise.layers.heads.fields import act_on_field_of

ACTIONS = {
    "image": act_on_image,
    "regular": action_on("regular"),
    "features": act_on_regular,  # (batch, group, channel), without pixels
    "vector": leave_fixed,
    "axes": partial(act_on_field_of, "axis"),
}


@dataclass(frozen=True)
class Layer:
    """How to make a layer of a group, what it takes and returns, and what its repr shows."""

    make: Callable[..., nn.Module]
    takes: str
    returns: str
    channels: int  # of the input
    widths: str = ""  # as the repr shows them after the group


LAYERS = {
    "CircularConv2d": Layer(
        lambda g: CircularConv2d(GroupConv2d(g, 2, 3, 3), 3), "regular", "regular", 2, "2, 3"
    ),
    "FieldHead": Layer(lambda g: FieldHead(g, 3, "axis"), "regular", "axes", 3, "3"),
    "GroupBatchNorm2d": Layer(lambda g: GroupBatchNorm2d(g, 3), "regular", "regular", 3, "3"),
    "GroupConv2d": Layer(lambda g: GroupConv2d(g, 2, 3, 3), "regular", "regular", 2, "2, 3"),
    "GroupDepthwiseConv2d": Layer(
        lambda g: GroupDepthwiseConv2d(g, 3, 3), "regular", "regular", 3, "3"
    ),
    "GroupLayerNorm": Layer(lambda g: GroupLayerNorm(g, 3), "regular", "regular", 3, "3"),
    "GroupLinear": Layer(lambda g: GroupLinear(g, 2, 3), "features", "features", 2, "2, 3"),
    "GroupPool2d": Layer(lambda g: GroupPool2d(g), "regular", "regular", 3),
    "GroupResidualBlock": Layer(
        lambda g: GroupResidualBlock(g, 2, 3), "regular", "regular", 2, "2, 3"
    ),
    "GroupRotaryAttention": Layer(
        lambda g: GroupRotaryAttention(g, 8, num_heads=2), "regular", "regular", 8, "8"
    ),
    "GroupSelfAttention": Layer(
        lambda g: GroupSelfAttention(g, 2, 3, window=3), "regular", "regular", 2, "2, 3"
    ),
    "GroupTransformerBlock": Layer(
        lambda g: GroupTransformerBlock(g, 8, GroupRotaryAttention(g, 8, num_heads=2)),
        "regular", "regular", 8, "8",
    ),
    "GroupUpsample2d": Layer(lambda g: GroupUpsample2d(g, "bilinear"), "regular", "regular", 3),
    "InvariantPool": Layer(lambda g: InvariantPool(g), "regular", "vector", 3),
    "LiftingConv2d": Layer(lambda g: LiftingConv2d(g, 2, 3, 3), "image", "regular", 2, "2, 3"),
    "LiftingSelfAttention": Layer(
        lambda g: LiftingSelfAttention(g, 2, 3, window=3), "image", "regular", 2, "2, 3"
    ),
    "MaxOverGroup": Layer(lambda g: MaxOverGroup(g), "regular", "image", 3),
    "PatchLift": Layer(lambda g: PatchLift(g, 2, 3, patch=2), "image", "regular", 2, "2, 3"),
    "RotoConv2d": Layer(lambda g: RotoConv2d(g, 2, 3, 3), "image", "image", 2, "2, 3"),
}  # fmt: skip
# the name of the parameter from which these take the group
GROUP_OF = {"CircularConv2d": "layer"}
# these show their parts on further lines
COMPOSITE = {"GroupResidualBlock", "CircularConv2d", "GroupRotaryAttention", "GroupSelfAttention",
             "GroupTransformerBlock", "LiftingSelfAttention", "PatchLift"}  # fmt: skip

every_layer = pytest.mark.parametrize("name", LAYERS)


def randomised(name, group):
    layer = LAYERS[name].make(group)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


def input_of(name, group, rows=6, cols=4):
    channels, order = LAYERS[name].channels, PlanarGroup.named(group).order
    shape = {
        "image": (2, channels, rows, cols),
        "regular": (2, channels, order, rows, cols),
        "features": (2, order, channels),
    }[LAYERS[name].takes]
    return torch.randn(shape, dtype=torch.float64)


def actions_of(name):
    return {"act_in": ACTIONS[LAYERS[name].takes], "act_out": ACTIONS[LAYERS[name].returns]}


def test_every_exported_layer_is_tested():
    exported = {n for n, value in vars(turnwise.layers).items() if inspect.isclass(value)}
    assert exported == set(LAYERS)


@every_layer
def test_groups_are_given_by_name_or_by_value(name):
    parameters = list(inspect.signature(getattr(turnwise.layers, name)).parameters)
    assert parameters[0] == GROUP_OF.get(name, "group")
    make, value = LAYERS[name].make, PlanarGroup.named("D4")
    made = [make("D4"), make("p4m"), make(value)]
    for layer in made:
        assert (layer if name not in GROUP_OF else layer.layer).group == value
        assert repr(layer) == repr(made[0])
        assert {k: v.shape for k, v in layer.state_dict().items()} == {
            k: v.shape for k, v in made[0].state_dict().items()
        }
    with pytest.raises(InputError, match="unknown group 'Q4'"):
        make("Q4")


@every_layer
def test_docstrings_have_a_summary_arguments_shapes_and_an_example(name):
    """`make test` runs the examples."""
    text = inspect.getdoc(getattr(turnwise.layers, name))
    assert text.splitlines()[0].endswith(".")
    assert all(section in text for section in ("\nArgs:\n", "\nShape:\n", "\n>>> "))
    documented = text.split("Args:")[1].split("Shape:")[0]
    for parameter in inspect.signature(getattr(turnwise.layers, name)).parameters:
        assert f" {parameter}:" in documented or f" {parameter}," in documented, parameter


@every_layer
def test_one_line_of_the_repr_shows_the_group_and_the_widths(name):
    lines = repr(LAYERS[name].make("D4")).splitlines()
    assert (len(lines) > 1) == (name in COMPOSITE)
    expected = f"D4, {LAYERS[name].widths}" if LAYERS[name].widths else "D4"
    assert any(expected in line for line in lines)


@every_layer
@pytest.mark.parametrize("group", ["C4", "D4"])
@pytest.mark.parametrize("training", [True, False])
def test_layers_are_equivariant(name, group, training):
    """On a rectangle of pixels."""
    layer = randomised(name, group).train(training)
    assert_equivariant(layer, group, input_of(name, group), **actions_of(name))


@pytest.mark.parametrize("name", [n for n, layer in LAYERS.items() if layer.takes != "image"])
def test_features_of_another_group_or_width_raise_an_error(name):
    layer, x = randomised(name, "D4"), input_of(name, "D4")
    with pytest.raises(InputError, match="8 group elements"):
        layer(input_of(name, "C4"))
    if LAYERS[name].widths:
        channels = LAYERS[name].channels
        wider = torch.cat([x, x], dim=-1 if LAYERS[name].takes == "features" else 1)
        with pytest.raises(InputError, match=f"8 group elements of {channels}|{channels} channels"):
            layer(wider)


@every_layer
def test_control_a_factor_for_each_value_of_the_input_breaks_equivariance(name):
    layer, x = randomised(name, "D4"), input_of(name, "D4", rows=4)
    factor = torch.rand(x.shape[1:])
    with pytest.raises(AssertionError, match="not equivariant under D4"):
        assert_equivariant(lambda x: layer(x * factor), "D4", x, **actions_of(name))


def test_layers_compose_to_a_classifier():
    """From an image to logits that do not change, through every kind of layer."""
    model = nn.Sequential(
        LiftingConv2d("D4", 3, 4, 3), GroupBatchNorm2d("D4", 4), nn.ReLU(), GroupPool2d("D4"),
        GroupSelfAttention("D4", 4, 8, window=3), GroupLayerNorm("D4", 8),
        GroupTransformerBlock("D4", 8, GroupRotaryAttention("D4", 8, 2)),
        GroupConv2d("D4", 8, 4, 3), InvariantPool("D4", over_group="both"), nn.Linear(8, 10),
    ).double()  # fmt: skip
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    assert model(x).shape == (2, 10)
    assert_equivariant(model, "D4", x)
    to_image = nn.Sequential(LiftingConv2d("D4", 3, 4, 3), MaxOverGroup("D4")).double()
    assert_equivariant(to_image, "D4", x, act_out=act_on_image)
