"""Every parameter has one counterpart; layers filled by them compute what the originals did."""

import pytest
import torch
from torch import nn

from turnwise.geometry.neighbourhoods import Neighbourhood
from turnwise.groups import PlanarGroup
from turnwise.layers.gsa.attention import AttentionPlan, GroupSelfAttention, LiftingSelfAttention
from turnwise.layers.gsa.published import their_numbers
from turnwise.models import create_model
from turnwise.models.gsa import VARIANTS
from turnwise.models.importing.checkpoints import Counterpart, fill_strictly
from turnwise.models.importing.gsa import (
    ORIGINS,
    attention_counterparts,
    counterparts_of,
    heads_first,
    is_buffer,
)

HEADS = 3
SAME, OTHER = 2e-6, 2e-5  # the originals ran in float32; the smallest wrong change is 3e-5


@pytest.mark.parametrize("axis", [0, 1])
def test_definition_of_the_order_of_channels(axis):
    """Theirs is c·heads + head, ours head·channels + c."""
    heads, channels = 3, 4
    theirs = torch.arange(12.0).expand(12, 12)
    theirs = theirs.T if axis == 0 else theirs
    ours = heads_first(theirs, heads, axis)
    for head in range(heads):
        for c in range(channels):
            found = ours.select(axis, head * channels + c)
            assert torch.equal(found, theirs.select(axis, c * heads + head))


def test_a_bias_is_ordered_as_the_rows_of_its_weight():
    weight = torch.randn(12, 5)
    assert torch.equal(heads_first(weight[:, 0], 3, 0), heads_first(weight, 3, 0)[:, 0])


@pytest.mark.parametrize("group", ["z2", "p4", "p8", "mz2", "p4m"])
def test_buffers_are_distinguished_from_parameters(keys, group):
    case = keys[f"net_rotmnist_{group}_p5"]
    assert all(is_buffer(key) for key, _ in case["buffers"])
    assert not any(is_buffer(key) for key, _ in case["parameters"])
    assert is_buffer("transformer.0.attention.2.group._elements")


def test_all_keys_of_the_rotmnist_network_are_known(keys):
    model = create_model("gsa_net")
    pairs = counterparts_of(model, (0, 1, 3, 4, 5), 6)
    case = dict(keys["net_rotmnist_p4_p5"]["parameters"])
    assert pairs.keys() == dict(model.named_parameters()).keys()
    assert {pair.key for pair in pairs.values()} == case.keys()
    assert len(pairs) == len(case)


@pytest.mark.parametrize(
    ("data", "blocks", "head", "wider", "norms"),
    [
        ("cifar10", (0, 3, 8, 11, 16, 19), 22, {8}, {1, 4, 9, 12, 17, 20}),
        ("pcam", (1, 5, 8, 12), 16, {1, 5, 12}, {2, 6, 9, 13}),
    ],
)
def test_wider_blocks_have_shortcuts_and_norms_follow_blocks(data, blocks, head, wider, norms):
    model = create_model("gsa_net", data=data, in_chans=3, image_size=96)
    pairs = counterparts_of(model, blocks, head)
    theirs = {pair.key for pair in pairs.values()}
    assert pairs.keys() == dict(model.named_parameters()).keys()
    assert len(theirs) == len(pairs)
    shortcuts = {f"transformer.{n}.shortcut.0.{what}" for n in wider for what in ("weight", "bias")}
    assert {key for key in theirs if "shortcut" in key} == shortcuts
    between = {f"transformer.{n}.layer_norm.weight" for n in norms}
    assert between <= theirs
    assert f"transformer.{head}.weight" in theirs


def filled(layer, weights):
    """Return a layer in float64 with the weights of a golden case."""
    pairs = attention_counterparts("layer", "layer", HEADS)
    if hasattr(layer, "pose"):
        pairs["layer.pose"] = Counterpart("layer.group_embedding.weight")
    named = {f"layer.{key}": values for key, values in weights.items()}
    fill_strictly(nn.ModuleDict({"layer": layer}), pairs, named, is_buffer)
    return layer.double()


@pytest.fixture(params=["p4", "p8", "mz2", "p4m"])
def group(request):
    return PlanarGroup.named(request.param)


@pytest.fixture(params=ORIGINS)
def origin(request):
    return request.param


@pytest.fixture
def layers(group, origin, golden_weights):
    """Return a lifting layer and a group layer with golden weights."""
    convention = VARIANTS[ORIGINS[origin].variant]
    plan = AttentionPlan(group, Neighbourhood(5), heads=HEADS, convention=convention)
    name = group.aliases[0]
    options = {"head_dim": 6, **plan.options}
    lift = filled(
        LiftingSelfAttention(group, 3, 8, **options), golden_weights(f"lift_local_{name}")
    )
    mix = filled(GroupSelfAttention(group, 8, 8, **options), golden_weights(f"group_local_{name}"))
    return lift, mix


@pytest.fixture
def outputs(group, golden):
    """Return a function: image, lifted and mixed features of a program, in our order."""

    def find(origin):
        numbers = their_numbers(group, ORIGINS[origin].matrices(group))
        name = group.aliases[0]
        fields = [golden(origin, f"{kind}_local_{name}.output") for kind in ("lift", "group")]
        image = golden(origin, f"lift_local_{name}.input").double()
        return image, *(f.double()[:, :, numbers] for f in fields)  # regular features

    return find


def distance(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def test_layers_compute_what_the_originals_did(layers, outputs, origin):
    image, lifted, mixed = outputs(origin)
    lift, mix = layers
    assert distance(lift(image), lifted) < SAME
    assert distance(mix(lifted), mixed) < SAME


@torch.no_grad()
def test_negative_control_the_other_program_differs(layers, outputs, origin):
    _, mix = layers
    (other,) = set(ORIGINS) - {origin}
    _, lifted, mixed = outputs(other)
    assert distance(mix(lifted), mixed) > OTHER


@torch.no_grad()
@pytest.mark.parametrize("change", ["group elements", "queries and keys", "heads"])
def test_negative_control_weights_in_another_order_change_the_output(
    layers, outputs, origin, change
):
    _, mix = layers
    _, lifted, mixed = outputs(origin)
    query, key = mix.project.to_query, mix.project.to_key
    if change == "group elements":
        mix.pose.copy_(mix.pose.roll(1, 0))
    elif change == "queries and keys":
        mix.project.to_query, mix.project.to_key = key, query
    else:
        query.weight.copy_(heads_first(query.weight, HEADS, 0))
    assert distance(mix(lifted), mixed) > OTHER
