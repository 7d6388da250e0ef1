"""The plain baselines: layer by layer as described, of the stated sizes, and not invariant."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import equivariance_error
from turnwise.models import create_model

BOTH = pytest.mark.parametrize("name", ["small_alexnet", "small_vgg"])


def parameter_count(name, **options):
    return sum(p.numel() for p in create_model(name, image_size=32, **options).parameters())


def test_numbers_of_parameters():
    """Counted by hand: kernels and biases of the convolutions, then the classifier."""
    shapes = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)]
    convolutions = sum(old * new * side**2 + new for old, new, side in shapes)
    assert parameter_count("small_alexnet", in_chans=3) == convolutions + 256 * 10 + 10 == 2_472_266
    assert parameter_count("small_alexnet") == 2_472_266 - 2 * 64 * 121
    widths = [3, 16, 16, 32, 32, 64, 64, 64, 128, 128, 128, 128, 128, 128]
    pairs = pairwise(widths)
    expected = sum(9 * old * new + 2 * new for old, new in pairs) + 128 * 10 + 10
    assert parameter_count("small_vgg", in_chans=3) == expected < 1_000_000


@BOTH
@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3), (33, 1), (64, 1)])
def test_shapes(name, side, channels):
    model = create_model(name, image_size=side, in_chans=channels, num_classes=7)
    images = torch.rand(2, channels, side, side)
    maps = model.forward_features(images)
    rest = -(-side // 32)
    assert maps.shape[2:] == (rest, rest)
    assert model(images).shape == (2, 7)
    assert model.exact_size(side) == (side,)


def test_definition_of_small_alexnet():
    model = create_model("small_alexnet", widths=(2, 3, 4, 3, 2)).double().eval()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    layers = [part for part in model.features if isinstance(part, torch.nn.Conv2d)]
    maps = images
    for number, (layer, (stride, padding)) in enumerate(
        zip(layers, [(4, 5), (1, 2), (1, 1), (1, 1), (1, 1)], strict=True)
    ):
        maps = F.conv2d(maps, layer.weight, layer.bias, stride, padding).clamp(min=0)
        if number in (0, 1, 4):
            odd = maps.shape[-1] % 2
            padded = F.pad(maps, (0, odd, 0, odd), value=float("-inf"))
            maps = padded.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1))
    expected = maps.mean((2, 3)) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(images), expected)


def test_dropout_is_on_in_training_only():
    images = torch.rand(4, 1, 28, 28)
    model = create_model("small_alexnet", dropout=0.5)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@BOTH
def test_it_is_not_invariant(name):
    """Its logits change under rotations, and differ between images."""
    torch.manual_seed(0)
    model = create_model(name, image_size=28).double().eval()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    assert equivariance_error(model, "C4", images) > 1e-4
    assert (model(images)[0] - model(images)[1]).abs().max() > 1e-6


@BOTH
def test_its_certificate_fails(name):
    torch.manual_seed(0)
    model = create_model(name, image_size=28).eval()
    scope = Scope(shifts=0, layers=False)
    assert not certify(model, "C4", torch.rand(2, 1, 28, 28), angles=1, scope=scope).holds


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("small_alexnet", {"widths": (1, 2)}, r"widths = \[1, 2\] must have 5 entries"),
        ("small_vgg", {"widths": (1, 2, 3, 4, 0)}, r"widths\[4\] = 0 must be from 1"),
        ("small_alexnet", {"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
    ],
)
def test_bad_options_are_refused(name, options, words):
    with pytest.raises(InputError, match=words):
        create_model(name, **options)


@BOTH
def test_wrong_channels(name):
    with pytest.raises(InputError, match="channel"):
        create_model(name)(torch.rand(1, 3, 28, 28))
