"""Where a CPU may take a lean way: a function that has its own backward pass, or its own draws."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether torch.func or forward differentiation must see each operation."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def may_be_lean(x: Float[Tensor, "..."]) -> bool:
    """On a CPU, unless torch must see each operation: to compile, to export, to transform it."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed()


def must_be_plain(gradient: Float[Tensor, "..."]) -> bool:
    """Of a backward pass: it is to be differentiated once more, or has a batch of gradients."""
    batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
    return torch.is_grad_enabled() or is_transformed() or batched


def gradients_of(
    formula: Callable[..., Tensor],
    given: Sequence[Float[Tensor, "..."]],
    gradient: Float[Tensor, "..."],
) -> tuple[Tensor | None, ...]:
    """Those of a plain formula, which can be differentiated again; None where none is wanted."""
    with torch.enable_grad():
        out = formula(*given)
    wanted = [x for x in given if x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True, allow_unused=True))
    return tuple(next(found) if x.requires_grad else None for x in given)
