"""The block on the group and its parts: equivariance, witness, control, definition."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, regular_to_tokens, tokens_to_regular
from turnwise.groups import PlanarGroup, act_on_regular, assert_equivariant, equivariance_error
from turnwise.layers.transformer.block import (
    GroupMLP,
    GroupTransformerBlock,
    ImageNorm,
    LayerScale,
    TokenNorm,
)
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention

GROUPS = ["C1", "C2", "C4", "D1", "D3", "D4", "C8"]


def randomised(module):
    """Draw every parameter at random, so that no term is hidden by a zero or a one."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def act(group, element, tokens):
    """Let the group act on the group axis of each token."""
    return act_on_regular(group, element, tokens.transpose(1, 2)).transpose(1, 2)


PARTS = {
    "norm": lambda group: TokenNorm(6),
    "image norm": lambda group: ImageNorm(6),
    "scale": lambda group: LayerScale(6, 0.3),
    "mlp": lambda group: GroupMLP(group, 6, 8, GroupLinear),
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("part", PARTS)
def test_equivariance_and_witness_of_the_parts(name, part):
    group = PlanarGroup.named(name)
    layer = randomised(PARTS[part](group))
    tokens = torch.randn(2, 5, group.order, 6, dtype=torch.float64)
    for element in range(group.order):
        transformed = layer(act(group, element, tokens))
        assert (transformed - act(group, element, layer(tokens))).abs().max() < 1e-10
        if element:
            assert (transformed - layer(tokens)).abs().max() > 1e-3


def test_control_an_affine_map_for_each_group_element_is_not_equivariant():
    group, norm = PlanarGroup.named("C4"), nn.LayerNorm(24).double()
    nn.init.normal_(norm.weight)
    tokens = torch.randn(2, 5, 4, 6, dtype=torch.float64)

    def run(x):
        return norm(x.flatten(2)).view_as(x)

    assert (run(act(group, 1, tokens)) - act(group, 1, run(tokens))).abs().max() > 0.1


def test_definition_of_the_image_norm():
    """Over all tokens, group elements and channels of each image."""
    norm, tokens = randomised(ImageNorm(3)), torch.randn(2, 5, 4, 3, dtype=torch.float64)
    for image, out in zip(tokens, norm(tokens), strict=True):
        scaled = (image - image.mean()) / (image.var(correction=0) + norm.eps).sqrt()
        torch.testing.assert_close(out, scaled * norm.weight + norm.bias)


def test_an_image_norm_keeps_the_relative_size_of_tokens():
    tokens = torch.randn(1, 5, 4, 6, dtype=torch.float64)
    tokens[:, 2:] *= 1e-3
    small = {kind: kind(6).double()(tokens)[:, 2:].std() for kind in (ImageNorm, TokenNorm)}
    assert small[ImageNorm] < 0.01 < 0.2 < small[TokenNorm]


def test_definition_of_the_norm():
    """Over all group elements and channels of each token, number by number."""
    norm, tokens = randomised(TokenNorm(3)), torch.randn(2, 2, 4, 3, dtype=torch.float64)
    for b in range(2):
        for t in range(2):
            numbers = [float(x) for x in tokens[b, t].flatten()]
            mean = sum(numbers) / 12
            std = (sum((x - mean) ** 2 for x in numbers) / 12 + 1e-5) ** 0.5
            for g in range(4):
                for c in range(3):
                    expected = (tokens[b, t, g, c] - mean) / std * norm.weight[c] + norm.bias[c]
                    torch.testing.assert_close(norm(tokens)[b, t, g, c], expected)


def block_for(group, linear=GroupLinear, **options):
    attention = GroupRotaryAttention(group, 8, 2, linear=linear)
    return randomised(GroupTransformerBlock(group, 8, attention, linear=linear, **options))


def features(group, rows=2, cols=3, batch=2, channels=8):
    """Return regular features."""
    order = PlanarGroup.named(group).order
    return torch.randn(batch, channels, order, rows, cols, dtype=torch.float64)


def test_definition_of_the_block():
    """x + a · attention(norm(x)), then + b · W₂ gelu(W₁ norm(x)), step by step on a rectangle."""
    block, x = block_for("D4", layer_scale=0.3, mlp_ratio=1.5), features("D4")
    tokens = regular_to_tokens(x)
    normed = tokens_to_regular(block.norm_attention(tokens), 2, 3)
    mixed = regular_to_tokens(block.attention(normed)) * block.scale_attention.factor
    between = tokens + mixed
    hidden = F.gelu(block.mlp.spread(block.norm_mlp(between)))
    assert hidden.shape[-1] == 12
    expected = between + block.mlp.gather(hidden) * block.scale_mlp.factor
    torch.testing.assert_close(block(x), tokens_to_regular(expected, 2, 3))


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
def test_a_block_in_irreps_computes_the_same(name, options, inside):
    """Forward and backward, in training; between the maps it stays in irreps unless it drops."""
    regular = block_for(name, **options)
    irreps = block_for(name, partial(GroupLinear, basis="irreps"), **options)
    irreps.load_state_dict(regular.state_dict())
    assert irreps._stays_in_irreps() == inside and not regular._stays_in_irreps()
    x = features(name, batch=3)
    found = []
    for block in (regular, irreps):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        out = block(leaf)
        grads = torch.autograd.grad(out.square().sum(), (leaf, *block.parameters()))
        found.append([out.detach(), *grads])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def test_hooks_of_parts_are_called():
    """The path through irreps does not call the parts, so it is not taken if one has a hook."""
    block = block_for("C4", partial(GroupLinear, basis="irreps"))
    x, calls = features("C4"), []
    expected = block(x)
    handle = block.attention.to_output.register_forward_pre_hook(lambda *given: calls.append(given))
    torch.testing.assert_close(block(x), expected)
    assert len(calls) == 1
    handle.remove()
    assert block._stays_in_irreps()


@pytest.mark.parametrize("part", ["scale_attention", "scale_mlp", "norm_mlp", "drop_path", "mlp"])
def test_a_part_replaced_by_another_class_is_called(part):
    group, linear = PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 4, 1, linear=linear)
    block = GroupTransformerBlock(group, 4, attention, linear=linear)
    called = []

    class Mine(nn.Module):
        def forward(self, tokens):
            called.append(True)
            return tokens

    setattr(block, part, Mine())
    block(torch.randn(1, 4, 4, 2, 3))
    assert called


class AdaptedAttention(GroupRotaryAttention):
    def forward(self, x):
        return super().forward(x) + 1


def test_a_subclass_of_the_attention_is_called():
    group, linear = PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 4, 1, linear=linear)
    block, x = GroupTransformerBlock(group, 4, attention, linear=linear), torch.randn(1, 4, 4, 2, 3)
    before = block(x)
    block.attention = AdaptedAttention(group, 4, 1, linear=linear)
    block.attention.load_state_dict(attention.state_dict())
    assert (block(x) - before).abs().max() > 0.01


class Adapted(GroupLinear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "path", ["attention.to_query_key_value", "attention.to_output", "mlp.spread", "mlp.gather"]
)
def test_maps_replaced_by_a_subclass_are_called(path):
    """For example adapters."""
    group, linear = PlanarGroup.named("C4"), partial(GroupLinear, basis="irreps")
    attention = GroupRotaryAttention(group, 4, 1, linear=linear)
    block, x = GroupTransformerBlock(group, 4, attention, linear=linear), torch.randn(1, 4, 4, 2, 3)
    before = block(x)
    parent, _, name = path.rpartition(".")
    old = getattr(block.get_submodule(parent), name)
    new = Adapted("C4", old.in_features, old.out_features, basis="irreps")
    new.load_state_dict(old.state_dict())
    setattr(block.get_submodule(parent), name, new)
    assert (block(x) - before).abs().max() > 0.01


@pytest.mark.parametrize("basis", ["regular", "irreps"])
@pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4"])
def test_equivariance_of_the_block_on_a_rectangle(name, basis):
    block = block_for(name, partial(GroupLinear, basis=basis), layer_scale=0.3)
    actions = {"act_in": action_on("regular"), "act_out": action_on("regular")}
    assert_equivariant(block, name, features(name, 4, 3, batch=1), **actions)


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_control_a_block_with_a_bias_for_each_group_element_is_not_equivariant(name):
    block, order = block_for(name), PlanarGroup.named(name).order
    shift = torch.arange(order, dtype=torch.float64)[:, None, None]
    actions = {"act_in": action_on("regular"), "act_out": action_on("regular")}
    x = features(name, 4, 3, batch=1)
    assert equivariance_error(lambda x: block(x + shift), name, x, **actions) > 1e-2


def test_without_layer_scale_a_block_has_no_such_parameters():
    names = [name for name, _ in block_for("C2").named_parameters()]
    assert not any("scale" in name for name in names)


def test_drop_path_drops_all_group_elements_of_a_sample():
    """If both branches are dropped, the output is the input."""
    block, x = block_for("C4", drop_path=0.999).train(), features("C4", batch=3)
    assert torch.equal(block(x), x)


def test_an_mlp_without_hidden_channels_raises_an_error():
    with pytest.raises(InputError, match="leaves no hidden channel"):
        block_for("C2", mlp_ratio=0.01)
