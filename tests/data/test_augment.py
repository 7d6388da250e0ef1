"""Augmentation: off by default, within its ranges, the same for the same generator."""

import math

import pytest
import torch

from turnwise.data.augment import (
    ERASED,
    Augmentation,
    augment,
    augment_pairs,
    erase_squares,
    random_affine,
    random_crops,
    random_displacements,
    with_policy,
)
from turnwise.errors import InputError
from turnwise.geometry.warps import keep_disc
from turnwise.groups import PlanarGroup

MANY = 4000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(count=3, rows=6, cols=6):
    return torch.rand(count, 1, rows, cols)


def affine(seed=0, **how):
    return random_affine(MANY, Augmentation(**how), seeded(seed))


def reaches(values, low, high):
    """Inside the range, and with 4000 draws within a hundredth of it from both ends."""
    near = (high - low) / 100
    assert low <= values.min() < low + near
    assert high - near < values.max() <= high


def test_the_default_does_nothing():
    images = random_images()
    assert torch.equal(augment(images, Augmentation(), seeded()), images)
    assert not Augmentation().warps
    assert not Augmentation(noise=0.1).warps


@pytest.mark.parametrize(
    "how",
    [
        {"rotation": 1.0},
        {"shift": 1.0},
        {"scale": 0.1},
        {"mirror": True},
        {"stretch": 0.1},
        {"elastic": 0.5},
        {"crop": 0.5},
    ],
)
def test_every_option_changes_pixels(how):
    images = random_images(count=16)
    assert Augmentation(**how).warps
    assert not torch.equal(augment(images, Augmentation(**how), seeded()), images)


def test_by_default_the_matrices_are_the_identity():
    matrices, shifts = affine()
    assert torch.equal(matrices, torch.eye(2).expand(MANY, 2, 2))
    assert not shifts.any()


def test_the_generator_decides_everything():
    """The same state gives the same images; another state, or the next draw, gives others."""
    how = Augmentation(rotation=180.0, shift=2.0, scale=0.2, mirror=True, noise=0.1)
    images, generator = random_images(), seeded(1)
    first = augment(images, how, generator)
    torch.rand(7)  # the global generator is not used
    assert torch.equal(first, augment(images, how, seeded(1)))
    assert not torch.equal(first, augment(images, how, seeded(2)))
    assert not torch.equal(first, augment(images, how, generator))


def test_every_image_is_warped_differently():
    same = random_images(count=1).repeat(8, 1, 1, 1)
    warped = augment(same, Augmentation(rotation=90.0), seeded())
    assert len(warped.flatten(1).unique(dim=0)) == 8


@pytest.mark.parametrize("most", [15.0, 180.0])
def test_angles_fill_their_range(most):
    matrices, _ = affine(rotation=most)
    angles = torch.rad2deg(torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    reaches(angles, -most - 1e-3, most + 1e-3)
    assert angles.mean().abs() < most / 20


def test_shifts_fill_their_range_along_both_axes():
    _, shifts = affine(shift=3.0)
    reaches(shifts[:, 0], -3, 3)
    reaches(shifts[:, 1], -3, 3)
    assert torch.corrcoef(shifts.T)[0, 1].abs() < 0.1


def test_scales_fill_their_range_evenly_in_the_logarithm():
    """As many images shrink as grow."""
    matrices, _ = affine(scale=0.25)
    scales = torch.linalg.det(matrices).sqrt()
    reaches(scales, 1 / 1.25 - 1e-5, 1.25 + 1e-5)
    assert scales.log().mean().abs() < 0.01


def test_half_of_the_images_are_flipped():
    """4000 fair throws lie within 4.5 standard deviations of the half."""
    matrices, _ = affine(mirror=True)
    flipped = torch.linalg.det(matrices) < 0
    assert (flipped.double().mean() - 0.5).abs() < 4.5 * 0.5 / math.sqrt(MANY)


def test_a_flip_swaps_left_and_right():
    """x -> −x and y stays: each image is itself or its flip along the columns, and both occur."""
    images = random_images(count=32, rows=4, cols=5)
    warped = augment(images, Augmentation(mirror=True), seeded())
    kept = torch.isclose(warped, images, atol=1e-5).flatten(1).all(1)
    flipped = torch.isclose(warped, images.flip(-1), atol=1e-5).flatten(1).all(1)
    assert (kept ^ flipped).all()
    assert 0 < kept.sum() < 32


@pytest.mark.parametrize("std", [0.05, 0.5])
def test_noise_has_the_requested_standard_deviation(std):
    images = torch.zeros(4, 1, 50, 50)
    noise = augment(images, Augmentation(noise=std), seeded())
    assert noise.std() == pytest.approx(std, rel=0.05)
    assert noise.mean().abs() < std / 20
    assert noise.abs().max() > 2.5 * std  # normal, not uniform


def test_noise_is_added_after_the_warp():
    """Zeros come in from outside the image, and there is noise on them as well."""
    images = torch.ones(1, 1, 8, 8)
    noisy = augment(images, Augmentation(rotation=45.0, noise=0.1), seeded(3))
    warped = augment(images, Augmentation(rotation=45.0), seeded(3))
    assert (warped == 0).any()
    assert (noisy != warped).all()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_precision_stays(precision):
    how = Augmentation(rotation=10.0, noise=0.1)
    assert augment(random_images().to(precision), how, seeded()).dtype == precision


def holes(share, seed=0, rows=20, cols=30):
    """Where images of ones were set to 0."""
    erased = erase_squares(torch.ones(MANY, 2, rows, cols), share, seeded(seed))
    assert torch.equal(erased[:, 0], erased[:, 1]), "all channels of a pixel"
    return erased[:, 0] == 0


def test_a_share_of_the_images_is_erased():
    """4000 throws lie within 4.5 standard deviations of their share."""
    found = holes(0.3).flatten(1).any(1).double().mean()
    assert (found - 0.3).abs() < 4.5 * math.sqrt(0.3 * 0.7 / MANY)
    assert holes(1.0).flatten(1).any(1).all()
    assert not holes(0.0).any()


def test_erased_squares_have_the_documented_sizes_and_any_position():
    found = holes(1.0)
    down, across = found.any(2).sum(1), found.any(1).sum(1)
    assert torch.equal(found.flatten(1).sum(1), down * across), "a rectangle"
    assert (down - across).abs().max() <= 1, "of equal sides, but for the grid"
    assert down.min() == 20 * ERASED[0] and down.max() == 20 * ERASED[1]
    assert found.any(0).all(), "every pixel is erased at times"


def test_definition_of_the_erased_squares():
    """Pixel by pixel from the four draws of each image."""
    images = torch.rand(6, 1, 5, 7) + 1
    erased = erase_squares(images, 0.6, seeded(4))
    draws = torch.rand(6, 4, generator=seeded(4)).tolist()
    for image, found, (chosen, size, down, right) in zip(images, erased, draws, strict=True):
        side = (ERASED[0] + (ERASED[1] - ERASED[0]) * size) * 5
        top, left = down * (5 - side), right * (7 - side)
        for row in range(5):
            for col in range(7):
                inside = top <= row + 0.5 < top + side and left <= col + 0.5 < left + side
                hole = inside and chosen < 0.6
                assert found[0, row, col] == (0 if hole else image[0, row, col])
    assert (erased == 0).any()


def test_squares_are_erased_after_the_warp_and_before_the_noise():
    how = {"rotation": 20.0, "erase": 1.0}
    images, generator = torch.ones(8, 1, 9, 9), seeded(2)
    warped = augment(images, Augmentation(rotation=20.0), generator)
    by_hand = erase_squares(warped, 1.0, generator)
    assert torch.equal(augment(images, Augmentation(**how), seeded(2)), by_hand)
    assert not (augment(images, Augmentation(**how, noise=0.1), seeded(2)) == 0).any()


def test_definition():
    """A = rotation · scale · flip and t, by hand from the five draws of each image."""
    how = Augmentation(rotation=60.0, shift=2.0, scale=0.5, mirror=True)
    matrices, shifts = random_affine(20, how, seeded(5))
    draws = (torch.rand(20, 5, generator=seeded(5)) * 2 - 1).tolist()
    signs = set()
    for i, (angle, size, side, right, up) in enumerate(draws):
        cos, sin = math.cos(math.radians(60 * angle)), math.sin(math.radians(60 * angle))
        factor, sign = 1.5**size, -1.0 if side < 0 else 1.0
        signs.add(sign)
        rotation = torch.tensor([[cos, -sin], [sin, cos]])
        by_hand = rotation @ torch.diag(torch.tensor([factor, factor]))
        by_hand = by_hand @ torch.diag(torch.tensor([sign, 1.0]))
        torch.testing.assert_close(matrices[i], by_hand)
        torch.testing.assert_close(shifts[i], torch.tensor([2 * right, 2 * up]))
    assert signs == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"rotation": -1.0}, r"rotation = -1\.0 must be 0 to 180 degrees\."),
        ({"rotation": 181.0}, r"rotation = 181\.0 must be 0 to 180 degrees\."),
        ({"rotation": math.nan}, "rotation = nan must be 0 to 180"),
        ({"shift": -0.5}, r"shift = -0\.5 must be finite and not negative\."),
        ({"scale": -0.1}, r"scale = -0\.1 must be finite and not negative\."),
        ({"erase": 1.5}, r"erase = 1\.5 is a share of the images, 0 to 1\."),
        ({"erase": math.nan}, "erase = nan is a share"),
        ({"crop": 0.0}, r"crop = 0\.0 is a share of the area, above 0, at most 1\."),
        ({"policy": "standrad"}, "standard"),
        ({"noise": -0.1}, r"noise = -0\.1 must be finite and not negative\."),
    ],
)
def test_out_of_range(how, words):
    with pytest.raises(InputError, match=words):
        Augmentation(**how)


def test_stretches_keep_the_area_and_fill_their_range():
    """Longer along one line as much as shorter across it, along every line."""
    matrices, _ = affine(stretch=0.25)
    assert torch.allclose(torch.linalg.det(matrices), torch.ones(MANY), atol=1e-5)
    longer, along = torch.linalg.eigh(matrices)
    reaches(longer[:, 1], 1.0, 1.25)
    reaches(torch.atan2(along[:, 1, 1], along[:, 0, 1]) % math.pi, 0.0, math.pi)


def test_displacements_are_smooth_and_of_the_requested_size():
    """Neighbouring pixels take nearly the same step; those far apart do not."""
    field = random_displacements(torch.zeros(400, 1, 28, 21), 0.5, seeded())
    assert field.shape == (400, 2, 28, 21)
    assert 0.25 < float(field.std()) < 0.55
    near, far = (float((field - field.roll(step, -1))[..., step:].std()) for step in (1, 10))
    assert near < 0.35 * far


def test_other_draws_stay_when_displacements_are_requested():
    """Recipes without displacements keep their images."""
    plain, bent = (affine(rotation=20.0, shift=1.0, **how) for how in ({}, {"elastic": 1.0}))
    assert all(map(torch.equal, plain, bent))


def test_whole_shifts_are_each_as_likely():
    how = Augmentation(shift=2.0, whole=True)
    _, shifts = random_affine(20_000, how, torch.Generator().manual_seed(0))
    steps, counts = shifts.unique(return_counts=True)
    assert steps.tolist() == [-2, -1, 0, 1, 2]
    assert (counts / counts.sum() - 0.2).abs().max() < 0.01
    with pytest.raises(InputError, match=r"shift = 0\.4 is less than a whole pixel"):
        Augmentation(shift=0.4, whole=True)


def test_whole_shifts_blur_nothing():
    images = random_images(count=64, rows=9, cols=8)
    warped = augment(images, Augmentation(shift=2.0, whole=True), seeded())
    _, shifts = random_affine(64, Augmentation(shift=2.0, whole=True), seeded())
    assert set(shifts.flatten().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    kept = warped[warped.abs() > 1e-4]
    nearest = (kept[:, None] - images.flatten()[None]).abs().min(dim=1).values
    assert float(nearest.max()) < 1e-5


def test_sharp_images_stay_in_range_and_keep_more_contrast():
    images = (random_images(count=32, rows=16, cols=16) > 0.5).float()
    plain, sharp = (
        augment(images, Augmentation(rotation=180.0, sharp=sharp), seeded())
        for sharp in (False, True)
    )
    assert sharp.min() >= 0 and sharp.max() <= 1
    inside = (..., slice(5, 11), slice(5, 11))
    assert sharp[inside].std() > 1.05 * plain[inside].std()


@pytest.mark.parametrize("sharp", [False, True])
def test_a_share_is_warped_and_the_others_stay_equal(sharp):
    images = random_images(count=400, rows=7, cols=10)
    how = Augmentation(rotation=180.0, shift=1.0, elastic=0.5, share=0.7, sharp=sharp)
    stays = (augment(images, how, seeded()) == images).flatten(1).all(1)
    assert 0.2 < stays.float().mean() < 0.4
    with pytest.raises(InputError, match=r"share = 1.5 is a share of the images, 0 to 1"):
        Augmentation(share=1.5)


def test_crops_are_inside_the_image_and_fill_their_range():
    zooms, centres = random_crops(torch.zeros(MANY, 1, 20, 40), 0.5, seeded())
    sides = 1 / zooms * torch.tensor([40.0, 20.0])
    reaches(sides.prod(1) / 800, 0.5, 1.0 + 1e-6)
    edges = torch.cat([centres - sides / 2, centres + sides / 2]) / torch.tensor([20.0, 10.0])
    assert edges.abs().max() <= 1 + 1e-5
    assert (edges.min(0).values < -0.99).all() and (edges.max(0).values > 0.99).all()
    aspect = (sides[:, 0] / 40) / (sides[:, 1] / 20)
    assert 0.74 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.34


def test_definition_of_a_crop():
    """A pixel of the result at p is taken from centre + p / zoom, on images that are linear."""
    rows, cols = 12, 16
    x, y = torch.arange(cols) - (cols - 1) / 2, (rows - 1) / 2 - torch.arange(rows)
    planes = torch.stack([x.expand(rows, cols), y[:, None].expand(rows, cols)])
    images = planes.expand(5, 2, rows, cols).contiguous()
    found = augment(images, Augmentation(crop=0.4), seeded(7))
    random_affine(5, Augmentation(), generator := seeded(7))
    zooms, centres = random_crops(images, 0.4, generator)
    for result, zoom, centre in zip(found, zooms, centres, strict=True):
        wanted = centre[:, None, None] + planes / zoom[:, None, None]
        inside = (slice(None), slice(1, -1), slice(1, -1))
        torch.testing.assert_close(result[inside], wanted[inside], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("own", "wanted", "rotation", "mirror"),
    [
        ("D4", "D4", 45, False), ("C4", "C4", 45, False), ("C16", "C16", 45, False),
        ("C2", "C2", 90, False), ("C3", "C3", 180, False), ("D1", "D1", 15, False),
        ("C1", "D4", 180, True), ("C1", "C4", 180, False), ("C4", "D4", 45, True),
        ("C1", "D1", 15, True), ("C1", "C1", 15, False),
    ],
)  # fmt: skip
def test_rotations_complement_the_symmetry_of_the_model(own, wanted, rotation, mirror):
    """Digits (C1) are neither flipped nor rotated by 180°, which would make a 6 a 9."""
    groups = PlanarGroup.named(own), PlanarGroup.named(wanted)
    how = Augmentation(**with_policy({"policy": "standard"}))
    chosen = how.for_group(*groups)
    assert (chosen.rotation, chosen.mirror) == (rotation, mirror)
    given = Augmentation(rotation=10.0, mirror=True).for_group(*groups)
    assert (given.rotation, given.mirror) == (10.0, True)


def test_options_beside_a_policy_win():
    values = with_policy({"policy": "standard", "hue": 0.0, "erase": 0.5})
    how = Augmentation(**values)
    assert how.hue == 0 and how.erase == 0.5
    assert how.brightness > 0 and how.crop < 1 and how.rotation is None
    assert with_policy({"noise": 0.1}) == {"noise": 0.1}


@pytest.mark.parametrize("policy", ["standard", "randaugment"])
@pytest.mark.parametrize("channels", [1, 3])
def test_policies_change_every_image_and_stay_in_range(policy, channels):
    d4 = PlanarGroup.named("D4")
    how = Augmentation(**with_policy({"policy": policy})).for_group(d4, d4)
    images = torch.rand(8, channels, 12, 12)
    changed = augment(images, how, seeded())
    assert torch.equal(changed, augment(images, how, seeded()))
    assert changed.shape == images.shape and changed.min() >= 0 and changed.max() <= 1
    assert not (changed == images).flatten(1).all(1).any()


def test_warps_use_the_fill_mode():
    """A constant image stays constant if it is reflected; zeros enter otherwise."""
    grey, how = torch.full((6, 1, 8, 8), 0.5), Augmentation(rotation=45.0, shift=2.0, scale=0.2)
    assert torch.allclose(augment(grey, how, seeded(), "reflect"), grey, atol=1e-6)
    assert not torch.allclose(augment(grey, how, seeded(), "zeros"), grey, atol=1e-3)
    assert torch.equal(augment(grey, how, seeded(), "zeros"), augment(grey, how, seeded()))


def test_the_disc_is_shown_of_images_that_are_not_warped():
    images = torch.rand(4, 2, 9, 9)
    assert torch.equal(augment(images, Augmentation(), seeded(), "disc"), keep_disc(images))


def test_windows_are_the_same_part_of_image_and_mask_at_every_position_alike():
    """Pixels are numbered, so that a window tells its position, one of 3 × 3."""
    number = torch.arange(36.0).view(1, 1, 6, 6).expand(9_000, 1, 6, 6) / 64
    masks = (64 * number[:, 0]).to(torch.uint8)
    images, cut = augment_pairs(number, masks, Augmentation(window=4), seeded())
    assert images.shape == (9_000, 1, 4, 4) and torch.equal((64 * images[:, 0]).byte(), cut)
    rows = cut[:, :, 0].long() // 6 - cut[:, :1, 0].long() // 6
    assert torch.equal(rows, torch.arange(4).expand(9_000, 4))
    positions, counts = cut[:, 0, 0].unique(return_counts=True)
    assert positions.tolist() == [6 * r + c for r in range(3) for c in range(3)]
    assert counts.min() > 850 and counts.max() < 1_150


def test_windows_need_masks_and_room():
    images = random_images(count=2)
    with pytest.raises(InputError, match="window = 4 is for images with masks"):
        augment(images, Augmentation(window=4), seeded())
    masks = torch.zeros(len(images), *images.shape[2:], dtype=torch.uint8)
    with pytest.raises(InputError, match=r"window = 999 is more than the \d+ pixels"):
        augment_pairs(images, masks, Augmentation(window=999), seeded())
    with pytest.raises(InputError, match="window = 0 must be at least 1 pixel"):
        Augmentation(window=0)
