"""The block on the group and its parts: law, witness, control, definition."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_field, act_on_regular
from turnwise.layers.transformer.block import (
    GroupMLP,
    GroupTransformerBlock,
    LayerScale,
    TokenNorm,
)
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention

GROUPS = ["C1", "C2", "C4", "D1", "D3", "D4", "C8"]


def shaken(module):
    """With every weight drawn at random, so that nothing is equal by chance of the start."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def turn(group, element, tokens):
    """The group acts on the poses of each token."""
    return act_on_regular(group, element, tokens.transpose(1, 2)).transpose(1, 2)


def parts(group):
    linear = GroupLinear
    return {
        "norm": TokenNorm(6),
        "scale": LayerScale(6, 0.3),
        "mlp": GroupMLP(group, 6, 8, linear),
    }


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("part", ["norm", "scale", "mlp"])
def test_law_and_witness_of_the_parts(name, part):
    group = PlanarGroup.named(name)
    layer = shaken(parts(group)[part])
    tokens = torch.randn(2, 5, group.order, 6, dtype=torch.float64)
    for element in range(group.order):
        turned = turn(group, element, tokens)
        gap = layer(turned) - turn(group, element, layer(tokens))
        assert gap.abs().max() < 1e-10
        if element:
            assert (layer(turned) - layer(tokens)).abs().max() > 1e-3


def test_control_an_affine_map_for_each_pose_breaks_the_law():
    group, norm = PlanarGroup.named("C4"), nn.LayerNorm(24).double()
    nn.init.normal_(norm.weight)
    tokens = torch.randn(2, 5, 4, 6, dtype=torch.float64)
    turned = turn(group, 1, tokens)

    def run(x):
        return norm(x.flatten(2)).view_as(x)

    assert (run(turned) - turn(group, 1, run(tokens))).abs().max() > 0.1


def test_definition_of_the_norm():
    """Over all poses and channels of each token, by hand."""
    norm, tokens = shaken(TokenNorm(3)), torch.randn(2, 2, 4, 3, dtype=torch.float64)
    for b in range(2):
        for t in range(2):
            numbers = [float(x) for x in tokens[b, t].flatten()]
            mean = sum(numbers) / 12
            spread = (sum((x - mean) ** 2 for x in numbers) / 12 + 1e-5) ** 0.5
            for g in range(4):
                for c in range(3):
                    right = (tokens[b, t, g, c] - mean) / spread * norm.weight[c] + norm.bias[c]
                    torch.testing.assert_close(norm(tokens)[b, t, g, c], right)


def block_for(group, linear=GroupLinear, **options):
    attention = GroupRotaryAttention(group, 8, 2, linear=linear)
    return shaken(GroupTransformerBlock(group, 8, attention, linear=linear, **options))


def test_definition_of_the_block():
    """x + a · attention(norm(x)), then + b · W₂ gelu(W₁ norm(x)), spelled out on a rectangle."""
    group = PlanarGroup.named("D4")
    block = block_for(group, layer_scale=0.3, mlp_ratio=1.5)
    x = torch.randn(2, 6, 8, 8, dtype=torch.float64)
    mixed = block.attention(block.norm_attention(x), 2, 3) * block.scale_attention.factor
    between = x + mixed
    hidden = F.gelu(block.mlp.spread(block.norm_mlp(between)))
    assert hidden.shape[-1] == 12
    right = between + block.mlp.gather(hidden) * block.scale_mlp.factor
    torch.testing.assert_close(block(x, 2, 3), right)


@pytest.mark.parametrize("name", ["C4", "D3", "D4"])
@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({}, True),
        ({"layer_scale": 0.3}, True),
        ({"drop_path": 0.5}, False),
        ({"dropout": 0.5}, False),
    ],
)
def test_a_block_in_irreps_is_the_same_block(name, options, inside):
    """Forward and backward, in training, where what is dropped must be seen in poses; and it is
    the short way through irreps that is taken where it can be."""
    group = PlanarGroup.named(name)
    regular = block_for(group, **options)
    irreps = block_for(group, partial(GroupLinear, basis="irreps"), **options)
    irreps.load_state_dict(regular.state_dict())
    assert irreps._stays_in_irreps() == inside and not regular._stays_in_irreps()
    x = torch.randn(3, 6, group.order, 8, dtype=torch.float64)
    found = []
    for block in (regular, irreps):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        out = block(leaf, 2, 3)
        grads = torch.autograd.grad(out.square().sum(), (leaf, *block.parameters()))
        found.append([out.detach(), *grads])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def test_who_listens_to_a_part_is_told():
    """The short way through irreps calls no parts: it is not taken where one has a hook."""
    block = block_for(PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps"))
    x, heard = torch.randn(1, 4, 4, 8, dtype=torch.float64), []
    expected = block(x, 2, 2)
    handle = block.attention.to_output.register_forward_pre_hook(lambda *given: heard.append(given))
    torch.testing.assert_close(block(x, 2, 2), expected)
    assert len(heard) == 1
    handle.remove()
    assert block._stays_in_irreps()


@pytest.mark.parametrize("part", ["scale_attention", "scale_mlp", "norm_mlp", "drop_path", "mlp"])
def test_a_part_of_another_kind_is_called(part):
    """The short way through irreps does not call its parts."""
    group, linear = PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 4, 1, linear=linear)
    block = GroupTransformerBlock(group, 4, attention, linear=linear)
    called = []

    class Mine(nn.Module):
        def forward(self, tokens):
            called.append(True)
            return tokens

    setattr(block, part, Mine())
    block(torch.randn(1, 6, 4, 4), 2, 3)
    assert called


class Louder(GroupLinear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "path", ["attention.to_query_key_value", "attention.to_output", "mlp.spread", "mlp.gather"]
)
def test_maps_of_another_kind_are_called(path):
    """Also those that inherit from ours: an adapter, say."""
    group, linear = PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 4, 1, linear=linear)
    block, x = GroupTransformerBlock(group, 4, attention, linear=linear), torch.randn(1, 6, 4, 4)
    before = block(x, 2, 3)
    place, _, name = path.rpartition(".")
    old = getattr(block.get_submodule(place), name)
    new = Louder("C4", old.in_width, old.out_width, basis="irreps")
    new.load_state_dict(old.state_dict())
    setattr(block.get_submodule(place), name, new)
    assert (block(x, 2, 3) - before).abs().max() > 0.01


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_law_of_the_block_on_a_rectangle(name):
    group = PlanarGroup.named(name)
    block = block_for(group, layer_scale=0.3)

    def run(field):
        rows, cols = field.shape[2:4]
        tokens = block(field.permute(0, 2, 3, 1, 4).flatten(1, 2), rows, cols)
        return tokens.unflatten(1, (rows, cols)).permute(0, 3, 1, 2, 4)

    field = torch.randn(1, group.order, 4, 3, 8, dtype=torch.float64)
    for element in range(group.order):
        moved = act_on_field(group, element, field)
        gap = run(moved) - act_on_field(group, element, run(field))
        assert gap.abs().max() < 1e-10 * run(field).abs().max()


def test_without_layer_scale_there_is_nothing_to_learn_there():
    names = [name for name, _ in block_for(PlanarGroup.named("C2")).named_parameters()]
    assert not any("scale" in name for name in names)


def test_dropped_paths_are_dropped_for_all_poses():
    """A dropped sample comes out of the attention branch as it went in."""
    block = block_for(PlanarGroup.named("C4"), drop_path=0.999).train()
    x = torch.randn(3, 4, 4, 8, dtype=torch.float64)
    assert torch.equal(block(x, 2, 2), x)


def test_no_hidden_channels():
    with pytest.raises(InputError, match="leaves no hidden channel"):
        block_for(PlanarGroup.named("C2"), mlp_ratio=0.01)
