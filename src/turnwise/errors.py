"""`InputError`, the exception that users see, and the checks that raise it."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from reprlib import Repr
from typing import Any

TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
}


class InputError(ValueError):
    """The user's input cannot be used; the message says what would work."""


class UnfinishedRunError(InputError):
    """A run has no model yet; its training can be resumed in `folder`."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


class _ShortRepr(Repr):
    """Show the first entries of a value: a list of lists of lists may have no end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 60, 60

    def repr_int(self, value: int, level: int) -> str:
        return repr(value) if abs(value) < 10**20 else "a huge number"


_SHORT = _ShortRepr()


def shown(value: Any) -> str:
    """Return a value as a message shows it, on one line of limited length.

    >>> shown([1, "b", {"c": [2**70]}])
    "[1, 'b', {'c': [...]}]"
    """
    return _SHORT.repr(value)


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def require_known(name: str, known: Iterable[str], what: str) -> None:
    """Raise unless `name` is one of `known`, suggesting the nearest spelling."""
    known = sorted(known)
    if name in known:
        return
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"unknown {what} {shown(name)}.{hint} Known: {', '.join(known)}.")


def import_extra(package: str, extra: str, what: str) -> Any:
    """Import a package of one of our optional extras; raise if it is missing and `what` needs it.

    >>> import_extra("math", "slides", "a pyramid").sqrt(4.0)
    2.0
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"{what} needs the package {package.partition('.')[0]}; install it with "
            f"pip install turnwise[{extra}]."
        ) from error


def require_kind(value: Any, kind: type, what: str) -> None:
    """Raise unless `value` is of type `kind`; an int is also a float, but a bool is no number."""
    accepted = {float: (int, float), tuple: (tuple, list)}.get(kind, kind)
    if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
        return
    raise InputError(f"{what} must be {TYPE_NAMES.get(kind, kind.__name__)}, got {shown(value)}.")


def require_positive(**counts: int) -> None:
    """Raise unless every count is at least 1."""
    for what, value in counts.items():
        require(value >= 1, f"{what} = {value} must be at least 1.")


def require_divisible(value: int, by: int, what: str, reason: str) -> None:
    """Raise unless `by` divides `value`, naming the two nearest values that work."""
    if value % by == 0 and value > 0:
        return
    below = value // by * by
    nearest = f"{below} or {below + by}" if below > 0 else f"{by}"
    raise InputError(f"{what} = {value} must be a multiple of {by} ({reason}); try {nearest}.")
