"""Textures: their direction from gradients, errors by hand, and a model that learns."""

import pytest
import torch

from turnwise.data.textures import axis_error, axis_field, oriented_textures
from turnwise.groups import act_on_image
from turnwise.layers.heads.fields import act_on_field_of
from turnwise.models import create_model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def structure_axis(images):
    """Return the axis along which the images change least, from the gradients of all pixels."""
    dx = (images[:, 0, 1:-1, 2:] - images[:, 0, 1:-1, :-2]) / 2
    dy = (images[:, 0, :-2, 1:-1] - images[:, 0, 2:, 1:-1]) / 2  # y points up
    return -torch.stack([(dx * dx - dy * dy).sum((1, 2)), (2 * dx * dy).sum((1, 2))], dim=1)


@pytest.mark.parametrize("degrees", [0, 30, 67.5, 90, 135])
def test_the_direction_is_that_of_the_gradients(degrees):
    angles = torch.full((32,), float(degrees))
    found = structure_axis(oriented_textures(angles, 48, seeded()))
    error = axis_error(found[:, :, None, None], axis_field(angles, 1))
    assert error.mean() < 4, "differences of neighbours are off by 2.5° at 30°"


def test_errors_of_lines_by_hand():
    truth = axis_field(torch.tensor([0.0, 0.0, 10.0, 170.0]), 2)
    other = axis_field(torch.tensor([90.0, 180.0, 25.0, 5.0]), 2)
    expected = torch.tensor([90.0, 0.0, 15.0, 15.0])
    torch.testing.assert_close(axis_error(3 * other, truth)[:, 1, 0], expected, atol=1e-3, rtol=0)


def test_a_rotated_texture_has_the_rotated_field():
    angles = torch.tensor([20.0])
    images, truth = oriented_textures(angles, 48, seeded()), axis_field(angles, 48)
    rotated = structure_axis(act_on_image("C4", 1, images))
    expected = act_on_field_of("axis", "C4", 1, truth)
    assert axis_error(rotated[:, :, None, None], expected[..., :1, :1]).max() < 5


def test_a_small_model_on_c16_learns_the_direction_and_rotates_exactly():
    """Two minutes of benchmarks/orientation_field.py reach a smaller error."""
    torch.manual_seed(0)
    model = create_model(
        "turnwise_unet_nano", group="C16", num_classes=2, image_size=24, readout="axis",
        widths=(32, 32), blocks=0,
    )  # fmt: skip
    optimiser, generator = torch.optim.AdamW(model.parameters(), lr=1e-2), seeded()
    for step in range(100):
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / 100)
        angles = 180 * torch.rand(8, generator=generator)
        images = oriented_textures(angles, 24, generator)
        optimiser.zero_grad()
        (model(images) - axis_field(angles, 24)).square().mean().backward()
        optimiser.step()
    model.eval()
    angles = torch.arange(0, 180, 5.0)
    images = oriented_textures(angles, 24, seeded(1))
    with torch.no_grad():
        error = axis_error(model(images), axis_field(angles, 24)).mean((1, 2))
        assert error.mean() < 5 and error.max() < 12, "45° by chance"
        model, images = model.double(), images[:2].double()
        found = model(images)
        for g in (4, 8, 12):
            rotated = model(act_on_image("C16", g, images))
            expected = act_on_field_of("axis", "C16", g, found)
            assert (rotated - expected).abs().max() < 1e-10 * found.abs().max()
