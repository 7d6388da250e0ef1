"""Mean and spread are those of the pictures, channel by channel."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import act_on_image, assert_equivariant
from turnwise.layers.normalise import Normalise


def test_fitted_pictures_have_mean_zero_and_spread_one():
    images = torch.randint(0, 256, (9, 3, 4, 5), dtype=torch.uint8)
    images[:, 1] //= 4
    layer = Normalise(3).double()
    layer.fit(images)
    normed = layer(images.double() / 255)
    torch.testing.assert_close(normed.mean((0, 2, 3)), torch.zeros(3).double())
    torch.testing.assert_close(normed.std((0, 2, 3), correction=0), torch.ones(3).double())


def test_a_constant_channel_does_not_divide_by_zero():
    layer = Normalise(1)
    layer.fit(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))
    assert layer(torch.zeros(1, 1, 3, 3)).isfinite().all()


def test_law():
    layer = Normalise(1).double()
    assert_equivariant(layer, "D4", torch.rand(1, 1, 4, 4).double(), act_out=act_on_image)


def test_it_travels_with_the_weights():
    layer = Normalise(1)
    layer.fit(torch.randint(0, 99, (2, 1, 3, 3), dtype=torch.uint8))
    other = Normalise(1)
    other.load_state_dict(layer.state_dict())
    assert other.mean == layer.mean


def test_other_channels_are_refused():
    layer = Normalise(1)
    layer.require_channels(torch.rand(2, 1, 3, 3))
    with pytest.raises(InputError, match="takes pictures with 1 channels, got 3"):
        layer.require_channels(torch.rand(2, 3, 3, 3))


def test_it_is_fitted_to_bytes_of_all_its_channels():
    """Of pictures in [0, 1] whole numbers would leave nothing: mean 0."""
    layer = Normalise(2)
    with pytest.raises(InputError, match=r"in uint8, 0 to 255, got torch.float32; give \(255"):
        layer.fit(torch.rand(4, 2, 3, 3))
    for channels in (1, 3):
        with pytest.raises(InputError, match=f"takes pictures with 2 channels, got {channels}"):
            layer.fit(torch.zeros(4, channels, 3, 3, dtype=torch.uint8))
    assert layer.mean.tolist() == [0.5, 0.5]
