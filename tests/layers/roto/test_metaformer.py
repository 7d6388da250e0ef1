"""Mixers, norms and the MetaFormer block: equivariance, witness, negative control, definition."""

import itertools

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, regular_to_maps
from turnwise.groups import PlanarGroup, act_on_image, equivariance_errors
from turnwise.layers.roto.metaformer import (
    NORMS,
    AttentionMixer,
    MetaFormerBlock,
    MetaFormerNorm,
    PoolMixer,
    far_mask,
)

act_on_features = action_on("regular")


def images(rows=5, cols=5):
    return torch.randn(2, 8, rows, cols, dtype=torch.float64)


def features(group, rows=4, cols=4):
    """8 channels in all."""
    order = PlanarGroup.named(group).order
    return torch.randn(2, 8 // order, order, rows, cols, dtype=torch.float64)


def error_on_images(function, x):
    return max(equivariance_errors(function, "D4", x, act_out=act_on_image))


# Mixers.


def attention(**options):
    mixer = AttentionMixer(8, 4, **options).double()
    for weight in mixer.parameters():
        nn.init.normal_(weight, std=0.5)
    return mixer


MIXERS = {
    "pool": PoolMixer,
    "pool of 5": lambda: PoolMixer(5),
    "attention": attention,
    "attention in a window": lambda: attention(window=3),
}
all_mixers = pytest.mark.parametrize("make", MIXERS.values(), ids=MIXERS)


@all_mixers
@pytest.mark.parametrize("shape", [(5, 5), (4, 4), (6, 3)])
def test_mixers_are_equivariant(make, shape):
    assert error_on_images(make(), images(*shape)) < 1e-12


@all_mixers
def test_witness_mixers_depend_on_neighbours_and_rotate(make):
    mixer, x = make(), images()
    changed = x.clone()
    changed[:, :, 0, 0] += 1
    change = (mixer(changed) - mixer(x)).abs().amax(dim=(0, 1))
    assert change[0, 1] > 1e-3, "the neighbour's output changes"
    y = mixer(x)
    assert (act_on_image("D4", 1, y) - y).abs().max() > 1e-3


def test_control_an_off_centre_pool_is_not_equivariant():
    def pool(x):
        return nn.functional.avg_pool2d(nn.functional.pad(x, (1, 0, 1, 0)), 2, 1)

    assert error_on_images(pool, images()) > 0.1


@pytest.mark.parametrize("window", [0, 3])
def test_control_attention_with_absolute_positions_is_not_equivariant(window):
    mixer, position = attention(window=window), images()[:1]
    assert error_on_images(lambda x: mixer(x + position), images()) > 0.01


def test_definition_of_pooling_as_loops():
    """The mean over the neighbours inside the image, minus the pixel, on a rectangle."""
    x = images(4, 3)
    expected = torch.zeros_like(x)
    for row, col in itertools.product(range(4), range(3)):
        near = x[:, :, max(0, row - 1) : row + 2, max(0, col - 1) : col + 2]
        expected[:, :, row, col] = near.mean(dim=(2, 3)) - x[:, :, row, col]
    torch.testing.assert_close(PoolMixer()(x), expected)


def test_pooling_maps_constants_to_zero():
    assert PoolMixer()(torch.full((1, 2, 5, 7), 3.0)).abs().max() == 0
    padded = nn.functional.avg_pool2d(torch.ones(1, 1, 5, 7), 3, 1, 1) - 1
    assert padded[0, 0, 0, 0] == pytest.approx(-5 / 9), "the control: padding that counts"


@pytest.mark.parametrize("window", [0, 3])
def test_definition_of_attention_as_loops(window):
    """Softmax over the pixels in the window, for each pixel and head."""
    mixer, x = attention(window=window), images(4, 3)
    inner = mixer.attention
    tokens = x.permute(0, 2, 3, 1)
    query, key, value = (tokens @ inner.to_query_key_value.weight.T).split(8, dim=-1)
    mixed = torch.zeros_like(tokens)
    pixels = list(itertools.product(range(4), range(3)))
    for row, col in pixels:
        reach = [(r, c) for r, c in pixels if not window or max(abs(r - row), abs(c - col)) <= 1]
        for head in (slice(0, 4), slice(4, 8)):
            scores = [(query[:, row, col, head] * key[:, r, c, head]).sum(-1) / 2 for r, c in reach]
            weight = torch.softmax(torch.stack(scores, -1), -1)
            for index, (r, c) in enumerate(reach):
                mixed[:, row, col, head] += weight[:, index, None] * value[:, r, c, head]
    expected = mixed @ inner.to_output.weight.T + inner.to_output.bias
    torch.testing.assert_close(mixer(x), expected.permute(0, 3, 1, 2))


def test_a_window_over_the_whole_image_equals_no_window():
    wide, whole = attention(window=9), attention()
    whole.load_state_dict(wide.state_dict())
    x = images()
    torch.testing.assert_close(wide(x), whole(x))


@pytest.mark.parametrize("window", [0, 3])
def test_attention_backends_agree_forward_and_backward(window):
    plain, fast = attention(window=window, backend="plain"), attention(window=window)
    fast.load_state_dict(plain.state_dict())
    x = images()
    results = []
    for mixer in (plain, fast):
        y = mixer(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))])
    for value, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(value, expected)


def test_queries_keys_and_values_have_no_bias_as_published():
    names = {name for name, _ in AttentionMixer(8, 4).named_parameters()}
    prefix = "attention.to_"
    assert names == {f"{prefix}query_key_value.weight", f"{prefix}output.weight",
                     f"{prefix}output.bias"}  # fmt: skip
    assert sum(p.numel() for p in AttentionMixer(64).parameters()) == 4 * 64 * 64 + 64


def test_the_mask_counts_pixels():
    mask = far_mask(3, 4, 3, torch.zeros(1))
    assert (mask[0] == 0).nonzero().flatten().tolist() == [0, 1, 4, 5]
    assert torch.equal(mask, mask.T)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoolMixer(2), "window = 2 must be odd"),
        (lambda: AttentionMixer(8, 4, window=4), "window = 4 must be odd, or 0"),
        (lambda: AttentionMixer(8, 4, window=-1), "window = -1 must be odd, or 0"),
        (lambda: AttentionMixer(40, 32), r"width = 40 must be a multiple of 32 .* try 32 or 64"),
    ],
)
def test_impossible_mixers_raise_an_error(make, message):
    with pytest.raises(InputError, match=message):
        make()


# Norms.


def norm_for(kind, channels):
    norm = MetaFormerNorm(kind, channels).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


@pytest.mark.parametrize("group", ["C4", "D4"])
@pytest.mark.parametrize("kind", NORMS)
def test_norms_are_equivariant(kind, group):
    """The control is one scale for each group element."""
    x = features(group, 4, 3)
    norm = norm_for(kind, x.shape[1])
    actions = {"act_in": act_on_features, "act_out": act_on_features}
    assert max(equivariance_errors(norm, group, x, **actions)) < 1e-12
    scale = torch.randn(x.shape[2], 1, 1)
    assert min(equivariance_errors(lambda x: norm(x) * scale, group, x, **actions)[1:]) > 0.01


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_definition_of_norms(kind, regular):
    """On an image of 8 channels, and on regular features of 2 channels."""
    x = features("C4", 3, 4) if regular else images(3, 4)
    norm = norm_for(kind, x.shape[1])
    over = tuple(range(1, x.ndim if kind == "picture" else x.ndim - 2))
    mean, var = x.mean(over, keepdim=True), x.var(over, keepdim=True, correction=0)
    normed, out = (x - mean) / (var + 1e-5).sqrt(), norm(x)
    for c in range(x.shape[1]):
        torch.testing.assert_close(out[:, c], normed[:, c] * norm.weight[c] + norm.bias[c])


def test_the_two_norms_differ():
    first, second = (MetaFormerNorm(kind, 8).double() for kind in NORMS)
    x = images()
    assert (first(x) - second(x)).abs().max() > 0.1


# Blocks on images.


def block(norm="channel", mixer=None, **options):
    made = MetaFormerBlock(8, mixer or PoolMixer(), norm=norm, layer_scale=0.5, **options).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mixer", [PoolMixer(), AttentionMixer(8, 4), nn.Identity()], ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3)])
def test_blocks_are_equivariant(norm, mixer, shape):
    assert error_on_images(block(norm, mixer), images(*shape)) < 1e-12


@pytest.mark.parametrize("norm", NORMS)
def test_witness_the_output_of_a_block_differs_from_its_input_and_rotates(norm):
    layer, x = block(norm), images()
    y = layer(x)
    assert (y - x).abs().max() > 0.1
    assert (act_on_image("D4", 1, y) - y).abs().max() > 0.1
    (y * torch.randn_like(y)).sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_control_a_mixer_with_a_direction_is_not_equivariant():
    layer = block(mixer=nn.Conv2d(8, 8, 3, padding=1).double())
    assert error_on_images(layer, images()) > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_definition_of_blocks_as_loops(norm):
    """x + s₁ mixer(norm(x)), then + s₂ mlp(norm(x)), pixel by pixel."""
    layer, x = block(norm), images(3, 4)
    first, _, second = layer.mlp

    def mlp(value):  # of one pixel
        hidden = nn.functional.gelu(value @ first.weight[:, :, 0, 0].T + first.bias)
        return hidden @ second.weight[:, :, 0, 0].T + second.bias

    between = x + layer.scale_mixer.view(8, 1, 1) * layer.mixer(layer.norm_mixer(x))
    normed, expected = layer.norm_mlp(between), between.clone()
    for row, col in itertools.product(range(3), range(4)):
        expected[:, :, row, col] += layer.scale_mlp * mlp(normed[:, :, row, col])
    torch.testing.assert_close(layer(x), expected)


def test_initial_blocks_are_close_to_the_identity():
    layer, x = MetaFormerBlock(8, PoolMixer()).double(), images()
    assert 0 < (layer(x) - x).abs().max() < 1e-4
    assert layer.scale_mlp.unique().tolist() == pytest.approx([1e-5])
    assert layer.mlp[0].weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_drop_path_leaves_out_both_branches_of_whole_images():
    layer, x = block(drop_path=0.5).train(), torch.randn(64, 8, 2, 2, dtype=torch.float64)
    unchanged = ((layer(x) - x).abs().amax(dim=(1, 2, 3)) == 0).sum()
    assert 4 < unchanged < 32, "a quarter of the images lose both branches"
    assert ((layer.eval()(x) - x).abs().amax(dim=(1, 2, 3)) > 0).all()


def test_an_unknown_norm_raises_an_error():
    with pytest.raises(InputError, match="unknown norm 'batch'"):
        MetaFormerBlock(8, PoolMixer(), norm="batch")


# Blocks on regular features.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("group", ["D4", "C4", "D1"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3)])
def test_oriented_blocks_are_equivariant(norm, group, shape):
    layer, x = block(norm, oriented=group), features(group, *shape)
    errors = equivariance_errors(layer, group, x, act_in=act_on_features, act_out=act_on_features)
    assert max(errors) < 1e-12
    assert (layer(x) - x).abs().max() > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_control_a_block_for_images_mixes_up_the_group_elements(norm):
    layer = block(norm)

    def on_all_channels(x):
        return layer(regular_to_maps(x)).unflatten(1, (8, -1)).transpose(1, 2)

    errors = equivariance_errors(
        on_all_channels, "D4", features("D4"), act_in=act_on_features, act_out=act_on_features
    )
    assert min(errors[1:]) > 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_definition_of_oriented_blocks(norm):
    """The block for images, with scales, affine maps and MLP repeated for every group element."""
    group = PlanarGroup.named("D4")
    layer, x = block(norm, oriented=group), features("D4", 3, 4)
    plain, state = block(norm), dict[str, torch.Tensor]()
    for key, value in layer.state_dict().items():
        if value.ndim == 1:
            state[key] = value.repeat(8)
        elif key.endswith("weight"):  # (o, i, n, 1) to (g o, m i, 1, 1)
            new, old = value.shape[:2]
            wide = torch.zeros(8 * new, 8 * old, 1, 1, dtype=torch.float64)
            for g, m in itertools.product(range(8), range(8)):
                n = group.compose(group.invert(g), m)
                rows, cols = slice(g * new, (g + 1) * new), slice(m * old, (m + 1) * old)
                wide[rows, cols] = value[:, :, n, :, None]
            state[key] = wide
    plain.load_state_dict(state)
    torch.testing.assert_close(regular_to_maps(layer(x)), plain(regular_to_maps(x)))


def test_an_oriented_block_has_a_fraction_of_the_parameters():
    def count(layer):
        return sum(p.numel() for p in layer.parameters())

    assert 8 * count(block(oriented="D4")) == count(block())
    with pytest.raises(InputError, match="split over 8 group elements"):
        MetaFormerBlock(12, PoolMixer(), oriented="D4")
