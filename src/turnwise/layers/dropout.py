"""Dropout whose randomness is cheap on a CPU: sixteen bits for each number.

torch draws a double for each, one after the other; here 64 bits that are drawn decide over four
numbers.  The rate is rounded to 1/65536, and what is kept is scaled by the rate as it is, so the
mean is exact.

Paper:    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
          Overfitting".
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor, nn

from turnwise.attention.lean import may_be_lean
from turnwise.checks import require

LEVELS = 2**16


def sixteen_bits(shape: torch.Size) -> Int16[Tensor, "*shape"]:
    """From torch's generator, on the CPU: −32768 to 32767, each as likely."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape)


def dropped_levels(rate: float) -> int:
    """How many of the 65536 values are dropped."""
    return min(round(rate * LEVELS), LEVELS - 1)


def kept(bits: Int16[Tensor, "*shape"], rate: float, dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """1 for what stays, 0 for what is dropped."""
    ones = torch.empty(bits.shape, dtype=dtype)
    return torch.ge(bits, dropped_levels(rate) - LEVELS // 2, out=ones)


def scale_of_kept(rate: float) -> float:
    return LEVELS / (LEVELS - dropped_levels(rate))


class Dropout(nn.Module):
    """`nn.Dropout`; on a CPU, unless it is compiled, with other draws of the same distribution."""

    def __init__(self, rate: float, name: str = "dropout") -> None:
        super().__init__()
        require(0 <= rate < 1, f"{name} = {rate} must be from 0 to below 1.")
        self.rate = rate

    def drops(self) -> bool:
        return self.training and self.rate > 0

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.drops():
            return x
        if not may_be_lean(x):
            return F.dropout(x, self.rate)
        return x * kept(sixteen_bits(x.shape), self.rate, x.dtype).mul_(scale_of_kept(self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
