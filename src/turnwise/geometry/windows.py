"""All square windows of a map, at a stride."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def windows_of(
    maps: Float[Tensor, "map dim row col"], side: int, stride: int
) -> Float[Tensor, "map dim newrow newcol side side"]:
    """The side × side windows whose first pixels are 0, stride, 2 stride, … along both axes.

    Views by `Tensor.unfold` where that is best.  Not where it is compiled: on a CPU (torch 2.13)
    the gradient of a matrix product of such windows is wrong, and written past the end of its
    memory.  And where there is a way back, `F.unfold` is faster on it; but on a GPU, when not
    compiled, it goes through the maps one by one.
    """
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if not compiled and (maps.is_cuda or not maps.requires_grad):
        return maps.unfold(2, side, stride).unfold(3, side, stride)
    rows, cols = ((length - side) // stride + 1 for length in maps.shape[2:])
    columns = F.unfold(maps, side, stride=stride)
    return columns.unflatten(1, (maps.shape[1], side, side)).unflatten(4, (rows, cols)).permute(
        0, 1, 4, 5, 2, 3
    )  # fmt: skip
