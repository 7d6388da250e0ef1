"""Where fused implementations run: the current CUDA device, or eager mode on a CPU."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

Operator = TypeVar("Operator", bound=Callable[..., Any])


def on_its_device(operator: Operator) -> Operator:
    """Make the device of the first tensor (or list of tensors) current while `operator` runs.

    Triton launches on the current device, not on that of the tensors.
    """

    @wraps(operator)
    def there(first: Tensor | list[Tensor], *rest: Any, **named: Any) -> Any:
        with torch.cuda.device_of(first[0] if isinstance(first, list) else first):
            return operator(first, *rest, **named)

    return there  # type: ignore[return-value]


def is_transformed() -> bool:
    """Return whether torch.func or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_eager_on_cpu(x: Float[Tensor, "..."]) -> bool:
    """Return whether x is on the CPU and torch need not see each operation.

    It must see them to compile, to export and to transform a function.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed()


def needs_plain_backward(gradient: Float[Tensor, "..."]) -> bool:
    """Return whether a backward pass is differentiated again, or runs for a batch of gradients."""
    batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
    return torch.is_grad_enabled() or is_transformed() or batched


def plain_gradients(
    formula: Callable[..., Tensor],
    inputs: Sequence[Float[Tensor, "..."]],
    gradient: Float[Tensor, "..."],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a formula, which can be differentiated again; None where unused."""
    with torch.enable_grad():
        out = formula(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True, allow_unused=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)
