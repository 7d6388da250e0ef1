"""A certificate as one self-contained page: the verdict, the figures, the worst pictures."""

import html
import json
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.evaluation import Certificate
from turnwise.evaluation.certificate.moves import unclaimed_moves
from turnwise.files import to_json_value
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.pages.certificate_tables import (
    Table,
    angle_table,
    control_table,
    element_table,
    findings,
    layer_table,
    move_table,
    size_table,
    verdict,
    worst_table,
)
from turnwise.reports.pages.page import (
    Section,
    code_html,
    image_html,
    page,
    paragraph_html,
    table_html,
)

Images = Float[Tensor, "picture channel row col"]
CLAIMS = (
    "The largest change of the output, relative to its size, when every picture is moved by the "
    "element. It holds up to rounding: 1e-10 in float64, 1e-4 in float32, 5e-2 in 16 bits."
)
BESIDE = (
    "Measured, never claimed: pixels do not turn by these angles without interpolation, and a "
    "picture that moves loses a border. Margin is the smallest lead of the old decision over every "
    "other class after the move; below 0, a decision changed."
)
TRACED = (
    "A picture and the moved picture are followed through the network. The error of a layer is "
    "that of the way of turning that fits it best; – says that its shape tells none, or that "
    "the layer does not depend on the picture."
)


def certificate_page(certificate: Certificate, images: Images) -> str:
    """The whole page; `images` are the pictures that the certificate was measured on."""
    facts = paragraph_html("\n".join(findings(certificate))) if findings(certificate) else ""
    sections = [
        Section("Verdict", paragraph_html(_verdict_sentence(certificate)) + facts),
        Section("What is claimed", _table(element_table(certificate), CLAIMS)),
        Section("Other sizes", _table(size_table(certificate))),
        Section("Controls: what must move the answer", _table(control_table(certificate))),
        Section("Turned by any angle", _table(angle_table(certificate), BESIDE)),
        Section("Mirrors and shifts", _table(move_table(certificate))),
        Section("Worst pictures", _worst(certificate, images)),
        Section("Layer by layer", _table(layer_table(certificate), TRACED)),
        Section("Identity", _identity(certificate)),
        Section("The same as JSON", code_html(json.dumps(_short(certificate), indent=1))),
    ]
    return page(
        f"Certificate: {certificate.target}",
        [section for section in sections if section.html],
        summary=f"{verdict(certificate)}, on {certificate.pictures}.",
    )


def _verdict_sentence(certificate: Certificate) -> str:
    broken = [e.meaning for e in certificate.elements if not e.holds]
    silent = [c.name for c in certificate.controls if not c.holds]
    if certificate.holds:
        return f"{verdict(certificate)}: every element holds, and every control speaks."
    parts = [f"broken by: {', '.join(broken)}"] if broken else []
    parts += [f"silent controls: {', '.join(silent)}"] if silent else []
    parts += [f"broken at size {s.size}" for s in certificate.sizes if not s.holds]
    return f"{verdict(certificate)}; {'; '.join(parts) or 'see below'}."


def _table(table: Table, note: str = "") -> str:
    if not table.rows:
        return ""
    return table_html(table.headers, table.rows) + (paragraph_html(note) if note else "")


def _worst(certificate: Certificate, images: Images) -> str:
    """Each of the worst pictures as it was and as it was moved."""
    pairs = []
    for worst in certificate.worst:
        image = images[worst.picture : worst.picture + 1].float().cpu()
        shown = [image[0], _moved(certificate.group, worst.move, image)[0]]
        alts = [f"picture {worst.picture}", f"picture {worst.picture}, {worst.move}"]
        cells = [image_html(_bytes(picture), alt) for picture, alt in zip(shown, alts, strict=True)]
        pairs.append(
            f"<figure>{' '.join(cells)}<figcaption>{html.escape(alts[1])}: class {worst.before} → "
            f"{worst.after}, a probability moved by {worst.probability:.3g}</figcaption></figure>"
        )
    return _table(worst_table(certificate)) + "\n".join(pairs)


def _moved(group: str, meaning: str, image: Images) -> Tensor:
    """The picture after the move that these words name."""
    named = {move.meaning: move.apply for move in unclaimed_moves(PlanarGroup(1), 64)}
    d4 = PlanarGroup.named("D4")
    for quarter in range(4):
        turn = f"turn by {90 * quarter:g}°"
        named[f"mirror, then {turn}"] = partial(act_on_image, d4, 4 + quarter)
    if meaning in named:
        return named[meaning](image)
    if meaning.startswith("turn by "):
        return rotate_image(image, float(meaning.removeprefix("turn by ").rstrip("°")))
    return image


def _bytes(image: Float[Tensor, "channel row col"]) -> Tensor:
    """As grey or RGB, for eyes: of other numbers of channels the first."""
    seen = image if len(image) in (1, 3) else image[:1]
    return (seen.clamp(0, 1) * 255).round().to(torch.uint8)


def _identity(certificate: Certificate) -> str:
    rows: Sequence[Sequence[str]] = [
        ["weights (SHA-256)", certificate.weights_sha256],
        ["pictures (SHA-256)", certificate.data_sha256],
        ["date", certificate.date],
        *([name, version] for name, version in certificate.versions.items()),
    ]
    again = paragraph_html("Measure it again with: turnwise verify certificate.json")
    return table_html(["what", "value"], rows) + again


def _short(certificate: Certificate) -> object:
    """Without the long tables, which stand above."""
    left_out = ("layers", "angles", "moves")
    return {k: v for k, v in to_json_value(certificate.plain()).items() if k not in left_out}
