"""The published GE-ViTs on fewer tokens: the mean patch, the stem of filters, symmetry, sizes."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.groups import act_on_image, equivariance_error
from turnwise.models import create_model
from turnwise.models.modern_eq_vit import InterpolatedGCNN, MeanPatches

SMALL = {"heads": 2, "width": 6, "embedding": 12, "in_chans": 3}


def small(**options):
    torch.manual_seed(0)
    return create_model("modern_eq_vit", "C4", 5, **SMALL | options).double().eval()


def test_definition_of_a_mean_patch():
    """The mean over all eight versions of each patch of a linear map, as published."""
    stem = MeanPatches(2, 5, 3).double()
    images = torch.rand(1, 2, 6, 9).double()
    for row in range(2):
        for col in range(3):
            patch = images[:, :, 3 * row : 3 * row + 3, 3 * col : 3 * col + 3]
            mapped = [stem.project(act_on_image("D4", g, patch).flatten(1)) for g in range(8)]
            expected = stem.norm(torch.stack(mapped).mean(dim=0))
            torch.testing.assert_close(stem(images)[:, :, row, col], expected)


def test_the_mean_patch_forgets_how_a_patch_is_oriented():
    stem, images = MeanPatches(1, 4, 2).double(), torch.rand(1, 1, 4, 4).double()
    moved = images.clone()
    moved[:, :, :2, :2] = images[:, :, :2, :2].rot90(1, (2, 3))
    torch.testing.assert_close(stem(moved), stem(images))
    moved[:, :, :2, :2] += torch.rand(2, 2)
    assert (stem(moved) - stem(images)).abs().max() > 1e-3


def test_definition_of_the_stem_of_filters():
    stem, maps = InterpolatedGCNN(3).double(), torch.rand(1, 3, 40, 40).double()
    expected = maps
    for conv in stem.convs:
        expected = F.conv2d(expected, conv.weight)
        expected = (expected - expected.mean()) / (expected.var(correction=0) + 1e-5).sqrt()
        expected = expected.relu()
    areas = [(8 * i // 6, -(-8 * (i + 1) // 6)) for i in range(6)]
    found = stem(maps)
    for row, (top, bottom) in enumerate(areas):
        for col, (left, right) in enumerate(areas):
            area = expected[0, :8, top:bottom, left:right].amax()
            torch.testing.assert_close(found[0, 0, row, col], area)


def test_patches_are_invariant_and_the_output_moves():
    """Control: with the stem of filters it is not, and does not claim to be."""
    model, images = small(image_size=16), torch.rand(2, 3, 16, 16).double()
    assert model.group.name == "C4"
    assert equivariance_error(model, "C4", images) < 1e-8
    assert (model(images)[0] - model(images)[1]).abs().max() > 1e-3
    filters = small(stem="g_cnn", window=5, image_size=40)
    assert filters.group.name == "C1"
    assert equivariance_error(filters, "C4", torch.rand(1, 3, 40, 40).double()) > 1e-4


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="image_size = 17 does not fit the stem 'patches'"):
        small(image_size=17)
    with pytest.raises(InputError, match="image_size = 28 does not fit the stem 'g_cnn'; try 38"):
        small(stem="g_cnn", image_size=28)
