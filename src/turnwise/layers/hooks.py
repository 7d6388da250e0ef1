"""Who listens to the parts of a module: a way that does not call them would leave it unheard."""

from torch import nn


def has_hooks(module: nn.Module) -> bool:
    """Whether anything waits for a call of a part of the module."""
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for name, part in module.named_modules()
        if name
    )
