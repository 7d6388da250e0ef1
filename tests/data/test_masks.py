"""Masks: the classes of pixels as loops, paired augmentation, crops, resampling."""

import pytest
import torch

from turnwise.data.augment import Augmentation, augment, augment_pairs
from turnwise.data.masks import (
    BACKGROUND,
    BORDER,
    IGNORED,
    IGNORED_CLASS,
    INSIDE,
    fit_masks,
    ignore_corners,
    pixel_classes,
    rotate_masks,
)
from turnwise.data.transforms import fit_images
from turnwise.groups import act_on_image

KINDS = [torch.uint8, torch.int16]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_masks(dtype, size=12, count=3):
    return torch.randint(0, 5, (count, size, size), generator=seeded()).to(dtype)


def test_definition_of_the_classes_of_instances():
    """A border pixel belongs to an instance and touches, at a side or corner, another value."""
    labels = random_masks(torch.int16).repeat_interleave(3, 1).repeat_interleave(3, 2)
    labels[0, :4] = -1
    found = pixel_classes(labels)
    for i, image in enumerate(labels.tolist()):
        for r, row in enumerate(image):
            for c, value in enumerate(row):
                near = {
                    image[a][b]
                    for a in range(max(r - 1, 0), min(r + 2, len(image)))
                    for b in range(max(c - 1, 0), min(c + 2, len(row)))
                }
                expected = BACKGROUND if value == 0 else INSIDE if near == {value} else BORDER
                assert found[i, r, c] == (IGNORED_CLASS if value < 0 else expected)


def test_the_classes_rotate_with_the_labels():
    labels = random_masks(torch.int16).repeat_interleave(3, 1).repeat_interleave(3, 2)
    for g in range(8):
        rotated = pixel_classes(act_on_image("D4", g, labels))
        assert torch.equal(rotated, act_on_image("D4", g, pixel_classes(labels)))


def test_classes_are_kept_and_255_does_not_count():
    masks = torch.tensor([[[0, 3, 255]]], dtype=torch.uint8)
    assert pixel_classes(masks).tolist() == [[[0, 3, IGNORED_CLASS]]]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("fill", ["zeros", "reflect", "border"])
def test_masks_are_warped_as_their_images_are(dtype, fill):
    """An image that shows its own mask still shows it afterwards, but for interpolated edges."""
    masks = random_masks(dtype, 6, count=4).repeat_interleave(8, 1).repeat_interleave(8, 2)
    images = masks[:, None].float() / 10 + 0.1
    how = Augmentation(rotation=180.0, mirror=True, scale=0.2, elastic=1.0, shift=3.0)
    found, warped = augment_pairs(images, masks, how, seeded(), fill)
    assert warped.dtype == dtype and not torch.equal(warped, masks)
    counts = warped != IGNORED[dtype]
    shown = ((found[:, 0] - 0.1) * 10 - warped.float()).abs()[counts]
    assert (shown < 0.05).float().mean() > 0.6  # the rest is interpolated
    unpaired = ((found[:, 0] - 0.1) * 10 - masks.float()).abs()
    assert (unpaired < 0.05).float().mean() < 0.6  # control
    assert bool(counts.all()) == (fill != "zeros")


def test_the_images_of_pairs_are_those_without_masks():
    images, masks = torch.rand(3, 2, 12, 12, generator=seeded()), random_masks(torch.int16)
    for how in (
        Augmentation(rotation=45.0, share=0.5, crop=0.5, noise=0.1, erase=0.5, brightness=0.2),
        Augmentation(elastic=1.0, sharp=True),
        Augmentation(noise=0.1),
    ):
        found, _ = augment_pairs(images, masks, how, seeded(3))
        assert torch.equal(found, augment(images, how, seeded(3)))


def test_only_chosen_masks_are_warped():
    images, masks = torch.rand(16, 1, 12, 12), random_masks(torch.int16, count=16)
    how = Augmentation(rotation=180.0, share=0.5)
    found, warped = augment_pairs(images, masks, how, seeded())
    stays = (found == images).flatten(1).all(1)
    assert 0 < stays.sum() < 16
    same = (warped == masks).flatten(1).all(1)
    assert same[stays].all() and not same[~stays].all()


def test_outside_the_disc_nothing_counts():
    masks = random_masks(torch.uint8)
    _, found = augment_pairs(torch.rand(3, 1, 12, 12), masks, Augmentation(), seeded(), "disc")
    assert torch.equal(found, ignore_corners(masks))
    assert (found[:, 0, 0] == 255).all() and torch.equal(found[:, 6], masks[:, 6])


def test_rotations_by_90_degrees_are_exact_and_others_take_the_nearest():
    masks = random_masks(torch.int16)
    assert torch.equal(rotate_masks(masks, 90.0, "zeros"), act_on_image("C4", 1, masks))
    turned = rotate_masks(masks, 45.0, "zeros")
    assert set(turned.unique().tolist()) == {-1, 0, 1, 2, 3, 4}
    assert (rotate_masks(masks, 45.0, "reflect") >= 0).all()


@pytest.mark.parametrize(
    ("image_size", "crop", "kept"),
    [
        (None, 6, [3, 4, 5, 6, 7, 8]),
        (4, None, [1, 4, 7, 10]),
        (3, 9, [2, 5, 8]),
        (24, None, [n // 2 for n in range(24)]),
    ],
)
def test_masks_are_cropped_and_resampled_to_the_nearest_pixels(image_size, crop, kept):
    masks = random_masks(torch.int16)
    fitted = fit_masks(masks, image_size, crop)
    assert torch.equal(fitted, masks[:, kept][:, :, kept])
    images = fit_images(masks[:, None].byte(), image_size, None, crop)
    assert images.shape[2:] == fitted.shape[1:]
    if image_size is None:
        assert torch.equal(fitted, images[:, 0].short())
