"""Convolutions on the group: equivariance, witness, negative control, and definition as loops.

Letters:  g, m group elements of output and input;  o, i their channels;  r, c a pixel.
"""

import itertools

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import action_on, maps_to_regular, on_maps, regular_to_maps
from turnwise.geometry.sizes import Stage, exact_sizes, output_size
from turnwise.groups import PlanarGroup, act_on_image, act_on_points, equivariance_errors
from turnwise.layers.conv.conv import (
    CircularConv2d,
    GroupConv2d,
    GroupDepthwiseConv2d,
    LiftingConv2d,
    MaxOverGroup,
    channels_of_element,
    oriented_conv,
)
from turnwise.layers.roto.conv import RotoConv2d

GRID = ["C1", "D1", "C2", "C4", "D4"]
FILTERS = [(name, kind) for name in GRID for kind in ("pixel", "continuous")]
FILTERS += [("C8", "auto"), ("D8", "auto")]
# kernel size, stride, and the sides of an image that both sample symmetrically
SAMPLINGS = [(1, 1, (3, 4)), (3, 1, (3, 4)), (3, 2, (5, 7)), (4, 2, (4, 6))]
CHANNELS = 3
act_on_features = action_on("regular")


def randomise(layer):
    """Draw all parameters at random, so that biases are not zero; convert to float64."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


def images(rows, cols, channels=2):
    return torch.randn(2, channels, rows, cols, dtype=torch.float64)


def features(name, rows, cols, channels=CHANNELS):
    order = PlanarGroup.named(name).order
    return torch.randn(2, channels, order, rows, cols, dtype=torch.float64)


def error_of(function, name, x, act_in=act_on_features, act_out=act_on_features):
    """Return the largest error of the elements that map pixels to pixels."""
    elements = PlanarGroup.named(name).grid_elements()
    return max(equivariance_errors(function, name, x, act_in=act_in, act_out=act_out,
                                   elements=elements))  # fmt: skip


# LiftingConv2d, GroupConv2d, GroupDepthwiseConv2d.


@pytest.mark.parametrize(("kernel", "stride", "sides"), SAMPLINGS)
@pytest.mark.parametrize(("name", "filters"), FILTERS)
def test_convolutions_are_equivariant_on_rectangles(name, filters, kernel, stride, sides):
    lift = randomise(LiftingConv2d(name, 2, CHANNELS, kernel, stride, filters=filters))
    assert error_of(lift, name, images(*sides), act_in=act_on_image) < 1e-12
    conv = randomise(GroupConv2d(name, 2, CHANNELS, kernel, stride, filters=filters))
    assert error_of(conv, name, features(name, *sides, channels=2)) < 1e-12
    depthwise = randomise(GroupDepthwiseConv2d(name, CHANNELS, kernel, filters=filters))
    assert error_of(depthwise, name, features(name, *sides)) < 1e-12


LAYERS = {
    "lifting": (LiftingConv2d("D4", 2, CHANNELS, 3), False),
    "group": (GroupConv2d("D4", 2, CHANNELS, 3), True),
    "depthwise": (GroupDepthwiseConv2d("D4", 2, 3), True),
}


@pytest.mark.parametrize(("layer", "regular"), LAYERS.values(), ids=LAYERS)
def test_witness_output_depends_on_near_pixels_group_element_and_every_parameter(layer, regular):
    layer, x = randomise(layer), features("D4", 4, 5, 2) if regular else images(4, 5)
    out, changed = layer(x), x.clone()
    changed[..., 0, 0] += 1
    assert (layer(changed) - out)[..., 1, 1].abs().max() > 1e-2
    assert (layer(changed) - out)[..., 2, 2].abs().max() == 0
    assert out.std(dim=2).min() > 1e-3
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.abs().min() > 0 for p in layer.parameters())


def test_control_an_off_centre_sampling_is_not_equivariant():
    """Stride 2 with 3 taps on an even side samples one border, not the other."""
    conv = GroupConv2d("C4", CHANNELS, CHANNELS, 3, stride=2).double()
    assert exact_sizes(6, conv.stages) == (5, 7)
    assert error_of(conv, "C4", features("C4", 6, 6)) > 0.1


def test_control_plain_convolutions_are_not_equivariant():
    """From images, on all channels of all group elements, and on each of them alone."""
    image, x = images(4, 5), features("D4", 4, 5, 2)
    lift, conv = nn.Conv2d(2, 16, 3, padding=1).double(), nn.Conv2d(16, 16, 3, padding=1).double()
    depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16).double()
    assert error_of(lambda x: maps_to_regular(lift(x), 8), "D4", image, act_on_image) > 0.1
    for plain in (conv, depthwise):
        assert error_of(lambda x, plain=plain: on_maps(plain, x), "D4", x) > 0.1


def test_control_one_bias_for_each_group_element_is_not_equivariant():
    conv, bias = GroupConv2d("D4", CHANNELS, CHANNELS, 3).double(), torch.randn(CHANNELS, 8, 1, 1)
    assert error_of(lambda x: conv(x) + bias, "D4", features("D4", 4, 5)) > 0.1


def taps_seen_from(group, g):
    """For each step (row, col) of a 3 × 3 filter, return the tap of the free filter at g⁻¹δ."""
    centres = pixel_centres(3, 3).flatten(0, 1)
    index = {tuple(p): t for t, p in enumerate(centres.tolist())}
    back = act_on_points(group, group.invert(g), centres).tolist()
    return [(t // 3 - 1, t % 3 - 1, index[tuple(p)]) for t, p in enumerate(back)]


def test_definition_of_convolutions_as_loops():
    """b[o] + Σ_{m, i, δ} K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ), with zeros outside."""
    group, rows, cols = PlanarGroup.named("D4"), 2, 3
    lift, conv = randomise(LiftingConv2d("D4", 2, 2, 3)), randomise(GroupConv2d("D4", 2, 2, 3))
    depthwise = randomise(GroupDepthwiseConv2d("D4", 2, 3))
    image, x = images(rows, cols), features("D4", rows, cols, channels=2)
    outputs = lift(image), conv(x), depthwise(x)
    for g, r, c in itertools.product(range(8), range(rows), range(cols)):
        sums = [layer.bias.expand(2, 2) for layer in (lift, conv, depthwise)]
        for down, right, tap in taps_seen_from(group, g):
            row, col = r + down, c + right
            if not (0 <= row < rows and 0 <= col < cols):
                continue
            sums[0] = sums[0] + image[:, :, row, col] @ lift.weight[:, :, tap].T
            sums[2] = sums[2] + x[:, :, g, row, col] * depthwise.weight[:, 0, tap]
            for m in range(8):
                n = group.compose(group.invert(g), m)
                sums[1] = sums[1] + x[:, :, m, row, col] @ conv.weight[:, :, n, tap].T
        for out, expected in zip(outputs, sums, strict=True):
            torch.testing.assert_close(out[:, :, g, r, c], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", range(1, 6))
def test_default_padding_keeps_the_size_or_halves_it(kernel):
    stages = LiftingConv2d("C4", 1, 1, kernel, stride=1 + (kernel % 2 == 0)).stages
    assert output_size(8, stages) == (8 if kernel % 2 else 4)


def test_outputs_are_views_of_maps():
    """The next layer converts them to maps without a copy."""
    out = GroupConv2d("D4", CHANNELS, 2, 3).double()(features("D4", 4, 5))
    assert regular_to_maps(out).data_ptr() == out.data_ptr()


def test_stride_padding_and_bias_are_those_of_conv2d():
    """Under C1, filters do not rotate."""
    x = features("C1", 7, 9, channels=2)
    for options in ({"stride": 2, "padding": 3}, {"padding": 0, "bias": False}):
        conv, plain = GroupConv2d("C1", 2, 3, 3, **options), nn.Conv2d(2, 3, 3, **options).double()
        assert (conv.bias is None) == (plain.bias is None)
        conv = randomise(conv)
        state = {k: v.view_as(plain.state_dict()[k]) for k, v in conv.state_dict().items()}
        plain.load_state_dict(state)
        torch.testing.assert_close(conv(x)[:, :, 0], plain(x[:, :, 0]))


def test_features_of_another_shape_raise_an_error():
    conv = GroupConv2d("C4", 3, 2, 3)
    for shape in ((1, 2, 4, 4, 4), (1, 3, 8, 4, 4), (1, 4, 3, 4, 4)):
        with pytest.raises(InputError, match=r"3 channels and 4 group elements, .* got shape \(1,"):
            conv(torch.zeros(shape))
    with pytest.raises(InputError, match="3 channels and 4 group elements"):
        GroupDepthwiseConv2d("C4", 3, 3)(torch.zeros(1, 2, 4, 4, 4))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"padding": -1}, "padding = -1 must be 0 or more"),
        ({"kernel_size": 0}, "kernel_size = 0 must be at least 1"),
        ({"stride": 0}, "stride = 0 must be at least 1"),
        ({"in_channels": 0}, "in_channels = 0 must be at least 1"),
        ({"out_channels": 0}, "out_channels = 0 must be at least 1"),
    ],
)
@pytest.mark.parametrize("layer", [LiftingConv2d, GroupConv2d])
def test_impossible_sizes_raise_an_error(layer, sizes, message):
    with pytest.raises(InputError, match=message):
        layer("C4", **{"in_channels": 3, "out_channels": 2, "kernel_size": 3} | sizes)


# MaxOverGroup.


@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_the_maximum_over_the_group_is_equivariant(name):
    assert error_of(MaxOverGroup(name), name, features(name, 3, 4), act_out=act_on_image) == 0


def test_control_one_group_element_alone_is_not_equivariant():
    x = features("D4", 3, 4)
    assert error_of(lambda x: x[:, :, 0], "D4", x, act_out=act_on_image) > 0.1


def test_definition_of_the_maximum_over_the_group():
    """As loops; the witness is that every group element is the largest somewhere."""
    x = features("D3", 5, 7).requires_grad_()
    out = MaxOverGroup("D3")(x)
    for b, o, r, c in itertools.product(range(2), range(CHANNELS), range(5), range(7)):
        assert out[b, o, r, c] == max(x[b, o, g, r, c] for g in range(6))
    out.sum().backward()
    assert torch.equal(x.grad.sum(dim=2), torch.ones(2, CHANNELS, 5, 7, dtype=torch.float64))
    assert (x.grad.amax(dim=(0, 1, 3, 4)) == 1).all()
    with pytest.raises(InputError, match="8 group elements"):
        MaxOverGroup("D4")(x)


# oriented_conv: its input, its output or both are regular features.

ORIENTED = {"lift": (False, True), "keep": (True, True), "fold": (True, False)}
STAGES = [Stage(3, 1, 1), Stage(4, 2, 1), Stage(2, 2, 0), Stage(1, 1, 0)]


def oriented_layer(kind, group="D4", stage=STAGES[1], bias=True):
    return randomise(oriented_conv(group, 16, 24, stage, ORIENTED[kind], bias=bias))


def oriented_input(kind, group="D4", rows=8, cols=8):
    """16 channels in all, as an image or as regular features."""
    order = PlanarGroup.named(group).order
    if not ORIENTED[kind][0]:
        return images(rows, cols, channels=16)
    return features(group, rows, cols, channels=16 // order)


def actions_of(kind):
    return {
        name: act_on_features if is_regular else act_on_image
        for name, is_regular in zip(("act_in", "act_out"), ORIENTED[kind], strict=True)
    }


@pytest.mark.parametrize("group", ["D4", "C4", "D1"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ORIENTED)
def test_oriented_convolutions_are_equivariant(kind, stage, group):
    layer = oriented_layer(kind, group, stage)
    for x in (oriented_input(kind, group), oriented_input(kind, group, 8, 4)):
        assert error_of(layer, group, x, **actions_of(kind)) < 1e-12


@pytest.mark.parametrize("kind", ORIENTED)
def test_witness_every_element_changes_the_output_of_an_oriented_convolution(kind):
    y = oriented_layer(kind)(oriented_input(kind))
    assert y.shape == ((2, 24, 4, 4) if kind == "fold" else (2, 3, 8, 4, 4))
    act = actions_of(kind)["act_out"]
    assert all((act("D4", g, y) - y).abs().max() > 0.1 for g in range(1, 8))


@pytest.mark.parametrize("kind", ORIENTED)
def test_control_an_action_that_keeps_the_group_axis_is_detected(kind):
    x = oriented_input(kind)
    errors = equivariance_errors(
        oriented_layer(kind), "D4", x, act_in=act_on_image, act_out=act_on_image
    )
    assert min(errors[1:]) > 0.1


def test_definition_of_a_folding_convolution_as_loops():
    """max_g b[o] + Σ_m Σ_δ K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ), on a rectangle."""
    group, layer = PlanarGroup.named("D4"), oriented_layer("fold", "D4", Stage(3, 1, 1))
    x = oriented_input("fold", "D4", 4, 3)
    weight, bias, y = layer[0].weight, layer[0].bias, layer(x)  # weight: (o, i, n, tap)
    for row, col in [(0, 0), (2, 1), (3, 2)]:
        responses = []
        for g in range(8):
            total = bias.clone()[None].expand(2, -1)
            rotated = act_on_image(group, g, weight.unflatten(-1, (3, 3)))
            for m, dr, dc in itertools.product(range(8), (-1, 0, 1), (-1, 0, 1)):
                n = group.compose(group.invert(g), m)
                if 0 <= row + dr < 4 and 0 <= col + dc < 3:
                    value = x[:, :, m, row + dr, col + dc]  # (batch, i)
                    total = total + value @ rotated[:, :, n, dr + 1, dc + 1].T
            responses.append(total)
        torch.testing.assert_close(y[:, :, row, col], torch.stack(responses).amax(0))


def test_lifting_followed_by_a_maximum_is_roto_conv():
    lift, maximum = oriented_layer("lift", bias=False), MaxOverGroup("D4")
    roto = RotoConv2d("D4", 16, 3, 4, stride=2, bias=False).double()
    with torch.no_grad():
        roto.weight.copy_(lift.weight.unflatten(-1, (4, 4)))
    x = oriented_input("lift")
    torch.testing.assert_close(maximum(lift(x)), roto(x))


def test_oriented_convolutions_detect_a_relative_rotation_and_roto_conv_does_not():
    """One patch is rotated by itself; the windows of the RotoConv2d do not overlap."""
    x = torch.rand(1, 16, 8, 8, dtype=torch.float64)
    rotated = x.clone()
    rotated[..., :4, :4] = act_on_image("D4", 1, x[..., :4, :4])
    roto = RotoConv2d("D4", 16, 16, 4, stride=4, padding=0, bias=False).double()
    assert (roto(x) - roto(rotated)).abs().max() < 1e-12
    lift = oriented_conv("D4", 16, 16, Stage(4, 4), ORIENTED["lift"]).double()
    fold = oriented_conv("D4", 16, 16, Stage(2, 2), ORIENTED["fold"]).double()
    assert (fold(lift(x)) - fold(lift(rotated))).abs().max() > 0.01


@pytest.mark.parametrize(("kind", "share"), [("lift", 8), ("keep", 8), ("fold", 1)])
def test_oriented_convolutions_have_a_fraction_of_the_parameters(kind, share):
    plain, layer = nn.Conv2d(16, 24, 4, 2, 1), oriented_layer(kind)
    count = sum(p.numel() for p in layer.parameters())
    assert count * share == sum(p.numel() for p in plain.parameters())
    layer(oriented_input(kind)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_widths_that_the_group_does_not_divide_raise_an_error():
    with pytest.raises(InputError, match=r"width = 20 .* split over 8 group elements"):
        channels_of_element("D4", 20)
    with pytest.raises(InputError, match="use a RotoConv2d"):
        oriented_conv("D4", 16, 24, Stage(3, 1, 1), (False, False))


# CircularConv2d.


def test_definition_of_circular_convolution_as_loops():
    """What the layer pads by itself is cropped."""
    conv, x = nn.Conv2d(2, 3, 3, padding=1).double(), images(5, 7)
    out = CircularConv2d(conv, 3)(x)
    for row, col in itertools.product(range(5), range(7)):
        expected = conv.bias.expand(2, 3)
        for a, b in itertools.product(range(3), range(3)):
            seen = x[:, :, (row + a - 1) % 5, (col + b - 1) % 7]
            expected = expected + seen @ conv.weight[:, :, a, b].T
        torch.testing.assert_close(out[:, :, row, col], expected)


@pytest.mark.parametrize("regular", [False, True])
def test_circular_convolution_commutes_with_circular_shifts(regular):
    """The control is the same layer with zero padding."""
    x = features("D4", 5, 7) if regular else images(5, 7, CHANNELS)
    conv = GroupConv2d("D4", 3, 2, 5) if regular else nn.Conv2d(3, 2, 5, padding=2)
    for layer, is_exact in ((CircularConv2d(conv.double(), 5), True), (conv, False)):
        gap = layer(x.roll((2, 3), (-2, -1))) - layer(x).roll((2, 3), (-2, -1))
        assert (gap.abs().max() < 1e-12) == is_exact


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_circular_convolution_keeps_the_equivariance_of_its_layer(name):
    conv, x = CircularConv2d(GroupDepthwiseConv2d(name, 2, 3), 3).double(), features(name, 5, 7, 2)
    assert error_of(conv, name, x) < 1e-12
    assert error_of(conv, name, x, act_out=act_on_image) > 0.1


def test_circular_convolution_takes_odd_windows_that_fit():
    with pytest.raises(InputError, match="kernel_size = 4 must be odd to keep the size; try 5"):
        CircularConv2d(nn.Identity(), 4)
    with pytest.raises(InputError, match=r"windows of 7 .* of 2 x 4 pixels more .* at most 5"):
        CircularConv2d(nn.Identity(), 7)(torch.zeros(1, 1, 2, 4))
