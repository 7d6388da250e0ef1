"""Where kernels run: Triton takes the current device, not that of the tensors."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Operator = TypeVar("Operator", bound=Callable[..., Any])


def on_its_device(operator: Operator) -> Operator:
    """`operator`, with the device of its first tensor, or list of them, current while it runs."""

    @wraps(operator)
    def there(first: torch.Tensor | list[torch.Tensor], *rest: Any, **named: Any) -> Any:
        with torch.cuda.device_of(first[0] if isinstance(first, list) else first):
            return operator(first, *rest, **named)

    return there  # type: ignore[return-value]
