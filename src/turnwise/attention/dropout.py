"""Dropout that any backend can repeat: random bits are a hash of a seed and of where they are used.

An entry of the attention weights has a lane (which picture, head and token) and a number (which
source, which poses).  Hashing both gives the same bits in a plain formula, in a loop and in a GPU
kernel, without a mask ever being stored.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

WORD = 0xFFFFFFFF  # arithmetic modulo 2³²
LANE_STRIDE, NUMBER_STRIDE = 0x9E3779B9, 0x85EBCA6B


def draw_seed(device: torch.device) -> Int64[Tensor, "1"]:
    """A fresh seed from torch's generator, left on the device so that nothing waits for it."""
    return torch.randint(2**31, (1,), device=device)


def drop_threshold(rate: float) -> int:
    """Entries whose 32 bits are below it are dropped."""
    return min(WORD, round(rate * 2**32))


def keep_mask(
    seed: Int64[Tensor, "1"],
    lane: Int64[Tensor, "*#many"],
    number: Int64[Tensor, "*#many"],
    rate: float,
) -> Bool[Tensor, "*many"]:
    """Which entries stay."""
    key = _mixed(seed + lane * LANE_STRIDE)
    return _mixed(key + number * NUMBER_STRIDE) >= drop_threshold(rate)


def _mixed(bits: Int64[Tensor, "*many"]) -> Int64[Tensor, "*many"]:
    """A good hash of 32 bits to 32 bits (two rounds of xor-shift and multiply)."""
    bits = bits & WORD
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & WORD
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & WORD
    return bits ^ (bits >> 16)
