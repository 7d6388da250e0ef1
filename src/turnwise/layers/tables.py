"""Tables that a layer is made with, and that no move of its weights may harm.

They are buffers that are not saved, made by the layer's `_register_tables`.  A cast to sixteen bits
and back would leave them rounded for good, though the weights are loaded anew; and a layer that was
made without memory (`torch.device("meta")`, `to_empty`) would find nothing in them.

Who listens to the parts of a module: a way that does not call them would leave it unheard.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from turnwise.groups import PlanarGroup

Layer = TypeVar("Layer", bound=type[nn.Module])


def device_of_buffer(layer: nn.Module, name: str) -> torch.device | None:
    """Where the layer's buffer is; where tensors are made, if it has none yet."""
    buffer = layer._buffers.get(name)
    return None if buffer is None else buffer.device


def register_group(layer: nn.Module, group: PlanarGroup, device: torch.device) -> None:
    """The layer's tables `matrices` [h] and `relative` [h, a] -> h⁻¹a."""
    with torch.device("cpu"):  # where there is memory, whatever device is in use
        tables = {"matrices": group.matrices(), "relative": group.relative()}
    for name, table in tables.items():
        layer.register_buffer(name, table.to(device), persistent=False)


def remakes_tables(layer: Layer) -> Layer:
    """The class, whose tables are made anew after each move to a device or a precision."""
    move: Any = layer._apply

    def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        move(self, fn, recurse)
        self._register_tables()
        return self

    layer._apply = _apply  # type: ignore[method-assign]
    return layer


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
