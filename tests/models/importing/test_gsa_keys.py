"""Every parameter has one name there; layers filled by these names answer as the originals did."""

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
from turnwise.models.importing.gsa import ORIGINS
from turnwise.models.importing.gsa_keys import (
    attention_counterparts,
    counterparts_of,
    heads_first,
    is_buffer,
)

HEADS = 3
SAME, OTHER = 2e-6, 2e-5  # the originals answered in float32; the gentlest harm is 3e-5


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
def test_buffers_are_told_from_parameters(keys, group):
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
    """A single layer with the weights of a golden case."""
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
    """A lifting layer and a group layer, filled."""
    convention = VARIANTS[ORIGINS[origin].variant]
    plan = AttentionPlan(group, Neighbourhood(5), heads=HEADS, convention=convention)
    name = group.aliases[0]
    lift = filled(LiftingSelfAttention(plan, 3, 8, 6), golden_weights(f"lift_local_{name}"))
    mix = filled(GroupSelfAttention(plan, 8, 8, 6), golden_weights(f"group_local_{name}"))
    return lift, mix


@pytest.fixture
def answers(group, golden):
    """Picture, lifted field and mixed field of a program, poses in our order."""

    def find(origin):
        numbers = their_numbers(group, ORIGINS[origin].matrices(group))
        name = group.aliases[0]
        fields = [golden(origin, f"{kind}_local_{name}.output") for kind in ("lift", "group")]
        picture = golden(origin, f"lift_local_{name}.input").double().permute(0, 2, 3, 1)
        return picture, *(f.double().permute(0, 2, 3, 4, 1)[:, numbers] for f in fields)

    return find


def distance(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def test_layers_answer_as_the_originals_did(layers, answers, origin):
    picture, lifted, mixed = answers(origin)
    lift, mix = layers
    assert distance(lift(picture), lifted) < SAME
    assert distance(mix(lifted), mixed) < SAME


@torch.no_grad()
def test_control_the_other_program_answered_otherwise(layers, answers, origin):
    _, mix = layers
    (other,) = set(ORIGINS) - {origin}
    _, lifted, mixed = answers(other)
    assert distance(mix(lifted), mixed) > OTHER


@torch.no_grad()
@pytest.mark.parametrize("harm", ["poses", "queries and keys", "heads"])
def test_control_weights_in_another_order_answer_otherwise(layers, answers, origin, harm):
    _, mix = layers
    _, lifted, mixed = answers(origin)
    query, key = mix.project.to_query, mix.project.to_key
    if harm == "poses":
        mix.pose.copy_(mix.pose.roll(1, 0))
    elif harm == "queries and keys":
        mix.project.to_query, mix.project.to_key = key, query
    else:
        query.weight.copy_(heads_first(query.weight, HEADS, 0))
    assert distance(mix(lifted), mixed) > OTHER
