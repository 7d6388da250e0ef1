"""Warps agree with the exact action on the grid, and with the matrices everywhere."""

import math

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import (
    FILLS,
    choose_fill,
    fill_corners,
    inscribed_disc,
    keep_disc,
    rotate_image,
    rotation_matrices,
    warp_image,
    warp_images,
)
from turnwise.groups import PlanarGroup, act_on_image


def blob(x, y, size=21):
    """Return an image of a smooth spot at (x, y)."""
    offset = pixel_centres(size, size) - torch.tensor([x, y])
    return torch.exp(-offset.square().sum(-1) / 6)[None, None]


@pytest.mark.parametrize("quarters", range(-1, 5))
def test_rotations_by_multiples_of_90_degrees_are_exact(quarters):
    image = torch.rand(2, 1, 4, 6, dtype=torch.float64)
    exact = act_on_image(PlanarGroup.named("C4"), quarters % 4, image)
    assert torch.equal(rotate_image(image, 90.0 * quarters), exact)


@pytest.mark.parametrize("name", ["D4", "D1"])
def test_interpolation_agrees_with_the_exact_action(name):
    """Interpolation, on elements that also have an exact action."""
    group, image = PlanarGroup.named(name), torch.rand(2, 3, 5, 5, dtype=torch.float64)
    for g in range(group.order):
        sampled = warp_images(image, group.matrices()[g].expand(2, 2, 2))
        torch.testing.assert_close(sampled, act_on_image(group, g, image))
        assert torch.equal(warp_image(group, g, image), act_on_image(group, g, image))


@pytest.mark.parametrize("degrees", [30.0, 45.0, 200.0, -75.0])
def test_a_spot_is_rotated_by_the_angle(degrees):
    angle = math.radians(degrees)
    expected = blob(6 * math.cos(angle), 6 * math.sin(angle))
    error = (rotate_image(blob(6.0, 0.0), degrees) - expected).abs().max()
    assert error < 0.1  # interpolation blurs; a wrong angle gives 1


def test_finer_elements_rotate_and_reflect():
    """Element r s of D8: reflect x, then rotate by 45°."""
    half = 6 * math.sqrt(0.5)
    warped = warp_image(PlanarGroup.named("D8"), 9, blob(-6.0, 0.0))
    assert (warped - blob(half, half)).abs().max() < 0.1  # a wrong angle gives 1


def test_shift_and_scale():
    matrices = torch.eye(2).double().expand(1, 2, 2)
    shifted = warp_images(blob(2.0, 1.0), matrices, torch.tensor([[3.0, -4.0]]).double())
    torch.testing.assert_close(shifted, blob(5.0, -3.0), atol=1e-3, rtol=0)
    doubled = warp_images(blob(2.0, 1.0), 2 * matrices)
    row, col = divmod(int(doubled.argmax()), 21)
    assert pixel_centres(21, 21)[row, col].tolist() == [4.0, 2.0]


def test_each_image_has_its_own_angle():
    images = torch.cat([blob(6.0, 0.0), blob(6.0, 0.0)])
    warped = warp_images(images, rotation_matrices(torch.tensor([0.0, math.pi / 2]).double()))
    torch.testing.assert_close(warped[:1], images[:1])
    torch.testing.assert_close(warped[1:], blob(0.0, 6.0))


def test_pixels_outside_the_image_are_zero():
    rotated = rotate_image(torch.ones(1, 1, 8, 8), 45.0)
    assert rotated[0, 0, 0, 0] == 0
    assert rotated[0, 0, 4, 4] == pytest.approx(1.0)


def test_equal_displacements_of_all_pixels_are_a_shift():
    images = torch.rand(2, 1, 5, 7, dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    step = torch.tensor([1.0, -2.0], dtype=torch.float64)
    displacements = step[None, :, None, None].expand(2, 2, 5, 7)
    shifted = warp_images(images, identity, -step.expand(2, 2))
    assert torch.allclose(warp_images(images, identity, None, displacements), shifted, atol=1e-12)
    assert not torch.allclose(shifted, images)


def test_bicubic_interpolation_blurs_less_than_bilinear():
    """A smooth wave of period 6, shifted by half a pixel and compared with the exact one."""
    identity = torch.eye(2, dtype=torch.float64)[None]
    half = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    cols = torch.arange(24, dtype=torch.float64)

    def wave(shift):
        return torch.sin((cols - shift) * 2 * torch.pi / 6).expand(1, 1, 24, 24)

    inside = (..., slice(6, -6), slice(6, -6))
    errors = {
        mode: (warp_images(wave(0), identity, half, None, mode) - wave(0.5))[inside].abs().max()
        for mode in ("bilinear", "bicubic")
    }
    assert errors["bicubic"] < errors["bilinear"] / 2


def slope(size=9):
    """Return an image that grows to the right, from 0.1 to 0.9."""
    return torch.linspace(0.1, 0.9, size, dtype=torch.float64).expand(1, 1, size, size)


def shifted_right(fill, steps=3):
    """Return the top row of `slope`, shifted to the right by whole pixels."""
    identity = torch.eye(2, dtype=torch.float64)[None]
    shift = torch.tensor([[float(steps), 0.0]], dtype=torch.float64)
    return warp_images(slope(), identity, shift, fill=fill)[0, 0, 0]


def test_each_fill_mode_by_hand():
    """Shifted by three pixels, three pixels enter from outside, nearest last."""
    entering = {
        "reflect": [0.3, 0.2, 0.1],
        "border": [0.1, 0.1, 0.1],
        "mean": [0.5, 0.5, 0.5],
        "zeros": [0.0, 0.0, 0.0],
    }
    for fill, expected in entering.items():
        row = shifted_right(fill)
        assert row[:3].tolist() == pytest.approx(expected), fill
        torch.testing.assert_close(row[3:], slope()[0, 0, 0, :-3])


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("shape", [(7, 7), (6, 9)])
def test_fill_modes_agree_inside_the_disc(fill, shape):
    """A rotation about the centre needs pixels from outside only beyond the inscribed disc."""
    images = torch.rand(2, 3, *shape, dtype=torch.float64)
    inside = inscribed_disc(*shape) & (pixel_centres(*shape).norm(dim=-1) < min(shape) / 2 - 1)
    rotated = rotate_image(images, 30.0, fill)
    torch.testing.assert_close(rotated[..., inside], rotate_image(images, 30.0)[..., inside])
    assert (fill == "zeros") == torch.equal(rotated, rotate_image(images, 30.0))


@pytest.mark.parametrize("fill", ["reflect", "border", "mean"])
def test_a_constant_image_has_no_corners(fill):
    grey = torch.full((1, 1, 8, 8), 0.4, dtype=torch.float64)
    torch.testing.assert_close(rotate_image(grey, 45.0, fill), grey)
    assert not torch.allclose(rotate_image(grey, 45.0, "zeros"), grey)


def test_only_the_disc_is_shown_also_upright():
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    disc = inscribed_disc(8, 8)
    assert 0.6 < disc.double().mean() < 0.9
    for degrees in (0.0, 30.0, 90.0):
        rotated = rotate_image(images, degrees, "disc")
        mean = rotated[..., disc].mean(-1, keepdim=True)
        torch.testing.assert_close(rotated[..., ~disc], mean.expand(2, 3, int((~disc).sum())))
    assert torch.equal(rotate_image(images, 0.0, "disc")[..., disc], images[..., disc])


@pytest.mark.parametrize("element", range(8))
def test_the_disc_is_symmetric(element):
    group, image = PlanarGroup.named("D4"), torch.rand(1, 1, 9, 9, dtype=torch.float64)
    masked = keep_disc(act_on_image(group, element, image))
    torch.testing.assert_close(masked, act_on_image(group, element, keep_disc(image)))


@pytest.mark.parametrize("fill", ["reflect", "border", "mean", "zeros"])
def test_the_control_has_the_corners_of_the_rotation_and_the_rest_of_the_image(fill):
    images = torch.rand(2, 3, 9, 9, dtype=torch.float64)
    control, rotated = fill_corners(images, 45.0, fill), rotate_image(images, 45.0, fill)
    octagon = pixel_centres(9, 9).abs().sum(-1) <= 4.5 * math.sqrt(2)  # the rotated square
    assert 0.6 < octagon.double().mean() < 0.95
    assert torch.equal(control[..., octagon], images[..., octagon])
    assert torch.equal(control[..., ~octagon], rotated[..., ~octagon])


def test_the_control_of_an_exact_rotation_changes_nothing():
    images = torch.rand(2, 1, 6, 6)
    assert torch.equal(fill_corners(images, 90.0, "zeros"), images)
    assert torch.equal(fill_corners(images, 45.0, "disc"), keep_disc(images))


@pytest.mark.parametrize("scale", [1, 255])
def test_black_borders_are_filled_with_zeros(scale):
    """Of uint8 images, and of images in [0, 1]."""
    images = torch.rand(20, 3, 8, 8)
    framed = torch.nn.functional.pad(images[..., 1:-1, 1:-1], (1, 1, 1, 1))
    kind = torch.uint8 if scale == 255 else torch.float32
    assert choose_fill("auto", (scale * framed).to(kind)) == "zeros"
    assert choose_fill("auto", (scale * images).to(kind)) == "reflect"
    assert choose_fill("mean", framed) == "mean"


def test_a_border_that_is_black_in_one_channel_is_not_black():
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    images[:, 1] = 100
    assert choose_fill("auto", images) == "reflect"


def test_an_unknown_fill_mode_is_refused():
    with pytest.raises(InputError, match="Did you mean 'reflect'"):
        rotate_image(torch.rand(1, 1, 4, 4), 45.0, "reflct")
