"""The certificate: how much a classifier's output changes when the image is transformed.

The claim, tested to rounding error, is invariance under the group elements that map pixels to
pixels.  Other angles, reflections and shifts are measured but not claimed.  A certificate holds
only if its negative controls pass: the same model must fail with one quadrant inverted, different
images must give different outputs, and shuffled pixels must change the output.
"""

import json
import math
import re
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import torch

from turnwise.errors import InputError, require
from turnwise.evaluation.layer_trace import LayerCheck
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE
from turnwise.inference.predictor import PRECISIONS
from turnwise.notebook import html_table
from turnwise.parsing import read_json

FORMAT = 3
VISIBLE = 1e-6  # a negative control must change the output by more than this, relative to its size

# format 2, written by 0.1.0: the keys of each part ("" is the certificate itself) and the phrases
OLD_KEYS = {
    "": {
        "exact_part": "exact_subgroup", "pictures": "images", "moves": "transformations",
        "worst": "worst_images", "entry": "error_source", "likeness": "original",
    },
    "controls": {"visible": "threshold"},
    "worst": {"picture": "image", "move": "transformation"},
    "layers": {"reading": "layout", "before": "input_error", "error": "output_error"},
}  # fmt: skip
OLD_PHRASES = {
    "nothing": "identity",
    "mirror left and right": "flip left-right",
    "mirror upside down": "flip up-down",
    "mirror, then": "flip left-right, then",
    "mirror": "reflection",
    "turn by": "rotate by",
    "the measure sees an inverted quadrant": "an inverted quadrant breaks the invariance",
    "other pictures, other answers": "different images, different outputs",
    "shuffled pixels, another answer": "shuffled pixels, another output",
    "pictures": "images",
}


def within(error: float | None, precision: str) -> bool:
    """Return whether an error is rounding error of its precision; None was not measured."""
    limit = TOLERANCE.get(getattr(torch, precision), COARSE_TOLERANCE)
    return error is None or error <= limit


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The relative error in each precision; None was not measured, which counts as no error."""

    float64: float | None = None
    float32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None

    @property
    def holds(self) -> bool:
        return all(within(getattr(self, name), name) for name in PRECISIONS)


@dataclass(frozen=True)
class ElementCheck(Errors):
    """A group element that maps pixels to pixels.

    The last four fields (`comparison.Decisions`) are measured in the finest precision but float64.
    """

    element: int
    meaning: str
    agreement: float = 1.0
    probability: float = 0.0
    margin: float = 0.0
    worst: int = 0

    @property
    def holds(self) -> bool:
        return super().holds and any(getattr(self, name) is not None for name in PRECISIONS)


@dataclass(frozen=True)
class AngleCheck:
    """A rotation by any angle, measured: the change of the logits and of the decisions."""

    degrees: float
    change: float
    agreement: float
    probability: float = 0.0
    margin: float = 0.0
    worst: int = 0


@dataclass(frozen=True)
class TransformationCheck:
    """A reflection, a shift or filled corners: not claimed, measured like an angle."""

    kind: str
    meaning: str
    change: float
    agreement: float
    probability: float
    margin: float
    worst: int


@dataclass(frozen=True)
class Control:
    """A negative control: the change of the output, which must exceed `threshold`."""

    name: str
    change: float
    threshold: float = VISIBLE

    @property
    def holds(self) -> bool:
        return self.threshold < self.change < math.inf


@dataclass(frozen=True)
class SizeCheck(Errors):
    """The worst errors over the exact elements at another image size, or why it is refused."""

    size: int
    refusal: str = ""


@dataclass(frozen=True)
class ConditionCheck(Errors):
    """The worst errors over the exact elements under a condition, or why it is refused."""

    condition: str
    refusal: str = ""


@dataclass(frozen=True)
class WorstImage:
    """An image, the transformation that changed its probabilities most, and its two classes."""

    image: int
    transformation: str
    claimed: bool
    probability: float
    before: int
    after: int
    margin: float


@dataclass(frozen=True)
class OriginalCheck:
    """How far the outputs of a file are from those of the model that it was exported from."""

    target: str
    weights_sha256: str
    change: float
    agreement: float

    @property
    def holds(self) -> bool:
        return within(self.change, "float32")


@dataclass(frozen=True)
class Certificate:
    """All measurements, and what they were made of."""

    target: str
    group: str
    exact_subgroup: str
    images: str
    elements: tuple[ElementCheck, ...]
    angles: tuple[AngleCheck, ...]
    controls: tuple[Control, ...]
    weights_sha256: str
    versions: dict[str, str]
    date: str
    transformations: tuple[TransformationCheck, ...] = ()
    sizes: tuple[SizeCheck, ...] = ()
    worst_images: tuple[WorstImage, ...] = ()
    layers: tuple[LayerCheck, ...] = ()
    error_source: str = ""
    original: OriginalCheck | None = None
    data_sha256: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    fill: str = "zeros"  # of the corners of rotated images; earlier certificates do not state it
    conditions: tuple[ConditionCheck, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)  # what the weights mean

    @property
    def is_of_0_1(self) -> bool:
        """Whether version 0.1 wrote it, which measured less."""
        return bool(self.request) and "conditions" not in self.request

    @property
    def claim(self) -> str:
        """The group, or the subgroup of it that maps pixels to pixels."""
        if self.exact_subgroup == self.group:
            return self.group
        return f"{self.exact_subgroup}, the exact subgroup of {self.group}"

    @property
    def holds(self) -> bool:
        """Whether every exact element holds, at every size and condition, and every control."""
        parts: tuple[Any, ...] = (*self.elements, *self.controls, *self.sizes, *self.conditions)
        agrees = self.original is None or self.original.holds
        return bool(self.elements and self.controls) and agrees and all(p.holds for p in parts)

    def _repr_html_(self) -> str:
        """Return what a notebook displays: the verdict, and the error of every element."""
        finest = [next(x for p in PRECISIONS if (x := getattr(e, p)) is not None)
                  for e in self.elements]  # fmt: skip
        shown = [(e.meaning, x, e.holds) for e, x in zip(self.elements, finest, strict=True)]
        shown += [(c.name, c.change, c.holds) for c in self.controls]
        rows = [[name, f"{x:.1e}", "holds" if holds else "FAILS"] for name, x, holds in shown]
        verdict = f"{self.target}: {'' if self.holds else 'NOT '}invariant under {self.claim}"
        return html_table(verdict, ["transformation or negative control", "change", ""], rows)

    def plain(self) -> dict[str, Any]:
        """Return nested plain values, as certificate.schema.json describes them."""
        return {
            "format": FORMAT, "holds": self.holds, "untested": list(self.untested), **asdict(self)
        }  # fmt: skip

    @property
    def untested(self) -> tuple[str, ...]:
        """What the certificate says nothing about, in words."""
        measured = [c.condition for c in self.conditions if not c.refusal]
        sizes = [str(s.size) for s in self.sizes if not s.refusal]
        used = {p for p in PRECISIONS if any(getattr(e, p) is not None for e in self.elements)}
        images = len_images(self.images) + sum(map(len_images, measured))
        words = [
            f"a fault that shows on fewer than 1 in {max(1, images // 3):,} images (95 % confidence"
            f", {images:,} images)",
            "image sizes other than those of the images" + "".join(f", {s}" for s in sizes),
            *(f"{name}" for name in PRECISIONS if name not in used),
        ]
        possible = ("one image at a time", "training mode", "compiled by torch.compile")
        words += [w for w in possible if not any(m.startswith(w) for m in measured)]
        words.append("other devices, and other versions of torch")
        if ":" in self.target or not self.model.get("options"):
            words.append("code that behaves differently when it is not being certified")
        return tuple(words)


def len_images(words: str) -> int:
    """Return the number of images in words such as "16 random images" or "digits, 32 of shape"."""
    found = re.search(r"(\d+) (?:random images|of shape)", words)
    return int(found[1]) if found else 0


DERIVED = ("format", "holds", "untested")
PARTS: dict[str, Any] = {
    "elements": ElementCheck,
    "angles": AngleCheck,
    "controls": Control,
    "transformations": TransformationCheck,
    "sizes": SizeCheck,
    "conditions": ConditionCheck,
    "worst_images": WorstImage,
    "layers": LayerCheck,
}


def read_certificate(path: str | Path) -> tuple[Certificate, bool]:
    """Return the certificate in a JSON file, and the verdict that the file states."""
    path = Path(path)
    try:
        plain = read_json(path)
    except InputError as error:
        raise InputError(f"{path} cannot be read: {error}; give a certificate.json.") from error
    found = plain.get("format", 1) if isinstance(plain, dict) else None
    require(
        found in (2, FORMAT),
        f"{path} is no certificate of format {FORMAT} (it has {found}); certify again.",
    )
    plain = _upgrade(plain) if found == 2 else plain
    misfit = schema_error(plain)
    require(not misfit, f"{path} is damaged, at {misfit}; certify again.")
    certificate = from_plain(plain)
    require(
        found == 2 or not certificate.is_of_0_1,
        f"{path} is damaged: its request does not state “conditions”; certify again.",
    )
    require(
        plain.get("untested", list(certificate.untested)) == list(certificate.untested),
        f"{path} is damaged: “untested” does not follow from its figures; certify again.",
    )
    return certificate, plain["holds"]


def schema_error(plain: Any) -> str:
    """Return where and how a value departs from certificate.schema.json; empty if it does not."""
    package = files("turnwise.evaluation.certificate")
    schema = json.loads(package.joinpath("certificate.schema.json").read_text("utf-8"))
    errors = jsonschema.Draft202012Validator(schema).iter_errors(plain)
    worst = jsonschema.exceptions.best_match(errors)
    return "" if worst is None else f"{worst.json_path}: {worst.message[:200]}"


def from_plain(plain: dict[str, Any]) -> Certificate:
    """Return the certificate that `plain` was made from; it must fit the schema."""
    values = {name: value for name, value in plain.items() if name not in DERIVED}
    for name, part in PARTS.items():
        values[name] = tuple(part(**_numbers(entry)) for entry in values.get(name, ()))
    if values["original"] is not None:
        values["original"] = OriginalCheck(**_numbers(values["original"]))
    return Certificate(**values)


def _numbers(entry: dict[str, Any]) -> dict[str, Any]:
    """Undo `files.to_json_value`, which writes infinity and NaN as text."""
    return {k: float(v) if v in ("nan", "inf", "-inf") else v for k, v in entry.items()}


def _upgrade(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a certificate of format 2 with the keys and phrases of format 3."""
    upgraded: dict[str, Any] = {}
    for key, value in plain.items():
        if key in ("elements", "controls", "moves", "worst", "layers") and isinstance(value, list):
            value = [_upgrade_part(key, entry) for entry in value]
        upgraded[OLD_KEYS[""].get(key, key)] = _rephrase(value) if key == "pictures" else value
    return upgraded | {"format": FORMAT}


def _upgrade_part(part: str, entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    keys = OLD_KEYS.get(part, {})
    texts = entry if part == "layers" else {k: _rephrase(v) for k, v in entry.items()}
    return {keys.get(key, key): value for key, value in texts.items()}


def _rephrase(text: Any) -> Any:
    if isinstance(text, str):
        for old, new in OLD_PHRASES.items():
            text = text.replace(old, new)
    return text
