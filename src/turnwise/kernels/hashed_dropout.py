"""Dropout that any backend can repeat: random bits are a hash of a seed and of where they are used.

An entry of the attention weights has a lane (which picture, head and token) and a number (which
source, which poses).  Hashing both gives the same bits in a plain formula, in a loop and in a GPU
kernel, without a mask ever being stored.  Two outputs share a number, and have 16 bits each.
"""

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from turnwise.geometry.neighbourhoods import Sources

WORD = 0xFFFFFFFF  # arithmetic modulo 2³²
LANE_STRIDE, NUMBER_STRIDE = 0x9E3779B9, 0x85EBCA6B


def draw_seed(device: torch.device) -> Int64[Tensor, "1"]:
    """A fresh seed from torch's generator, left on the device so that nothing waits for it."""
    return torch.randint(2**31, (1,), device=device)


def drop_threshold(rate: float) -> int:
    """Entries whose 16 bits are below it are dropped."""
    return min(0xFFFF, round(rate * 2**16))


def numbered_offsets(sources: Sources) -> Int64[Tensor, "#token source"]:
    """The numbers of the offsets; one row for all tokens where they have the same."""
    return sources.offset[:1] if sources.view.neighbourhood.window else sources.offset


def keep_mask(
    seed: Int64[Tensor, "1"],
    lane: Int64[Tensor, "*#many"],
    number: Int64[Tensor, "*#many"],
    rate: float,
) -> Bool[Tensor, "*many 2"]:
    """Which entries stay: two for each number, since a hash has bits enough for two."""
    key = mixed_bits(_as_word(seed + lane * LANE_STRIDE))
    bits = mixed_bits(key + _as_word(number * NUMBER_STRIDE))
    halves = torch.stack([bits & 0xFFFF, (bits >> 16).bitwise_and_(0xFFFF)], dim=-1)
    return halves >= drop_threshold(rate)


def _as_word(x: Int64[Tensor, "*many"]) -> Int32[Tensor, "*many"]:
    """The lowest 32 bits, as an integer with a sign."""
    return ((x & WORD) - ((x & 2**31) << 1)).int()


def mixed_bits(bits: Int32[Tensor, "*many"]) -> Int32[Tensor, "*many"]:
    """A good hash of 32 bits to 32 bits: xor-shift and multiply, twice; overflow is meant."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        high = (bits >> shift).bitwise_and_((1 << (32 - shift)) - 1)
        bits = high.bitwise_xor_(bits).mul_(factor)
    return (bits >> 16).bitwise_and_(0xFFFF).bitwise_xor_(bits)
