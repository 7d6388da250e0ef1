"""Where a CPU may take a lean way: a function that has its own backward pass, or its own draws."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def may_be_lean(x: Float[Tensor, "..."]) -> bool:
    """On a CPU, unless torch must see each operation: to compile, to export, for torch.func."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()


def gradients_of(
    out: Float[Tensor, "..."],
    given: Sequence[Float[Tensor, "..."]],
    gradient: Float[Tensor, "..."],
) -> tuple[Tensor | None, ...]:
    """Those of a plain formula, which can be differentiated again; None where none is wanted."""
    wanted = [x for x in given if x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True, allow_unused=True))
    return tuple(next(found) if x.requires_grad else None for x in given)
