"""Numbers and tables as text, for the terminal and for Markdown."""

import math
import re
import unicodedata
from collections.abc import Sequence

from turnwise.data.targets import TargetKind
from turnwise.evaluation.metrics import Interval

Rows = Sequence[Sequence[str]]
UNDEFINED = "–"
_NUMBER = re.compile(
    rf"[-+−]?\d[\d., ]*(e[-+]?\d+)?×?( ?(%|°|[a-zA-Zµ]{{1,3}}(/s)?))?( \(.*\))?|inf|{UNDEFINED}"
)


def format_percent(score: Interval | float, digits: int = 1) -> str:
    """Return a fraction in percent, with its interval if it has one.

    >>> format_percent(0.972), format_percent(Interval(0.972, 0.961, 0.98))
    ('97.2 %', '97.2 % (96.1–98.0)')
    """
    if isinstance(score, Interval):
        value = format_percent(score.value, digits)
        if value == UNDEFINED or math.isnan(score.low):
            return value
        return f"{value} ({100 * score.low:.{digits}f}–{100 * score.high:.{digits}f})"
    return UNDEFINED if math.isnan(score) else f"{100 * score:.{digits}f} %"


def format_score(kind: TargetKind, name: str, score: Interval | float, digits: int = 1) -> str:
    """Return a score of a kind of target: a share in percent, or a number in its unit.

    >>> from turnwise.data.targets import make_kind
    >>> angle = make_kind("number", ("angle",), "°")
    >>> format_score(angle, "mae", Interval(2.5, 2.0, 3.25)), format_score(angle, "r2", 0.5)
    ('2.5 ° (2–3.25)', '0.5')
    """
    if name not in kind.plain_scores:
        return format_percent(score, digits)
    unit = f" {kind.unit}" if kind.unit and name in kind.falling else ""
    if not isinstance(score, Interval):
        return UNDEFINED if math.isnan(score) else f"{score:.4g}{unit}"
    value = format_score(kind, name, score.value)
    if value == UNDEFINED or math.isnan(score.low):
        return value
    return f"{value} ({score.low:.4g}–{score.high:.4g})"


def format_error(error: float | None) -> str:
    """Return an equivariance error with two digits; None and NaN are undefined.

    >>> format_error(3.33e-16), format_error(0.0), format_error(0.25)
    ('3.3e-16', '0', '2.5e-01')
    """
    if error is None or math.isnan(error):
        return UNDEFINED
    return "0" if error == 0 else f"{error:.1e}"


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with or without unit and interval."""
    return _NUMBER.fullmatch(cell) is not None


def numeric_columns(headers: Sequence[str], rows: Rows) -> list[bool]:
    """Return which columns hold only numbers, and are therefore flush right."""
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    return [bool(cells) and all(map(is_number, cells)) for cells in columns]


def text_table(headers: Sequence[str], rows: Rows) -> str:
    """Return a table for the terminal: words flush left, numbers flush right.

    >>> print(text_table(["model", "accuracy"], [["gsa", "97.2 %"], ["plain-vit", "9.8 %"]]))
    model      accuracy
    ---------  --------
    gsa          97.2 %
    plain-vit     9.8 %
    """
    right = numeric_columns(headers, rows)
    lines = [[_one_line(cell) for cell in line] for line in (headers, *rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headers))]
    lines.insert(1, ["-" * width for width in widths])
    filled = [[_fill(*cell) for cell in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in filled)


def markdown_table(headers: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown; cells may hold Markdown, but cannot break the table or add HTML.

    >>> print(markdown_table(["model", "error"], [["gsa|p4", "3.3e-16"]]))
    | model | error |
    |:--|--:|
    | gsa\\|p4 | 3.3e-16 |
    """
    rule = ["--:" if right else ":--" for right in numeric_columns(headers, rows)]
    escaped = [
        [_one_line(cell).replace("|", r"\|").replace("<", "&lt;") for cell in line]
        for line in (headers, *rows)
    ]
    head, *body = [f"| {' | '.join(line)} |" for line in escaped]
    return "\n".join([head, f"|{'|'.join(rule)}|", *body])


def _one_line(cell: str) -> str:
    """Replace what a terminal would act on (line breaks, escape codes, bidi marks) by spaces."""
    return "".join(c if c.isprintable() else " " for c in cell)


def _width(cell: str) -> int:
    """Return the width in terminal columns: ideographs take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in cell)
    return len(cell) + wide - sum(unicodedata.combining(c) > 0 for c in cell)


def _fill(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if right else cell + space
