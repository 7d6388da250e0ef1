"""Random bits that any backend can repeat: right in number, and no two places alike."""

import torch

from turnwise.kernels.hashed_dropout import draw_seed, drop_threshold, keep_mask

SEED = torch.tensor([12345])


def mask(rate, lanes=300, numbers=400, seed=SEED):
    kept = keep_mask(seed, torch.arange(lanes)[:, None], torch.arange(numbers // 2), rate)
    return kept.flatten(1)


def test_the_rate_is_kept():
    for rate in (0.1, 0.5, 0.9):
        assert abs(1 - mask(rate).double().mean() - rate) < 0.005


def test_nothing_is_dropped_at_rate_zero():
    assert mask(0.0).all()


def test_lanes_numbers_and_seeds_are_independent():
    kept = mask(0.5).double() - 0.5
    other = mask(0.5, seed=SEED + 1).double() - 0.5
    for a, b in ((kept, other), (kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert abs((a * b).mean()) < 0.005


def test_no_lane_or_number_is_always_kept():
    kept = mask(0.5).double()
    assert (kept.mean(0) - 0.5).abs().max() < 0.15
    assert (kept.mean(1) - 0.5).abs().max() < 0.15


def test_large_numbers_wrap_and_do_not_fail():
    assert keep_mask(SEED, torch.tensor([2**40]), torch.tensor([2**33]), 0.5).shape == (1, 2)


def test_seeds_follow_the_generator():
    torch.manual_seed(3)
    first = draw_seed(torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(first, draw_seed(torch.device("cpu")))
    assert not torch.equal(first, draw_seed(torch.device("cpu")))


def test_threshold_is_a_share_of_sixteen_bits():
    assert drop_threshold(0.0) == 0
    assert drop_threshold(0.5) == 2**15
