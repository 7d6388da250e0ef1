"""Dropout that every backend can reproduce: the random bits hash a seed and the entry's position.

An entry of the attention weights has an index (its image, head and token) and a number (its source
and group elements).  Hashing both gives the same bits in the plain formula, in a loop and in a GPU
kernel, and no mask is stored.  Two outputs share a number and get 16 bits each.
"""

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from turnwise.geometry.neighbourhoods import Sources

WORD = 0xFFFFFFFF  # arithmetic modulo 2³²
INDEX_STRIDE, NUMBER_STRIDE = 0x9E3779B9, 0x85EBCA6B


def draw_seed(device: torch.device) -> Int64[Tensor, "1"]:
    """Draw a seed from torch's generator; it stays on the device, so nothing waits for it."""
    return torch.randint(2**31, (1,), device=device)


def drop_threshold(rate: float) -> int:
    """Return the threshold below which the 16 bits of an entry drop it."""
    return min(0xFFFF, round(rate * 2**16))


def numbered_offsets(sources: Sources) -> Int64[Tensor, "#token source"]:
    """Return the numbers of the offsets: one row if all tokens have the same."""
    return sources.offset[:1] if sources.view.neighbourhood.window else sources.offset


def keep_mask(
    seed: Int64[Tensor, "1"],
    index: Int64[Tensor, "*#many"],
    number: Int64[Tensor, "*#many"],
    rate: float,
) -> Bool[Tensor, "*many 2"]:
    """Return which entries to keep: two for each number, because a hash has bits for two."""
    key = mixed_bits(_as_word(seed + index * INDEX_STRIDE))
    bits = mixed_bits(key + _as_word(number * NUMBER_STRIDE))
    halves = torch.stack([bits & 0xFFFF, (bits >> 16).bitwise_and_(0xFFFF)], dim=-1)
    return halves >= drop_threshold(rate)


def _as_word(x: Int64[Tensor, "*many"]) -> Int32[Tensor, "*many"]:
    """Return the lowest 32 bits as a signed integer."""
    return ((x & WORD) - ((x & 2**31) << 1)).int()


def mixed_bits(bits: Int32[Tensor, "*many"]) -> Int32[Tensor, "*many"]:
    """Hash 32 bits to 32 bits: xor-shift and multiply twice; multiplications may overflow."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        high = (bits >> shift).bitwise_and_((1 << (32 - shift)) - 1)
        bits = high.bitwise_xor_(bits).mul_(factor)
    return (bits >> 16).bitwise_and_(0xFFFF).bitwise_xor_(bits)


def random_keep_mask(shape: torch.Size, rate: float, dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Return a CPU tensor of ones and zeros (dropped), from two draws of torch's generator.

    Entry i has 16 bits of the hash of start + stride · (i // 2), with an odd stride.
    """
    start, half = torch.randint(2**31, (2,), device="cpu").tolist()
    stride = 2 * half + 1 - 2**31
    pairs = torch.arange((shape.numel() + 1) // 2, dtype=torch.int32, device="cpu")
    bits = mixed_bits(pairs.mul_(stride).add_(start)).view(torch.int16)[: shape.numel()]
    mask = torch.empty(shape, dtype=dtype, device="cpu")
    return torch.ge(bits.view(shape), drop_threshold(rate) - 2**15, out=mask)


def keep_scale(rate: float) -> float:
    """Return the factor of kept entries that keeps the mean, for the rate as it is rounded."""
    return 2**16 / (2**16 - drop_threshold(rate))
