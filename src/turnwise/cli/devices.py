"""Which device a command uses."""

from typing import Any

from turnwise.errors import InputError


def chosen_device(name: str) -> Any:
    """The device called `name`; "auto" is the GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=name).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {name!r} cannot be used here; try auto or cpu.") from error
    return torch.device(name)
