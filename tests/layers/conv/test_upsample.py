"""Upsampling: definitions as loops on a rectangle, memory formats, a control."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, maps_to_regular, regular_to_maps
from turnwise.groups import equivariance_error
from turnwise.layers.conv.upsample import GroupUpsample2d, join_channels

act = action_on("regular")


def features(rows=3, cols=5, channels=2, memory=torch.contiguous_format):
    maps = torch.randn(1, 8 * channels, rows, cols, dtype=torch.float64)
    return maps_to_regular(maps.contiguous(memory_format=memory), 8)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_definition(mode):
    """The new pixel n of 2N lies at (n − ½) / 2 old pixels; beyond the last one it is repeated."""
    x = features()
    y = GroupUpsample2d("D4", mode)(x)
    assert y.shape == (1, 2, 8, 6, 10)
    for row in range(6):
        for col in range(10):
            at = [(n - 0.5) / 2 for n in (row, col)]
            expected = torch.zeros_like(x[..., 0, 0])
            for i in range(-1, 4):
                for j in range(-1, 6):
                    old = x[..., min(max(i, 0), 2), min(max(j, 0), 4)]
                    if mode == "nearest":
                        weight = float(i == row // 2 and j == col // 2)
                    else:
                        weight = max(0, 1 - abs(at[0] - i)) * max(0, 1 - abs(at[1] - j))
                    expected += weight * old
            torch.testing.assert_close(y[..., row, col], expected)


def test_control_a_transposed_convolution_is_off_centre():
    """With a window of 3 pixels and stride 2, as many U-Nets have it, the grid is shifted."""
    layer = torch.nn.ConvTranspose2d(16, 16, 3, stride=2, padding=1, output_padding=1, groups=16)
    torch.nn.init.constant_(layer.weight, 1.0)  # symmetric itself
    torch.nn.init.zeros_(layer.bias)

    def shifted(x):
        return maps_to_regular(layer.double()(regular_to_maps(x)), 8)

    x = features(4, 4)
    assert equivariance_error(shifted, "D4", x, act_in=act, act_out=act) > 0.1
    assert equivariance_error(GroupUpsample2d("D4"), "D4", x, act_in=act, act_out=act) < 1e-12


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_joined_channels_keep_the_memory_format(memory):
    parts = [features(channels=c, memory=memory) for c in (2, 3)]
    joined = join_channels(parts)
    assert torch.equal(joined, torch.cat(parts, dim=1))
    maps = regular_to_maps(joined)
    assert maps.data_ptr() == joined.data_ptr()  # a view
    assert maps.is_contiguous(memory_format=memory)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="unknown upsampling 'cubic'"):
        GroupUpsample2d("C4", "cubic")
