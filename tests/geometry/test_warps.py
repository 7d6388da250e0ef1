"""Warps agree with the exact action where there is one, and with the matrices everywhere."""

import math

import pytest
import torch

from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import rotate_image, rotation_matrices, warp_image, warp_images
from turnwise.groups import PlanarGroup, act_on_image


def blob(x, y, size=21):
    """A smooth spot at (x, y), which tells where the picture went."""
    offset = pixel_centres(size, size) - torch.tensor([x, y])
    return torch.exp(-offset.square().sum(-1) / 6)[None, None]


@pytest.mark.parametrize("quarters", range(-1, 5))
def test_quarter_turns_are_exact(quarters):
    picture = torch.rand(2, 1, 4, 6, dtype=torch.float64)
    exact = act_on_image(PlanarGroup.named("C4"), quarters % 4, picture)
    assert torch.equal(rotate_image(picture, 90.0 * quarters), exact)


@pytest.mark.parametrize("name", ["D4", "D1"])
def test_interpolation_agrees_with_the_exact_action(name):
    """The sampled path, forced, on elements that also have the exact one."""
    group, picture = PlanarGroup.named(name), torch.rand(2, 3, 5, 5, dtype=torch.float64)
    for g in range(group.order):
        sampled = warp_images(picture, group.matrices()[g].expand(2, 2, 2))
        torch.testing.assert_close(sampled, act_on_image(group, g, picture))
        assert torch.equal(warp_image(group, g, picture), act_on_image(group, g, picture))


@pytest.mark.parametrize("degrees", [30.0, 45.0, 200.0, -75.0])
def test_the_spot_goes_where_the_angle_says(degrees):
    angle = math.radians(degrees)
    there = blob(6 * math.cos(angle), 6 * math.sin(angle))
    assert (
        rotate_image(blob(6.0, 0.0), degrees) - there
    ).abs().max() < 0.1  # interpolation blurs; a wrong angle gives 1


def test_finer_elements_turn_and_mirror():
    """Element r s of D8: mirror x, then turn by 45°."""
    half = 6 * math.sqrt(0.5)
    moved = warp_image(PlanarGroup.named("D8"), 9, blob(-6.0, 0.0))
    assert (
        moved - blob(half, half)
    ).abs().max() < 0.1  # interpolation blurs; a wrong angle gives 1


def test_shift_and_scale():
    matrices = torch.eye(2).double().expand(1, 2, 2)
    moved = warp_images(blob(2.0, 1.0), matrices, torch.tensor([[3.0, -4.0]]).double())
    torch.testing.assert_close(moved, blob(5.0, -3.0), atol=1e-3, rtol=0)
    doubled = warp_images(blob(2.0, 1.0), 2 * matrices)
    row, col = divmod(int(doubled.argmax()), 21)
    assert pixel_centres(21, 21)[row, col].tolist() == [4.0, 2.0]


def test_each_picture_has_its_own_angle():
    pictures = torch.cat([blob(6.0, 0.0), blob(6.0, 0.0)])
    moved = warp_images(pictures, rotation_matrices(torch.tensor([0.0, math.pi / 2]).double()))
    torch.testing.assert_close(moved[:1], pictures[:1])
    torch.testing.assert_close(moved[1:], blob(0.0, 6.0))


def test_outside_is_zero():
    turned = rotate_image(torch.ones(1, 1, 8, 8), 45.0)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 4, 4] == pytest.approx(1.0)


def test_a_bend_that_is_everywhere_the_same_is_a_shift():
    images = torch.rand(2, 1, 5, 7, dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    step = torch.tensor([1.0, -2.0], dtype=torch.float64)
    bends = step[None, :, None, None].expand(2, 2, 5, 7)
    shifted = warp_images(images, identity, -step.expand(2, 2))
    assert torch.allclose(warp_images(images, identity, None, bends), shifted, atol=1e-12)
    assert not torch.allclose(shifted, images)


def test_cubics_blur_less_than_straight_lines():
    """A smooth wave of 6 pixels, moved by half a pixel and compared with the wave itself."""
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
