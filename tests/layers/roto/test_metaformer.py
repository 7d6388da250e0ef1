"""The block turns with the map, whichever mixer and norm it is given."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_field, act_on_image, equivariance_errors
from turnwise.layers.conv.conv import field_to_maps, maps_to_field
from turnwise.layers.roto.metaformer import (
    NORMS,
    AttentionMixer,
    MetaFormerBlock,
    PoolMixer,
    PoseNorm,
)


def maps(rows=4, cols=4):
    return torch.randn(3, 8, rows, cols, dtype=torch.float64)


def block(norm="channel", mixer=None, **options):
    made = MetaFormerBlock(8, mixer or PoolMixer(), norm=norm, layer_scale=0.5, **options).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mixer", [PoolMixer(), AttentionMixer(8, 4), nn.Identity()], ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3)])
def test_law(norm, mixer, shape):
    layer = block(norm, mixer)
    assert max(equivariance_errors(layer, "D4", maps(*shape), act_out=act_on_image)) < 1e-12


@pytest.mark.parametrize("norm", NORMS)
def test_witness(norm):
    layer, x = block(norm), maps()
    y = layer(x)
    assert (y - x).abs().max() > 0.1
    assert (act_on_image("D4", 1, y) - y).abs().max() > 0.1


def test_control_a_mixer_with_a_direction_breaks_it():
    mixer = nn.Conv2d(8, 8, 3, padding=1).double()
    layer = block(mixer=mixer)
    assert max(equivariance_errors(layer, "D4", maps(), act_out=act_on_image)) > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_definition(norm):
    """x + s₁ mixer(norm(x)), then + s₂ mlp(norm(x)), pixel by pixel."""
    layer, x = block(norm), maps(3, 4)
    first, _, second = layer.mlp

    def mlp(value):  # of one pixel
        hidden = nn.functional.gelu(value @ first.weight[:, :, 0, 0].T + first.bias)
        return hidden @ second.weight[:, :, 0, 0].T + second.bias

    between = x + layer.scale_mixer.view(8, 1, 1) * layer.mixer(layer.norm_mixer(x))
    normed, expected = layer.norm_mlp(between), between.clone()
    for row in range(3):
        for col in range(4):
            expected[:, :, row, col] += layer.scale_mlp * mlp(normed[:, :, row, col])
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_definition_of_norms(norm):
    layer, x = PoseNorm(norm, 8).double(), maps()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    axes = (1,) if norm == "channel" else (1, 2, 3)
    mean, var = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, correction=0)
    plain = (x - mean) / (var + 1e-5).sqrt()
    expected = plain * layer.weight.view(8, 1, 1) + layer.bias.view(8, 1, 1)
    torch.testing.assert_close(layer(x), expected)


def test_the_two_norms_differ():
    x = maps()
    assert (
        PoseNorm("picture", 8).double()(x) - PoseNorm("channel", 8).double()(x)
    ).abs().max() > 0.1


def test_it_starts_as_almost_nothing():
    layer, x = MetaFormerBlock(8, PoolMixer()).double(), maps()
    assert 0 < (layer(x) - x).abs().max() < 1e-4
    assert layer.scale_mlp.unique().tolist() == pytest.approx([1e-5])
    assert layer.mlp[0].weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_dropped_paths_leave_whole_pictures_out():
    layer, x = block(drop_path=0.5).train(), torch.randn(64, 8, 2, 2, dtype=torch.float64)
    still = ((layer(x) - x).abs().amax(dim=(1, 2, 3)) == 0).sum()
    assert 4 < still < 32, "a quarter of the pictures lose both branches"
    assert ((layer.eval()(x) - x).abs().amax(dim=(1, 2, 3)) > 0).all()


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match="unknown norm 'batch'"):
        MetaFormerBlock(8, PoolMixer(), norm="batch")


def act_on_maps(group, g, x):
    """An element turns oriented maps and renames their poses."""
    field = maps_to_field(x, PlanarGroup.named(group).order)
    return field_to_maps(act_on_field(group, g, field))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("group", ["D4", "C4", "D1"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3)])
def test_law_of_oriented_maps(norm, group, shape):
    layer, x = block(norm, oriented=group), maps(*shape)
    errors = equivariance_errors(layer, group, x, act_in=act_on_maps, act_out=act_on_maps)
    assert max(errors) < 1e-12
    assert (layer(x) - x).abs().max() > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_control_a_block_that_knows_no_poses_mixes_them_up(norm):
    errors = equivariance_errors(block(norm), "D4", maps(), act_in=act_on_maps, act_out=act_on_maps)
    assert min(errors[1:]) > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_definition_of_oriented_maps(norm):
    """The plain block, with scales, affine maps and perceptron repeated by hand for every pose."""
    group = PlanarGroup.named("C4")
    layer, x = block(norm, oriented=group), maps(3, 4)
    plain, state = block(norm), dict[str, torch.Tensor]()
    for key, value in layer.state_dict().items():
        if value.ndim == 1:
            state[key] = value.repeat(4)
        elif key.endswith("weight"):  # (o, i, n, 1) to (g o, m i, 1, 1)
            width, in_width = value.shape[:2]
            wide = torch.zeros(4 * width, 4 * in_width, 1, 1, dtype=torch.float64)
            for g in range(4):
                for m in range(4):
                    n = group.compose(group.invert(g), m)
                    rows = slice(g * width, (g + 1) * width)
                    wide[rows, m * in_width : (m + 1) * in_width] = value[:, :, n, :, None]
            state[key] = wide
    plain.load_state_dict(state)
    torch.testing.assert_close(layer(x), plain(x))


def test_an_oriented_block_has_a_share_of_the_weights():
    def count(layer):
        return sum(p.numel() for p in layer.parameters())

    assert 8 * count(block(oriented="D4")) == count(block())
    with pytest.raises(InputError, match="split it over 8 poses"):
        MetaFormerBlock(12, PoolMixer(), oriented="D4")
