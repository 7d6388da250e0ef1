"""Mixup and cutmix: what is mixed, in which share, and by which draws."""

import numpy as np
import pytest
import torch

from turnwise.data.mixing import mix_images


def draws(seed=0):
    return np.random.default_rng(seed)


def images(count=4, rows=9, cols=12):
    return torch.rand(count, 2, rows, cols, dtype=torch.float64)


def test_mixup_overlays_the_images_in_reverse_order():
    shown = images()
    mixed, share = mix_images(shown, 0.4, 0.0, draws())
    assert share == draws().beta(0.4, 0.4)
    torch.testing.assert_close(mixed, share * shown + (1 - share) * shown.flip(0))


def test_cutmix_replaces_one_rectangle_and_counts_its_pixels():
    shown = images()
    for seed in range(20):
        mixed, share = mix_images(shown, 0.0, 1.0, draws(seed))
        other = (mixed == shown.flip(0)).all(1)
        assert ((mixed == shown).all(1) ^ other).all(), "each pixel is of one of the two images"
        assert (other == other[0]).all(), "the same rectangle in all images"
        rows, cols = other[0].any(1), other[0].any(0)
        assert torch.equal(other[0], rows[:, None] & cols[None, :])
        torch.testing.assert_close(share, 1 - other[0].double().mean())


def test_cutmix_draws_shares_from_its_distribution():
    """Beta(1, 1) is uniform with mean 1/2; the border cuts rectangles off, so more is kept."""
    shares = [float(mix_images(images(2), 0.0, 1.0, draws(seed))[1]) for seed in range(400)]
    assert 0.5 < np.mean(shares) < 0.75
    assert min(shares) < 0.2 and max(shares) > 0.95


def test_with_both_each_mixes_half_of_the_batches():
    shown = images(2)
    cut = [
        bool(((mixed == shown) | (mixed == shown.flip(0))).all())
        for seed in range(200)
        for mixed, _ in [mix_images(shown, 0.4, 1.0, draws(seed))]
    ]
    assert 70 < sum(cut) < 130


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.2, 0.0), (0.0, 1.0), (0.2, 1.0)])
def test_the_generator_decides_everything(mixup, cutmix):
    shown = images()
    first, second, other = (mix_images(shown, mixup, cutmix, draws(seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], second[0]) and first[1] == second[1]
    assert not torch.equal(first[0], other[0])


def test_the_images_are_not_changed_in_place():
    shown = images()
    before = shown.clone()
    mix_images(shown, 0.0, 1.0, draws())
    assert torch.equal(shown, before)
