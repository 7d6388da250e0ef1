"""Dropout by hashed bits has the distribution of torch's, and follows its seed."""

import itertools
import math

import pytest
import torch

from turnwise.errors import InputError
from turnwise.kernels.hashed_dropout import drop_threshold
from turnwise.layers.performer import dropout
from turnwise.layers.performer.dropout import Dropout, draw_key, kept, scale_of_kept, sixteen_bits


def test_bits_are_uniform():
    count = 1 << 18
    for _ in range(5):
        numbers = sixteen_bits(draw_key(), 0, count).double()
        assert numbers.min() < -32_700 and numbers.max() > 32_700
        share = torch.histc(numbers, 256) / count
        assert (share - 1 / 256).abs().max() < 5 / math.sqrt(256 * count)


def likeness(one, other):
    """Of two masks, by every shift between them, in standard errors; the largest."""
    spectra = [torch.fft.rfft((x - x.mean()) / x.std()) for x in (one, other)]
    shifts = torch.fft.irfft(spectra[0] * spectra[1].conj()) / math.sqrt(len(one))
    return shifts[1:].abs().max().item()  # unshifted, a mask is itself


def test_masks_are_independent_of_themselves_and_of_each_other():
    """At every distance, for many keys; chance alone reaches about 5 in 20 x 65,536 of them."""
    torch.manual_seed(0)
    masks = [kept(sixteen_bits(draw_key(), 0, 1 << 16), 0.1, torch.float64) for _ in range(20)]
    assert max(likeness(mask, mask) for mask in masks) < 7
    assert max(likeness(*pair) for pair in itertools.pairwise(masks)) < 7


def test_control_a_weaker_hash_is_found_out(monkeypatch):
    def weaker(bits):
        bits = ((bits >> 16) & 0xFFFF).bitwise_xor(bits).mul(0x7FEB352D)
        return ((bits >> 15) & 0x1FFFF).bitwise_xor(bits)

    monkeypatch.setattr(dropout, "mixed_bits", weaker)
    torch.manual_seed(0)
    masks = [kept(sixteen_bits(draw_key(), 0, 1 << 16), 0.1, torch.float64) for _ in range(20)]
    assert max(likeness(mask, mask) for mask in masks) > 20


def test_the_default_device_of_torch_is_another():
    with torch.device("meta"):
        dropped = Dropout(0.5).train()(torch.ones(100, device="cpu"))
    assert dropped.device.type == "cpu" and 0 < dropped.count_nonzero() < 100


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (0, 50), (7, 8), (8, 21), (33, 50)])
def test_bits_of_a_part_are_a_part_of_the_bits(first, last):
    key = draw_key()
    assert torch.equal(sixteen_bits(key, first, last), sixteen_bits(key, 0, 50)[first:last])


def test_keys_have_all_their_bits():
    torch.manual_seed(0)
    starts, strides = torch.tensor([draw_key() for _ in range(2000)]).T
    assert (strides % 2 == 1).all(), "an even stride would meet a number twice"
    for values, least, most in ((starts, 0, 2**31), (strides, -(2**31), 2**31)):
        assert least <= values.min() < least + 2**24 and most - 2**24 < values.max() < most
    assert len(set(starts.tolist())) > 1990 and len(set(strides.tolist())) > 1990


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.9999, 1 - 1e-9])
def test_the_mean_is_exact(rate):
    """Over all values that the bits can have."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    mask = kept(bits, rate, torch.float64)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert mask.mean() * scale_of_kept(rate) == pytest.approx(1, abs=1e-12)
    assert drop_threshold(rate) / 65_536 == pytest.approx(rate, abs=2**-16)


def test_definition():
    layer, x = Dropout(0.3).train(), torch.randn(50, 40, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(7)
    out = layer(x)
    stays = out != 0
    assert 0.6 < stays.double().mean() < 0.8
    torch.testing.assert_close(out[stays], x[stays] / (1 - 0.3), rtol=1e-4, atol=0.0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient != 0, stays)


def test_the_seed_decides():
    layer, x = Dropout(0.5).train(), torch.ones(64)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_nothing_is_dropped_in_use_or_at_a_rate_of_zero():
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_torch_func_draws_as_torch_does():
    """Each example of a `vmap` its own, which draws of ours would not be."""
    layer = Dropout(0.5).train()
    drawn = torch.func.vmap(layer, randomness="different")(torch.ones(2, 64))
    assert not torch.equal(drawn[0], drawn[1])


def test_refusals():
    with pytest.raises(InputError, match=r"ff_dropout = 1.0 must be from 0 to below 1"):
        Dropout(1.0, "ff_dropout")
    assert repr(Dropout(0.25)) == "Dropout(rate=0.25)"
