"""Mean and standard deviation are those of the images, for each channel."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import act_on_image, assert_equivariant, equivariance_error
from turnwise.layers.normalise import Normalise


def test_normalised_images_have_mean_0_and_standard_deviation_1():
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


def test_normalisation_is_equivariant():
    """The control is a mean for each pixel."""
    layer, x = Normalise(1).double(), torch.rand(1, 1, 4, 3).double()
    assert_equivariant(layer, "D4", x, act_out=act_on_image)
    mean = torch.rand(4, 4).double()
    assert equivariance_error(lambda x: x - mean, "D4", torch.rand(1, 1, 4, 4).double()) > 0.1


def test_definition_of_normalisation():
    """(image − mean) / std for each channel; without fitting, from [0, 1] to [−1, 1]."""
    layer, x = Normalise(2), torch.rand(1, 2, 3, 4)
    torch.testing.assert_close(layer(x), 2 * x - 1)
    layer.mean.copy_(torch.tensor([0.1, 0.2]))
    layer.spread.copy_(torch.tensor([0.3, 0.4]))
    for channel, (mean, std) in enumerate([(0.1, 0.3), (0.2, 0.4)]):
        torch.testing.assert_close(layer(x)[:, channel], (x[:, channel] - mean) / std)


def test_the_statistics_are_in_the_state_dict():
    layer = Normalise(1)
    layer.fit(torch.randint(0, 99, (2, 1, 3, 3), dtype=torch.uint8))
    other = Normalise(1)
    other.load_state_dict(layer.state_dict())
    assert other.mean == layer.mean


def test_another_number_of_channels_raises_an_error():
    layer = Normalise(1)
    layer.require_channels(torch.rand(2, 1, 3, 3))
    with pytest.raises(InputError, match="takes images with 1 channels, got 3"):
        layer.require_channels(torch.rand(2, 3, 3, 3))


def test_statistics_are_computed_from_uint8_images_only():
    """Images in [0, 1], converted to integers, would have mean 0."""
    layer = Normalise(2)
    with pytest.raises(InputError, match=r"in uint8, 0 to 255, got torch.float32; give \(255"):
        layer.fit(torch.rand(4, 2, 3, 3))
    for channels in (1, 3):
        with pytest.raises(InputError, match=f"takes images with 2 channels, got {channels}"):
            layer.fit(torch.zeros(4, channels, 3, 3, dtype=torch.uint8))
    assert layer.mean.tolist() == [0.5, 0.5]


def test_transposed_images_exchange_rows_and_columns():
    images = torch.rand(2, 3, 4, 5)
    plain, transposed = Normalise(3), Normalise(3, transposed=True)
    torch.testing.assert_close(transposed(images), plain(images).mT)
    assert repr(transposed) == "Normalise(transposed=True)"
