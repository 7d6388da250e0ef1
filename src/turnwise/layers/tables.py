"""Tables of a layer: buffers that are not saved and that no change of device or type may damage.

A layer makes them in `_register_tables`.  Without this, a cast to 16 bits and back would leave them
rounded even after the weights are loaded again, and a layer made on the meta device would have none
after `to_empty`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from turnwise.groups import PlanarGroup

Layer = TypeVar("Layer", bound=type[nn.Module])


def device_of_buffer(layer: nn.Module, name: str) -> torch.device | None:
    """Return the device of the layer's buffer, None if it has none yet."""
    buffer = layer._buffers.get(name)
    return None if buffer is None else buffer.device


def register_group(layer: nn.Module, group: PlanarGroup, device: torch.device) -> None:
    """Register the tables `matrices` [h] and `relative` [h, a] -> h⁻¹a."""
    with torch.device("cpu"):  # also where the default device is meta
        tables = {"matrices": group.matrices(), "relative": group.relative()}
    for name, table in tables.items():
        layer.register_buffer(name, table.to(device), persistent=False)


def remakes_tables(layer: Layer) -> Layer:
    """Class decorator: make the tables again after each change of device or type."""
    move: Any = layer._apply

    def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        move(self, fn, recurse)
        self._register_tables()
        return self

    layer._apply = _apply  # type: ignore[method-assign]
    return layer


def has_hooks(module: nn.Module) -> bool:
    """Return whether a part of the module has hooks, which a path around its call would skip."""
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for name, part in module.named_modules()
        if name
    )
