"""Hashed dropout: rates, independence and reproducibility of the random bits."""

import itertools
import math

import pytest
import torch

from turnwise.kernels import hashed_dropout
from turnwise.kernels.hashed_dropout import (
    draw_seed,
    drop_threshold,
    keep_mask,
    keep_scale,
    random_keep_mask,
)

SEED = torch.tensor([12345])


def mask(rate, indices=300, numbers=400, seed=SEED):
    kept = keep_mask(seed, torch.arange(indices)[:, None], torch.arange(numbers // 2), rate)
    return kept.flatten(1)


def test_the_dropped_share_is_the_rate():
    for rate in (0.1, 0.5, 0.9):
        assert abs(1 - mask(rate).double().mean() - rate) < 0.005


def test_nothing_is_dropped_at_rate_zero():
    assert mask(0.0).all()


def test_indices_numbers_and_seeds_are_independent():
    kept = mask(0.5).double() - 0.5
    other = mask(0.5, seed=SEED + 1).double() - 0.5
    for a, b in ((kept, other), (kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert abs((a * b).mean()) < 0.005


def test_no_index_or_number_is_always_kept():
    kept = mask(0.5).double()
    assert (kept.mean(0) - 0.5).abs().max() < 0.15
    assert (kept.mean(1) - 0.5).abs().max() < 0.15


def test_large_numbers_wrap_and_do_not_fail():
    assert keep_mask(SEED, torch.tensor([2**40]), torch.tensor([2**33]), 0.5).shape == (1, 2)


def test_seeds_depend_on_the_generator():
    torch.manual_seed(3)
    first = draw_seed(torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(first, draw_seed(torch.device("cpu")))
    assert not torch.equal(first, draw_seed(torch.device("cpu")))


def test_the_threshold_is_a_fraction_of_sixteen_bits():
    assert drop_threshold(0.0) == 0
    assert drop_threshold(0.5) == 2**15


# Masks of whole tensors.


def seeded_mask(seed, rate, count=1 << 16):
    torch.manual_seed(seed)
    return random_keep_mask(torch.Size([count]), rate, torch.float64)


def test_bits_are_uniform():
    """Masks of one seed are nested; their differences give a histogram of the bits."""
    count = 1 << 18
    for seed in range(3):
        masks = [seeded_mask(seed, k / 256, count) for k in range(256)]
        assert all((more >= less).all() for more, less in itertools.pairwise(masks))
        kept = torch.stack([mask.mean() for mask in masks] + [torch.tensor(0.0).double()])
        assert (-kept.diff() - 1 / 256).abs().max() < 5 / math.sqrt(256 * count)


def greatest_correlation(one, other):
    """Return the largest correlation of two masks over all shifts but 0, in standard errors."""
    spectra = [torch.fft.rfft((x - x.mean()) / x.std()) for x in (one, other)]
    shifts = torch.fft.irfft(spectra[0] * spectra[1].conj()) / math.sqrt(len(one))
    return shifts[1:].abs().max().item()


def test_masks_are_independent_of_themselves_and_of_each_other():
    """At every distance, for many seeds; 20 x 65,536 normal numbers reach about 5."""
    masks = [seeded_mask(seed, 0.1) for seed in range(20)]
    assert max(greatest_correlation(mask, mask) for mask in masks) < 7
    assert max(greatest_correlation(*pair) for pair in itertools.pairwise(masks)) < 7


def test_control_a_weaker_hash_has_correlated_masks(monkeypatch):
    def weaker(bits):
        bits = ((bits >> 16) & 0xFFFF).bitwise_xor(bits).mul(0x7FEB352D)
        return ((bits >> 15) & 0x1FFFF).bitwise_xor(bits)

    monkeypatch.setattr(hashed_dropout, "mixed_bits", weaker)
    masks = [seeded_mask(seed, 0.1) for seed in range(20)]
    assert max(greatest_correlation(mask, mask) for mask in masks) > 20


def test_starts_and_strides_use_all_their_bits(monkeypatch):
    hashed = []
    monkeypatch.setattr(hashed_dropout, "mixed_bits", lambda x: hashed.append(x.clone()) or x)
    for _ in range(2000):
        random_keep_mask(torch.Size([4]), 0.5, torch.float32)
    starts, seconds = torch.stack(hashed).long().T
    strides = (seconds - starts + 2**31) % 2**32 - 2**31
    assert (strides % 2 == 1).all(), "an even stride would repeat numbers"
    for values, least, most in ((starts, 0, 2**31), (strides, -(2**31), 2**31)):
        assert least <= values.min() < least + 2**24 and most - 2**24 < values.max() < most
    assert len(set(starts.tolist())) > 1990 and len(set(strides.tolist())) > 1990


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.9999, 1 - 1e-9])
def test_the_mean_is_exact(monkeypatch, rate):
    """Over all values of the bits; the rate is rounded to 1/65536, and the scale follows."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.int32)
    monkeypatch.setattr(hashed_dropout, "mixed_bits", lambda bits: every)
    mask = random_keep_mask(torch.Size([2**16]), rate, torch.float64)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert mask.mean() * keep_scale(rate) == pytest.approx(1, abs=1e-12)
    assert drop_threshold(rate) / 65_536 == pytest.approx(rate, abs=2**-16)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_have_any_shape_and_type(shape, dtype):
    mask = random_keep_mask(torch.Size(shape), 0.5, dtype)
    assert mask.shape == shape and mask.dtype == dtype and mask.device.type == "cpu"
    assert ((mask == 0) | (mask == 1)).all()
