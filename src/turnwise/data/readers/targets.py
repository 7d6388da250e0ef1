"""From the label columns of a manifest to targets, by the types of the columns or a setting."""

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from turnwise.data.dataset import Target
from turnwise.data.reading import Reading
from turnwise.errors import InputError, require

SEPARATORS = "|;"  # between the labels of one image in one column
_BINARY = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "0.0": 0.0, "1.0": 1.0}

Cells = Mapping[str, Sequence[str]]  # of the label columns, by name


def read_targets(cells: Cells, reading: Reading, path: object) -> tuple[Target, Tensor]:
    """Return what the columns mean, and one target per row.

    One column of texts or whole numbers holds classes, one with fractions numbers.  Several columns
    of 0 and 1 hold labels, several of other numbers hold numbers.  `reading.target` overrides this.
    """
    kind = _kind_of(cells, path) if reading.target == "auto" else reading.target
    first, *others = cells
    require(
        not others or kind in ("multilabel", "number"),
        f"target = {kind} takes one label column, and {path} has {', '.join(cells)}; set "
        f"columns.label={first}.",
    )
    if kind == "number":
        columns = [[_number(text, name, row, path) for row, text in enumerate(cells[name])]
                   for name in cells]  # fmt: skip
        values = torch.tensor(columns, dtype=torch.float32).T.contiguous()
        return Target(kind, tuple(cells), reading.unit), values
    if kind == "multilabel":
        return _labels(cells, reading, path)
    names = order_classes(sorted(set(cells[first]), key=_natural), reading, f"{path}, {first}")
    require(
        len(names) >= 2,
        f"the column {first!r} of {path} has one class only, {names[0]!r}; at least two are "
        "needed.",
    )
    index = {name: i for i, name in enumerate(names)}
    return Target(kind, names), torch.tensor([index[name] for name in cells[first]])


def order_classes(found: Sequence[str], reading: Reading, where: str) -> tuple[str, ...]:
    """Return the classes in the order of the setting, or as they are found.

    Ordered classes are sorted as numbers if all of them are, and need the setting otherwise.
    """
    if reading.classes:
        require(
            sorted(reading.classes) == sorted(found),
            f"classes = {', '.join(reading.classes)} must be the classes of {where} in some order: "
            f"{', '.join(found)}.",
        )
        return reading.classes
    if reading.target == "ordinal":
        require(
            all(_is_number(name) for name in found),
            f"target = ordinal needs the order of the classes of {where}; set "
            f"classes={','.join(found)} in ascending order.",
        )
        return tuple(sorted(found, key=float))
    return tuple(found)


def _kind_of(cells: Cells, path: object) -> str:
    if all(text.lower() in _BINARY for column in cells.values() for text in column):
        return "class" if len(cells) == 1 else "multilabel"
    numeric = all(_is_number(text) for column in cells.values() for text in column)
    if len(cells) == 1:
        (column,) = cells.values()
        fractions = numeric and any(not float(text).is_integer() for text in column)
        return "number" if fractions else "class"
    require(
        numeric,
        f"the label columns {', '.join(cells)} of {path} must all hold 0 and 1, or all numbers; "
        "choose other columns with columns.label.",
    )
    return "number"


def _labels(cells: Cells, reading: Reading, path: object) -> tuple[Target, Tensor]:
    """Return several labels, from columns of 0 and 1 or from one column of lists."""
    if len(cells) > 1:
        columns = [[_binary(text, name, row, path) for row, text in enumerate(cells[name])]
                   for name in cells]  # fmt: skip
        return Target("multilabel", tuple(cells)), torch.tensor(columns).T.contiguous()
    (column,) = cells.values()
    lists = [[w.strip() for w in re.split(f"[{SEPARATORS}]", text) if w.strip()] for text in column]
    found = sorted({word for words in lists for word in words}, key=_natural)
    names = order_classes(found, reading, str(path))
    require(bool(names), f"the label column of {path} is empty; write labels such as cyst|stone.")
    values = [[float(name in words) for name in names] for words in lists]
    return Target("multilabel", names), torch.tensor(values)


def _number(text: str, column: str, row: int, path: object) -> float:
    if not _is_number(text):
        raise InputError(
            f"{path}, row {row + 1}: {column} = {text!r} must be a finite number; correct it, or "
            "set target=class."
        )
    return float(text)


def _binary(text: str, column: str, row: int, path: object) -> float:
    if text.lower() not in _BINARY:
        raise InputError(f"{path}, row {row + 1}: {column} = {text!r} must be 0 or 1; correct it.")
    return _BINARY[text.lower()]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _natural(text: str) -> tuple[int, float, str]:
    """Sort numbers by value, before texts."""
    return (0, float(text), text) if _is_number(text) else (1, 0.0, text)
