"""Dropout whose randomness is cheap on a CPU: sixteen bits for each number, by a hash.

torch draws a double for each, one after the other; here a key is drawn, and bits are a hash of it
and of which number they are for, which vectors and threads do for many at once, and which can be
made again for a part of them.  The rate is rounded to 1/65536, and what is kept is scaled by the
rate as it is, so the mean is exact.

Paper:    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
          Overfitting".
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor, nn

from turnwise.attention.lean import may_be_lean
from turnwise.errors import require
from turnwise.kernels.hashed_dropout import drop_threshold, mixed_bits

Key = tuple[int, int]
LEVELS = 2**16


def draw_key() -> Key:
    """From torch's generator, on the CPU: where the hash begins, and its stride, which is odd."""
    start, half = torch.randint(2**31, (2,), device="cpu").tolist()
    return start, 2 * half + 1 - 2**31


def sixteen_bits(key: Key, first: int, last: int) -> Int16[Tensor, " number"]:
    """For the numbers from `first` to before `last`: −32768 to 32767, each as likely."""
    start, stride = key  # a pair has 32 bits
    pairs = torch.arange(first // 2, (last + 1) // 2, dtype=torch.int32, device="cpu")
    return mixed_bits(pairs.mul_(stride).add_(start)).view(torch.int16)[first % 2 :][: last - first]


def kept(bits: Int16[Tensor, "*shape"], rate: float, dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """1 for what stays, 0 for what is dropped."""
    ones = torch.empty(bits.shape, dtype=dtype, device=bits.device)
    return torch.ge(bits, drop_threshold(rate) - LEVELS // 2, out=ones)


def scale_of_kept(rate: float) -> float:
    return LEVELS / (LEVELS - drop_threshold(rate))


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
        bits = sixteen_bits(draw_key(), 0, x.numel()).view(x.shape)
        return x * kept(bits, self.rate, x.dtype).mul_(scale_of_kept(self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
