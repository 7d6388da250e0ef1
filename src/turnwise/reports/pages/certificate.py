"""A certificate as tables: for the terminal, and as a self-contained page with the worst images."""

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.evaluation.certificate.certificate import (
    AngleCheck,
    Certificate,
    ConditionCheck,
    ElementCheck,
    SizeCheck,
    TransformationCheck,
)
from turnwise.evaluation.transformations import (
    corner_control,
    describe_element,
    unclaimed_transformations,
)
from turnwise.files import to_json_value
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE
from turnwise.inference.predictor import PRECISIONS
from turnwise.reports.pages import (
    Section,
    code_html,
    image_html,
    page,
    paragraph_html,
    table_html,
)
from turnwise.reports.tables import UNDEFINED, format_error, format_percent, text_table

Images = Float[Tensor, "image channel row col"]
NEARBY = 3  # layers shown before and after the source of an error
MAX_SHIFT = 64  # pixels
CLAIMED = (
    "The largest change of the output, relative to its size, when every image is transformed by "
    "the element. The element holds if that is rounding error: 1e-10 in float64, 1e-4 in float32, "
    "5e-2 in 16 bits."
)
MEASURED = (
    "Measured, not claimed: pixels cannot be rotated by these angles without interpolation, and a "
    "shifted image loses a border. Where only the corners are filled, nothing is rotated: that "
    "change is due to the corners. The margin is the smallest lead of the original class over "
    "every other class after the transformation; below 0, a prediction changed."
)
TRACED = (
    "The features of an image and of the transformed image are compared after every layer, in the "
    "layout that fits best. – means that no layout fits, or that the layer does not depend on the "
    "image."
)


@dataclass(frozen=True)
class Table:
    """Headers, and rows of text."""

    headers: list[str]
    rows: list[list[str]]


def certificate_text(certificate: Certificate) -> str:
    """Return the certificate for the terminal: tables and the verdict."""
    tables = [
        element_table(certificate), condition_table(certificate), size_table(certificate),
        control_table(certificate),
        angle_table(certificate), transformation_table(certificate), worst_table(certificate),
        layer_table(certificate, nearby=True),
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{certificate.target} under {certificate.group}, on {certificate.images}",
            *(text_table(table.headers, table.rows) for table in tables if table.rows),
            *findings(certificate),
            "Not tested: " + "; ".join(certificate.untested) + ".",
            verdict(certificate),
        ]
    )


def certificate_page(certificate: Certificate, images: Images) -> str:
    """Return the whole page; `images` are those that the certificate was measured on."""
    found = findings(certificate)
    facts = paragraph_html("\n".join(found)) if found else ""
    controls = _table_html(control_table(certificate))
    sections = [
        Section("Verdict", paragraph_html(_verdict_sentence(certificate)) + facts),
        Section("Claimed: the symmetries of the pixel grid",
                _table_html(element_table(certificate), CLAIMED)),
        Section("Claimed: under other conditions", _table_html(condition_table(certificate))),
        Section("Claimed: other sizes", _table_html(size_table(certificate))),
        Section("Negative controls: the output must change", controls),
        Section("Measured: any angle", _table_html(angle_table(certificate), MEASURED)),
        Section("Measured: reflections, shifts and filled corners",
                _table_html(transformation_table(certificate))),
        Section("Worst images", _worst_html(certificate, images)),
        Section("Layer by layer", _table_html(layer_table(certificate), TRACED)),
        Section("Not tested", paragraph_html("\n".join(certificate.untested))),
        Section("Identity", _identity_html(certificate)),
        Section("As JSON", code_html(json.dumps(_without_long_tables(certificate), indent=1))),
    ]  # fmt: skip
    return page(
        f"Certificate: {certificate.target}",
        [section for section in sections if section.html],
        summary=f"{verdict(certificate)}, on {certificate.images}.",
    )


def verdict(certificate: Certificate) -> str:
    """Return whether the model is invariant, and under what."""
    words = "INVARIANT" if certificate.holds else "NOT INVARIANT"
    return f"{words} under {certificate.claim}"


def findings(certificate: Certificate) -> list[str]:
    """Return sentences: where an error starts, and how a file compares with its original."""
    found = []
    if certificate.error_source:
        found.append(f"The error enters at {certificate.error_source}.")
    original = certificate.original
    if original is not None:
        found.append(
            f"{'Agrees' if original.holds else 'DOES NOT AGREE'} with {original.target}: change "
            f"{format_error(original.change)}, same prediction "
            f"{format_percent(original.agreement)}."
        )
    return found


def element_table(certificate: Certificate) -> Table:
    """Return what is claimed: every element that maps pixels to pixels."""
    used = _measured_precisions(certificate.elements)
    rows = [
        [
            str(e.element), e.meaning, *(format_error(getattr(e, p)) for p in used),
            "holds" if e.holds else "FAILS", *_decision_cells(e),
        ]
        for e in certificate.elements
    ]  # fmt: skip
    limits = ", ".join(f"≤ {_tolerance(p)}" for p in used)
    headers = ["element", "transformation", *used, limits, *_DECISION_HEADERS]
    return Table(headers, rows)


def control_table(certificate: Certificate) -> Table:
    rows = [
        [c.name, format_error(c.change), "passed" if c.holds else "FAILED"]
        for c in certificate.controls
    ]
    return Table(["negative control: output must change", "change", ""], rows)


def size_table(certificate: Certificate) -> Table:
    used = _measured_precisions(certificate.sizes)
    rows = [
        [
            f"{s.size} pixels", *(format_error(getattr(s, p)) for p in used),
            f"refused: {s.refusal}" if s.refusal else "holds" if s.holds else "FAILS",
        ]
        for s in certificate.sizes
    ]  # fmt: skip
    return Table(["size", *used, "worst element"], rows)


def condition_table(certificate: Certificate) -> Table:
    used = _measured_precisions(certificate.conditions)
    rows = [
        [
            c.condition, *(format_error(getattr(c, p)) for p in used),
            f"not measured: {c.refusal}" if c.refusal else "holds" if c.holds else "FAILS",
        ]
        for c in certificate.conditions
    ]  # fmt: skip
    return Table(["condition", *used, "worst element"], rows)


def angle_table(certificate: Certificate) -> Table:
    rows = [
        [f"{a.degrees:g}°", format_error(a.change), *_decision_cells(a)]
        for a in certificate.angles
    ]  # fmt: skip
    heading = f"measured: rotate by (corners: {certificate.fill})"
    return Table([heading, "change", *_DECISION_HEADERS], rows)


def transformation_table(certificate: Certificate) -> Table:
    rows = [
        [t.meaning, format_error(t.change), *_decision_cells(t)]
        for t in certificate.transformations
    ]  # fmt: skip
    return Table(["measured: transformation", "change", *_DECISION_HEADERS], rows)


def worst_table(certificate: Certificate) -> Table:
    rows = [
        [str(w.image), w.transformation, "claimed" if w.claimed else "measured",
         format_error(w.probability), f"{w.before} → {w.after}", f"{w.margin:.3f}"]
        for w in certificate.worst_images
    ]  # fmt: skip
    return Table(["worst image", "transformation", "", "probability", "prediction", "margin"], rows)


def layer_table(certificate: Certificate, *, nearby: bool = False) -> Table:
    """Return the errors layer by layer; `nearby` keeps those around the source of the error."""
    sources = [
        certificate.error_source.startswith(f"{check.layer} (") for check in certificate.layers
    ]
    rows = [
        [
            c.layer, c.kind, c.layout or UNDEFINED, format_error(c.input_error),
            format_error(c.output_error), "enters here" if is_source else "",
        ]
        for c, is_source in zip(certificate.layers, sources, strict=True)
    ]  # fmt: skip
    if nearby:
        at = sources.index(True) if True in sources else -2 * NEARBY
        rows = rows[max(0, at - NEARBY) : max(0, at + NEARBY + 1)]
    return Table(["layer", "kind", "layout", "input error", "output error", ""], rows)


_DECISION_HEADERS = ["same prediction", "probability", "margin"]


def _decision_cells(check: ElementCheck | AngleCheck | TransformationCheck) -> list[str]:
    return [
        format_percent(check.agreement),
        format_error(check.probability),
        f"{check.margin:.3f}",
    ]


def _measured_precisions(
    checks: Sequence[ElementCheck | SizeCheck | ConditionCheck],
) -> list[str]:
    return [p for p in PRECISIONS if any(getattr(check, p) is not None for check in checks)]


def _tolerance(precision: str) -> str:
    """Return 1e-4 for float32, and so on."""
    limit = TOLERANCE.get(getattr(torch, precision), COARSE_TOLERANCE)
    return f"{limit:.0e}".replace("e-0", "e-")


def _verdict_sentence(certificate: Certificate) -> str:
    broken = [e.meaning for e in certificate.elements if not e.holds]
    failed = [c.name for c in certificate.controls if not c.holds]
    if certificate.holds:
        return f"{verdict(certificate)}: every element holds, and every negative control passed."
    parts = [f"broken by: {', '.join(broken)}"] if broken else []
    parts += [f"failed negative controls: {', '.join(failed)}"] if failed else []
    parts += [f"broken at size {s.size}" for s in certificate.sizes if not s.holds]
    parts += [f"broken: {c.condition}" for c in certificate.conditions if not c.holds]
    return f"{verdict(certificate)}; {'; '.join(parts) or 'see below'}."


def _table_html(table: Table, note: str = "") -> str:
    if not table.rows:
        return ""
    return table_html(table.headers, table.rows) + (paragraph_html(note) if note else "")


def _worst_html(certificate: Certificate, images: Images) -> str:
    """Return each of the worst images, before and after its transformation."""
    pairs = []
    for worst in certificate.worst_images:
        image = images[worst.image : worst.image + 1].float().cpu()
        shown = [image[0], transform_by_name(worst.transformation, image, certificate.fill)[0]]
        alts = [f"image {worst.image}", f"image {worst.image}, {worst.transformation}"]
        cells = [image_html(_to_bytes(view), alt) for view, alt in zip(shown, alts, strict=True)]
        pairs.append(
            f"<figure>{' '.join(cells)}<figcaption>{html.escape(alts[1])}: class {worst.before} → "
            f"{worst.after}, largest change of a probability {worst.probability:.3g}"
            "</figcaption></figure>"
        )
    return _table_html(worst_table(certificate)) + "\n".join(pairs)


def transform_by_name(meaning: str, images: Images, fill: str = "zeros") -> Images:
    """Apply the transformation that a certificate describes in these words."""
    d4 = PlanarGroup.named("D4")
    named: dict[str, Callable[[Images], Images]]
    named = {describe_element(d4, g): partial(act_on_image, d4, g) for g in range(d4.order)}
    named |= {t.meaning: t.apply for t in unclaimed_transformations(PlanarGroup(1), MAX_SHIFT)}
    control = corner_control(fill)
    named[control.meaning] = control.apply
    if meaning in named:
        return named[meaning](images)
    if meaning.startswith("rotate by "):
        return rotate_image(images, float(meaning.removeprefix("rotate by ").rstrip("°")), fill)
    return images


def _to_bytes(image: Float[Tensor, "channel row col"]) -> Tensor:
    """Return grey or RGB; with any other number of channels, the first one."""
    shown = image if len(image) in (1, 3) else image[:1]
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8)


def _identity_html(certificate: Certificate) -> str:
    rows: Sequence[Sequence[str]] = [
        ["weights (SHA-256)", certificate.weights_sha256],
        ["images (SHA-256)", certificate.data_sha256],
        ["date", certificate.date],
        *([name, version] for name, version in certificate.versions.items()),
    ]
    check = paragraph_html("Check this certificate with: turnwise verify certificate.json")
    return table_html(["what", "value"], rows) + check


def _without_long_tables(certificate: Certificate) -> object:
    """Return the plain values without the long tables, which the page shows above."""
    long = ("layers", "angles", "transformations")
    return {k: v for k, v in to_json_value(certificate.plain()).items() if k not in long}
