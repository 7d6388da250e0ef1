"""Changes of colour: each against its definition, image by image, and the identity where unused."""

import colorsys
import math

import pytest
import torch

from turnwise.data.appearance import (
    COLOUR_ONLY,
    NAMES,
    STAINS,
    Appearance,
    blur,
    change_appearance,
    change_stains,
    draw_strengths,
    recolour,
)
from turnwise.errors import InputError

LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def colours(count=6, rows=5, cols=7):
    return torch.rand(count, 3, rows, cols, dtype=torch.float64)


def many(value):
    return torch.tensor(value, dtype=torch.float64)


def test_the_default_does_nothing():
    images = colours()
    generator = seeded()
    assert change_appearance(images, Appearance(), generator) is images
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=seeded()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_option_changes_every_image_differently(name, channels):
    """But what is for colours leaves grey images as they are."""
    same = torch.rand(1, channels, 6, 8).repeat(8, 1, 1, 1)
    how = Appearance(**{name: 5.0 if name == "blur" else 0.5})
    changed = change_appearance(same, how, seeded())
    if channels == 1 and name in COLOUR_ONLY:
        assert torch.equal(changed, same)
    else:
        assert len(changed.flatten(1).unique(dim=0)) == 8
        assert changed.min() >= 0 and changed.max() <= 1


def test_the_generator_decides_everything():
    how = Appearance(brightness=0.3, hue=20.0, blur=1.0, stain=0.2, operations=2)
    images, generator = colours(), seeded(1)
    first = change_appearance(images, how, generator)
    assert torch.equal(first, change_appearance(images, how, seeded(1)))
    assert not torch.equal(first, change_appearance(images, how, generator))


def test_definition_of_brightness_contrast_and_saturation():
    """Pixel by pixel: first brightness, then contrast about the mean grey, then saturation."""
    images = colours(4, 3, 2)
    b, c, s = many([0.8, 1.0, 1.3, 1.1]), many([1.4, 0.7, 1.0, 1.2]), many([0.5, 1.6, 1.0, 0.9])
    found = recolour(images, b, c, s, torch.zeros(4, dtype=torch.float64))
    for image, result, bright, sharp, full in zip(images, found, b, c, s, strict=True):
        pixels = [bright * image[:, row, col] for row in range(3) for col in range(2)]
        mean = sum(pixel @ LUMA for pixel in pixels) / len(pixels)
        pixels = [mean + sharp * (pixel - mean) for pixel in pixels]
        pixels = [pixel @ LUMA + full * (pixel - pixel @ LUMA) for pixel in pixels]
        torch.testing.assert_close(result.flatten(1), torch.stack(pixels, dim=1))


def test_hue_keeps_luma_and_grey_and_moves_red_to_green_and_blue():
    """120° takes the hue of red near that of green, the other way near that of blue."""
    ones, angle = torch.ones(2, dtype=torch.float64), many([-2 * math.pi / 3, 2 * math.pi / 3])
    red = many([0.6, 0.3, 0.3]).view(1, 3, 1, 1).expand(2, 3, 1, 1)
    found = recolour(red, ones, ones, ones, angle)[..., 0, 0]
    torch.testing.assert_close(found @ LUMA, (red[..., 0, 0] @ LUMA))
    hues = sorted(360 * colorsys.rgb_to_hsv(*rgb)[0] for rgb in found.tolist())
    assert hues == pytest.approx([120, 240], abs=20)
    grey = torch.full((2, 3, 2, 2), 0.4, dtype=torch.float64)
    torch.testing.assert_close(recolour(grey, ones, ones, ones, angle), grey)


def test_a_full_rotation_of_the_hue_is_the_identity():
    images, ones = colours(2), torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(recolour(images, ones, ones, ones, 2 * math.pi * ones), images)


def test_grey_images_have_brightness_and_contrast():
    images = torch.rand(2, 1, 4, 5, dtype=torch.float64)
    b, c, unused = many([0.8, 1.2]), many([1.3, 0.6]), many([9.0, 9.0])
    found = recolour(images, b, c, unused, unused)
    for image, result, bright, sharp in zip(images, found, b, c, strict=True):
        mean = (bright * image).mean()
        torch.testing.assert_close(result, mean + sharp * (bright * image - mean))


def test_definition_of_the_stains():
    """A pixel of one stain alone gets more of it; the other factors do nothing."""
    vectors = torch.tensor(STAINS, dtype=torch.float64)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    for number, vector in enumerate(vectors):
        pixel = torch.exp(-0.8 * vector).view(1, 3, 1, 1)
        factors = torch.full((1, 3), 7.0, dtype=torch.float64)
        factors[0, number] = 1.25
        wanted = torch.exp(-1.25 * 0.8 * vector).view(1, 3, 1, 1)
        torch.testing.assert_close(change_stains(pixel, factors), wanted)


def test_white_stays_white_and_factors_of_one_change_nothing():
    white, factors = torch.ones(1, 3, 2, 2), torch.tensor([[1.5, 0.5, 1.2]])
    torch.testing.assert_close(change_stains(white, factors), white)
    images = 0.1 + 0.9 * colours(3)
    torch.testing.assert_close(change_stains(images, torch.ones(3, 3).double()), images)


def test_definition_of_the_blur():
    """Weights by the distance, normalised inside the image, one axis after the other."""
    images, std = torch.rand(2, 1, 4, 5, dtype=torch.float64), many([0.7, 1.6])
    found = blur(images, std)
    for image, result, sigma in zip(images[:, 0], found[:, 0], std.tolist(), strict=True):
        for row in range(4):
            for col in range(5):
                weights = torch.tensor(
                    [[math.exp(-((r - row) ** 2 + (c - col) ** 2) / (2 * sigma**2))
                      for c in range(5)] for r in range(4)], dtype=torch.float64,
                )  # fmt: skip
                wanted = (weights * image).sum() / weights.sum()
                torch.testing.assert_close(result[row, col], wanted)


def test_no_blur_is_exact_and_the_blur_commutes_with_quarter_turns():
    images = torch.rand(2, 3, 6, 6)
    assert torch.equal(blur(images, torch.zeros(2)), images)
    std = torch.tensor([0.5, 2.0])
    torch.testing.assert_close(
        blur(images, std).rot90(1, (2, 3)), blur(images.rot90(1, (2, 3)), std)
    )


def test_each_image_gets_as_many_operations_as_requested():
    """Every active one equally often; the others have a strength of 0, the identity."""
    active = ["brightness", "gamma", "hue", "stain"]
    drawn = draw_strengths(4000, 2, active, seeded())
    used = torch.stack([drawn[name].reshape(4000, -1).ne(0).any(1) for name in active], dim=1)
    assert (used.sum(1) == 2).all()
    assert (used.double().mean(0) - 0.5).abs().max() < 4.5 * 0.5 / math.sqrt(4000)


def test_more_operations_than_there_are_means_all():
    all_of_them = draw_strengths(9, None, ["gamma"], seeded())
    assert torch.equal(draw_strengths(9, 3, ["gamma"], seeded())["gamma"], all_of_them["gamma"])
    assert all_of_them["gamma"].min() < 0 < all_of_them["gamma"].max()


def test_other_draws_stay_when_one_more_change_is_requested():
    plain = draw_strengths(9, None, ["gamma"], seeded())
    more = draw_strengths(9, None, ["gamma", "blur"], seeded())
    assert torch.equal(plain["gamma"], more["gamma"])


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_precision_and_channels_stay(channels, precision):
    how = Appearance(**dict.fromkeys(NAMES, 0.3))
    images = torch.rand(2, channels, 4, 4, dtype=precision)
    changed = change_appearance(images, how, seeded())
    assert changed.dtype == precision and changed.shape == images.shape


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"brightness": -0.1}, r"brightness = -0\.1 must be finite and not negative\."),
        ({"gamma": math.inf}, "gamma = inf must be finite"),
        ({"hue": 200.0}, r"hue = 200\.0 must be 0 to 180 degrees\."),
        ({"stain": 1.0}, r"stain = 1\.0 is a share, from 0 to below 1\."),
        ({"operations": 0}, r"operations = 0 must be at least 1; null applies all\."),
    ],
)
def test_out_of_range(how, words):
    with pytest.raises(InputError, match=words):
        Appearance(**how)
