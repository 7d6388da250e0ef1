"""Options as frozen dataclasses: described once, converted from plain values, and checked.

A class of options is a frozen dataclass that inherits from `Options` and whose fields are made with
`option(...)`.  Recipe keys, command-line flags, help texts and what is stored beside the weights
all follow from the fields:

>>> @dataclass(frozen=True)
... class Cooling(Options):
...     speed: float = option(1.0, "revolutions per second", above=0)
...     blades: tuple[int, ...] = option((3, 3), "blades of each fan", at_least=1)
...     mode: str = option("auto", "who decides", choices=("auto", "manual"))
>>> Cooling(speed=2, blades=[4])
Cooling(speed=2.0, blades=(4,), mode='auto')
>>> [o.name for o in describe(Cooling)]
['speed', 'blades', 'mode']
"""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from turnwise.errors import InputError, require, require_kind, require_known, shown

Kind = TypeVar("Kind")
MAX_INTEGER = 2**20  # of an option without a bound of its own
MAX_NUMBER = 1e12
MAX_ENTRIES = 1024  # of a list


@dataclass(frozen=True)
class Option:
    """One option of a class: its name, type, default value, description, and what it may be.

    Args:
        default: the value where none is given; MISSING if the option is required.
        help: one line for command-line help and documentation.
        choices: the only strings allowed.
        at_least, above, at_most, below: bounds of a number, or of each number in a list.
        aliases: earlier names, accepted wherever plain values are read.
        changes_output: False for options that a trained model may change freely.
        absent: the value for models that were stored before the option existed; None is the
            default.
    """

    name: str
    hint: Any
    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()
    at_least: int | float | None = None
    above: int | float | None = None
    at_most: int | float | None = None
    below: int | float | None = None
    aliases: tuple[str, ...] = ()
    changes_output: bool = True
    absent: Any = None

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def check(self, value: Any, name: str) -> None:
        """Raise unless a value, or each entry of a list, is one of the choices or in bounds."""
        if isinstance(value, tuple):
            for number, entry in enumerate(value):
                self.check(entry, f"{name}[{number}]")
        elif isinstance(value, str) and self.choices:
            require_known(value, self.choices, name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            require(math.isfinite(value), f"{name} = {value} must be finite.")
            is_short = isinstance(value, float) or abs(value) < MAX_NUMBER
            shown = value if is_short else "a huge number"
            require(self._is_inside(value), f"{name} = {shown} must be {self._bounds()}.")
            most = MAX_INTEGER if isinstance(value, int) else MAX_NUMBER
            require(
                self.at_most is not None or abs(value) <= most,
                f"{name} = {shown} is too large; at most {most:,.0f} is possible.",
            )

    def _is_inside(self, value: int | float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def _bounds(self) -> str:
        if self.above is not None and self.below is not None:
            return f"between {self.above:g} and {self.below:g}"
        high = "" if self.below is None else f"below {self.below:g}"
        high = high if self.at_most is None else f"{self.at_most:g}"
        if self.at_least is not None:
            return f"from {self.at_least:g} to {high}" if high else f"at least {self.at_least:g}"
        low = "" if self.above is None else f"above {self.above:g}"
        return " and ".join(filter(None, [low, high and f"at most {high}"]))


_PLAIN = Option("", None, MISSING)  # of fields that `option` did not make


def option(
    default: Any = MISSING, help: str = "", *, choices: Iterable[str] = (), **rules: Any
) -> Any:
    """Make a dataclass field that describes an option; `Option` explains the arguments."""
    metadata = {"option": Option("", None, MISSING, help, tuple(choices), **rules)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Options:
    """Base class of option dataclasses: an instance holds converted and checked values."""

    def __post_init__(self) -> None:
        for o in describe(type(self)):
            value = convert(o.hint, getattr(self, o.name), o.name)
            o.check(value, o.name)
            object.__setattr__(self, o.name, value)
        self.validate()

    def validate(self) -> None:
        """Raise `InputError` where options contradict each other; a class may override this."""


def describe(kind: Any) -> tuple[Option, ...]:
    """Return the options of a class, or of an instance, whose values are then the defaults.

    A class's own options come before those that it inherits.
    """
    cls = kind if isinstance(kind, type) else type(kind)
    hints, own = typing.get_type_hints(cls), inspect.get_annotations(cls)
    return tuple(
        replace(
            f.metadata.get("option", _PLAIN),
            name=f.name, hint=hints[f.name],
            default=_default(f) if kind is cls else getattr(kind, f.name),
        )
        for f in sorted(fields(cls), key=lambda f: f.name not in own)
    )  # fmt: skip


def from_plain(kind: type[Kind], values: Any, where: str, known: Iterable[str] = ()) -> Kind:
    """Build options from a mapping as YAML or JSON gives it; every key and type is checked.

    `where` names the mapping in messages, and `known` lists keys to suggest beside the options.
    """
    options = {o.name: o for o in describe(kind)}
    values = rename_aliases(options.values(), values, where)
    for key in values:
        require_known(key, [*options, *known], f"{where} key")
    for o in options.values():
        require(not o.is_required or o.name in values, f"{where} needs {o.name!r}.")
    prefix = "" if where == "recipe" else f"{where}."
    return kind(**{k: convert(options[k].hint, v, prefix + k) for k, v in values.items()})


def rename_aliases(options: Iterable[Option], values: Any, where: str) -> dict[str, Any]:
    """Return `values` with earlier names of options replaced by the present ones."""
    require(isinstance(values, Mapping), f"{where} must have keys and values, got {shown(values)}.")
    renamed = {str(key): value for key, value in values.items()}
    for o in options:
        for alias in o.aliases:
            if alias in renamed:
                require(o.name not in renamed, f"{where} has both {alias!r} and {o.name!r}.")
                renamed[o.name] = renamed.pop(alias)
    return renamed


def to_plain(value: Any) -> Any:
    """Return the value as JSON and YAML store it: tuples become lists, options dictionaries."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    return [to_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def convert(hint: Any, value: Any, name: str) -> Any:
    """Return `value` as the type of the option: 1 is also 1.0, and YAML reads 1e-3 as text.

    A list of texts may be written as one text with commas.
    """
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    possible = [k for k in kinds if k is not types.NoneType]
    kind = next(
        (k for k in possible if _is_list(k) == isinstance(value, list | tuple)), possible[0]
    )
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if isinstance(value, kind):
            return value
        return from_plain(kind, {} if value is None else value, name)
    origin, entries = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)
    if origin is tuple and entries[0] is str and isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    require_kind(value, origin, name)
    if origin is tuple:
        require(
            len(value) <= MAX_ENTRIES, f"{name} has {len(value)} entries, more than {MAX_ENTRIES}."
        )
        return tuple(convert(entries[0], v, f"{name}[{i}]") for i, v in enumerate(value))
    return value


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _default(f: "dataclasses.Field[Any]") -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def parse_value(text: str, what: str) -> Any:
    """Read the text of key=value as YAML does: 3, 0.5, true, [1, 2] or plain text."""
    from turnwise.parsing import parse_yaml

    try:
        return parse_yaml(text)
    except InputError as error:
        raise InputError(f"the value of {shown(what)} cannot be read as YAML: {error}.") from error
