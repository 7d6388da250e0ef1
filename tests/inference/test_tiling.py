"""Maps by tiles: exact for whole images of any size, seams, controls, what is written."""

import numpy as np
import pytest
import torch
from torch import nn

from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor
from turnwise.inference.tiling import Tiling, label_image, overlay, predict_map
from turnwise.models import create_model


def predictor_of(name="turnwise_unet_nano", group="D4", **options):
    torch.manual_seed(0)
    given = {"num_classes": 3, "in_chans": 1, "image_size": 16, "widths": (16, 32), **options}
    return Predictor(create_model(name, group=group, **given), batch_size=5, precision="float64")


def image_of(rows, cols, channels=1):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(channels, rows, cols, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("group", ["C4", "D4", "D2"])
@pytest.mark.parametrize("shape", [(16, 16), (40, 33), (17, 50), (11, 16), (10, 7)])
def test_the_map_of_the_rotated_image_is_the_rotated_map(group, shape):
    """Sides that are odd, that tiles do not divide, or smaller than a tile."""
    predictor, image = predictor_of(group=group), image_of(*shape)
    found = predict_map(predictor, image, Tiling(16, 5))
    assert found.shape == (3, *shape)
    for g in range(PlanarGroup.named(group).order):
        rotated = predict_map(predictor, act_on_image(group, g, image), Tiling(16, 5))
        assert (rotated - act_on_image(group, g, found)).abs().max() < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "precision", "most"), [(500, "float64", 1e-10), (1000, "float32", 1e-4)]
)
def test_whole_images_of_many_tiles_are_exact(side, precision, most):
    """One rotation and one reflection; both together give the others."""
    model = create_model("turnwise_unet_nano", group="D4", num_classes=3, image_size=128)
    predictor = Predictor(model, batch_size=4, precision=precision)
    image, tiling = image_of(side, side).to(getattr(torch, precision)), Tiling(128, 32)
    found = predict_map(predictor, image, tiling)
    assert found.std() > 1e-3
    for g in (1, 4):
        rotated = predict_map(predictor, act_on_image("D4", g, image), tiling)
        assert (rotated - act_on_image("D4", g, found)).abs().max() < most * found.abs().max()


def test_control_the_plain_network_is_not_equivariant():
    predictor, image = predictor_of("unet"), image_of(30, 30)
    found = predict_map(predictor, image, Tiling(16, 4))
    rotated = predict_map(predictor, image.rot90(1, (1, 2)), Tiling(16, 4))
    assert (rotated - found.rot90(1, (1, 2))).abs().max() > 1e-3


def test_control_tiles_from_one_corner_are_not_exact():
    """With starts 0, 11, 22, … and a shorter last step, as many programs have them."""
    predictor, image = predictor_of(), image_of(30, 30)

    def from_corner(x):
        total, weight = torch.zeros(3, 30, 30).double(), torch.zeros(30, 30).double()
        for r in (0, 11, 14):
            for c in (0, 11, 14):
                total[:, r : r + 16, c : c + 16] += predictor.probabilities(
                    x[None, :, r : r + 16, c : c + 16]
                )[0]
                weight[r : r + 16, c : c + 16] += 1
        return total / weight

    turned = from_corner(image.rot90(2, (1, 2)))
    assert (turned - from_corner(image).rot90(2, (1, 2))).abs().max() > 1e-4


class Pointwise(nn.Module):
    """A model that looks at one pixel: tiles must not show."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))

    def forward(self, images):
        return images * self.weight[:, None, None]


def test_probabilities_of_single_pixels_have_no_seams():
    image = image_of(45, 20)
    predictor = Predictor(Pointwise(), precision="float64")
    whole = predictor.probabilities(image[None])[0].double()
    torch.testing.assert_close(predict_map(predictor, image, Tiling(16, 3)), whole)


def test_labels_and_overlays():
    """Two squares: instances by number, classes as they are; outlines in red."""
    classes = torch.zeros(24, 24, dtype=torch.long)
    for left in (2, 12):
        classes[2:12, left : left + 8], classes[3:11, left + 1 : left + 7] = 2, 1
    found = nn.functional.one_hot(classes, 3).permute(2, 0, 1).double()
    predictor = Predictor(nn.Conv2d(1, 3, 1))
    predictor.kind = make_kind("instances", ("a", "b", "c"))
    labels = label_image(predictor, found)
    assert labels.dtype == np.uint16 and labels.max() == 2 and (labels > 0).sum() == 160
    predictor.kind = make_kind("mask", ("a", "b", "c"))
    assert np.array_equal(label_image(predictor, found), classes.numpy())
    shown = overlay(torch.full((1, 24, 24), 100, dtype=torch.uint8), labels)
    assert shown[5, 5].tolist() == [100] * 3 and shown[2, 2].tolist() == [255, 32, 32]


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="tiles of 15 pixels cannot be exact; try 14 or 16"):
        predict_map(predictor_of(), image_of(20, 20), Tiling(15, 3))
    classifier = Predictor(create_model("vit", image_size=16, width=16, heads=2, depth=1))
    with pytest.raises(InputError, match="and no map; use a model with one output per pixel"):
        predict_map(classifier, image_of(20, 20), Tiling(16, 3))
