"""A certificate as tables: the same rows for the terminal and for the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.evaluation import Certificate
from turnwise.evaluation.certificate.layers import LayerCheck
from turnwise.evaluation.certificate.scores import PRECISIONS
from turnwise.reports.tables import UNDEFINED, format_error, format_percent, text_table

LIMITS = {"float64": "1e-10", "float32": "1e-4", "bfloat16": "5e-2", "float16": "5e-2"}
NEAR = 3  # layers shown before and after the one that breaks


@dataclass(frozen=True)
class Table:
    """What it is about, a line of headers, and rows of text."""

    title: str
    headers: list[str]
    rows: list[list[str]]


def describe(certificate: Certificate) -> str:
    """The certificate for the terminal: tables and a verdict."""
    tables = [
        element_table(certificate), control_table(certificate), size_table(certificate),
        angle_table(certificate), move_table(certificate), worst_table(certificate),
        layer_table(certificate, nearby=True),
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{certificate.target} under {certificate.group}, on {certificate.pictures}",
            *(text_table(table.headers, table.rows) for table in tables if table.rows),
            *findings(certificate),
            verdict(certificate),
        ]
    )


def verdict(certificate: Certificate) -> str:
    words = "INVARIANT" if certificate.holds else "NOT INVARIANT"
    return f"{words} under {certificate.claim}"


def findings(certificate: Certificate) -> list[str]:
    """Sentences about where an error enters, and how a file compares with its original."""
    said = []
    if certificate.entry:
        said.append(f"The error enters at {certificate.entry}.")
    if certificate.likeness is not None:
        like = certificate.likeness
        said.append(
            f"{'Answers' if like.holds else 'DOES NOT ANSWER'} like {like.target}: change "
            f"{format_error(like.change)}, same decision {format_percent(like.agreement)}."
        )
    return said


def element_table(certificate: Certificate) -> Table:
    """Claimed: every element that maps pixels to pixels."""
    used = [p for p in PRECISIONS if any(getattr(e, p) is not None for e in certificate.elements)]
    rows = [
        [
            str(e.element), e.meaning, *(format_error(getattr(e, p)) for p in used),
            "holds" if e.holds else "FAILS", format_percent(e.agreement),
            format_error(e.probability), f"{e.margin:.3f}",
        ]
        for e in certificate.elements
    ]  # fmt: skip
    limits = ", ".join(f"≤ {LIMITS[p]}" for p in used)
    headers = ["element", "does", *used, limits, "same decision", "probability", "margin"]
    return Table("Claimed: the symmetries of the pixel grid", headers, rows)


def control_table(certificate: Certificate) -> Table:
    rows = [
        [c.name, format_error(c.change), "speaks" if c.holds else "IS SILENT"]
        for c in certificate.controls
    ]
    return Table("Controls", ["control: must move the answer", "change", ""], rows)


def size_table(certificate: Certificate) -> Table:
    used = [p for p in PRECISIONS if any(getattr(s, p) is not None for s in certificate.sizes)]
    rows = [
        [
            f"{s.size} pixels", *(format_error(getattr(s, p)) for p in used),
            f"refused: {s.refusal}" if s.refusal else "holds" if s.holds else "FAILS",
        ]
        for s in certificate.sizes
    ]  # fmt: skip
    return Table("Claimed: other sizes", ["size", *used, "worst element"], rows)


def angle_table(certificate: Certificate) -> Table:
    rows = [
        [f"{a.degrees:g}°", format_error(a.change), format_percent(a.agreement),
         format_error(a.probability), f"{a.margin:.3f}"]
        for a in certificate.angles
    ]  # fmt: skip
    headers = ["measured: turn by", "change", "same decision", "probability", "margin"]
    return Table("Measured: angles", headers, rows)


def move_table(certificate: Certificate) -> Table:
    rows = [
        [m.meaning, format_error(m.change), format_percent(m.agreement),
         format_error(m.probability), f"{m.margin:.3f}"]
        for m in certificate.moves
    ]  # fmt: skip
    headers = ["measured: move", "change", "same decision", "probability", "margin"]
    return Table("Measured: mirrors and shifts", headers, rows)


def worst_table(certificate: Certificate) -> Table:
    rows = [
        [str(w.picture), w.move, "claimed" if w.claimed else "measured",
         format_error(w.probability), f"{w.before} → {w.after}", f"{w.margin:.3f}"]
        for w in certificate.worst
    ]  # fmt: skip
    headers = ["worst picture", "move", "", "probability", "decision", "margin"]
    return Table("Worst pictures", headers, rows)


def layer_table(certificate: Certificate, *, nearby: bool = False) -> Table:
    """The law layer by layer; `nearby` keeps those around the one where the error enters."""
    shown: Sequence[LayerCheck] = certificate.layers
    if nearby:
        place = _entry_place(certificate)
        shown = () if place is None else shown[max(0, place - NEAR) : place + NEAR + 1]
    rows = [
        [
            c.layer, c.kind, c.reading or UNDEFINED,
            format_error(c.before), format_error(c.error),
            "enters here" if certificate.entry.startswith(f"{c.layer} (") else "",
        ]
        for c in shown
    ]  # fmt: skip
    headers = ["layer", "kind", "read as", "error of input", "of output", ""]
    return Table("Layer by layer", headers, rows)


def _entry_place(certificate: Certificate) -> int | None:
    """Where in the list of layers the error enters."""
    return next(
        (
            place
            for place, check in enumerate(certificate.layers)
            if certificate.entry.startswith(f"{check.layer} (")
        ),
        None,
    )
