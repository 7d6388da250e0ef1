"""Residual blocks and stems: equivariance, witness, negative control, definition, sizes."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, maps_to_regular
from turnwise.geometry.sizes import exact_sizes
from turnwise.groups import PlanarGroup, act_on_image, equivariance_errors
from turnwise.layers.conv.residual import GroupResidualBlock, ResidualStem

GRID = ["C1", "D1", "C2", "C4", "D4"]
act_on_features = action_on("regular")


def randomise(layer):
    """Draw biases and scales at random, run once so that no running statistic is initial."""
    for name, parameter in layer.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer.double()


def features(name, channels, rows, cols):
    order = PlanarGroup.named(name).order
    maps = torch.randn(2, order * channels, rows, cols, dtype=torch.float64)
    return maps_to_regular(maps, order)


def error_of(function, name, x, act_in=act_on_features):
    elements = PlanarGroup.named(name).grid_elements()
    actions = {"act_in": act_in, "act_out": act_on_features}
    return max(equivariance_errors(function, name, x, **actions, elements=elements))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_blocks_are_equivariant(name, stride, training):
    block, x = randomise(GroupResidualBlock(name, 2, 3, stride)), features(name, 2, 6, 4)
    block(5 * x + 1)
    block.train(training)
    assert error_of(block, name, x) < 1e-10
    assert block(x).shape[3:] == (6 // stride, 4 // stride)


def test_control_an_odd_side_is_sampled_off_centre():
    block = randomise(GroupResidualBlock("D4", 2, 3, stride=2)).eval()
    assert error_of(block, "D4", features("D4", 2, 7, 7)) > 1e-3


def test_control_a_wrong_table_breaks_equivariance():
    block = randomise(GroupResidualBlock("C4", 2, 2)).eval()
    table = block.conv_in.filters.source_by_element
    table.copy_(table.flip(0))
    assert error_of(block, "C4", features("C4", 2, 5, 5)) > 1e-3


@pytest.mark.parametrize("stride", [1, 2])
def test_definition_of_a_block(stride):
    block, x = randomise(GroupResidualBlock("D3", 2, 3, stride)), features("D3", 2, 6, 4)
    inner = block.norm_in(block.conv_in(x)).clamp(min=0)
    if stride == 2:
        short = torch.stack(
            [x[..., r : r + 2, c : c + 2].mean((-2, -1)) for r in (0, 2, 4) for c in (0, 2)], -1
        ).unflatten(-1, (3, 2))
    else:
        short = x
    point, norm = block.shortcut[-2], block.shortcut[-1]
    expected = norm(point(short)) + block.norm_out(block.conv_out(inner))
    torch.testing.assert_close(block(x), expected.clamp(min=0))


def test_a_block_of_one_width_adds_its_input():
    block, x = GroupResidualBlock("C4", 2, 2).double(), features("C4", 2, 4, 4)
    nn.init.zeros_(block.norm_out.norm.weight)
    torch.testing.assert_close(block(x), x.clamp(min=0))


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("name", [*GRID, "C8"])
def test_stems_are_equivariant_and_depend_on_the_image(name, stride):
    stem = randomise(ResidualStem(name, 2, (2, 3), depth=1, stride=stride)).eval()
    images = torch.randn(2, 2, 8 * stride, 4 * stride, dtype=torch.float64)
    assert error_of(stem, name, images, act_on_image) < 1e-10
    out = stem(images)
    assert out.shape[1:] == (3, PlanarGroup.named(name).order, 4, 2)
    assert (out[0] - out[1]).abs().max() > 1e-3


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_exact_sizes_of_a_stem_are_the_multiples_of_its_strides(stride):
    stem = ResidualStem("C4", 1, (2, 2, 2), depth=1, stride=stride)
    step = 4 * stride
    assert exact_sizes(5 * step, stem.stages) == (5 * step,)
    assert exact_sizes(5 * step + 1, stem.stages) == (5 * step, 6 * step)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": ()}, "one stage or more"),
        ({"widths": (2,), "depth": 0}, "depth = 0"),
        ({"widths": (2,), "stride": 3}, "stride = 3 must be 1 or even"),
    ],
)
def test_refused_stems(options, words):
    with pytest.raises(InputError, match=words):
        ResidualStem("C4", 1, **options)


def test_a_block_with_another_stride_is_refused():
    with pytest.raises(InputError, match="stride = 3 must be 1 or 2"):
        GroupResidualBlock("C4", 2, 2, stride=3)
