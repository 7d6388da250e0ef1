"""The certificate: does the answer change when the picture moves, measured element by element?

Claimed, and tested to rounding error, is invariance under the elements of the group that map pixels
to pixels; other angles, mirrors and shifts are measured beside it.  A measurement counts only if
its controls speak: it must condemn the same model when one quadrant is inverted before it,
different pictures must get different answers, and shuffled pixels must, too.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from turnwise.evaluation.certificate.controls import Control
from turnwise.evaluation.certificate.layers import LayerCheck
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE

FORMAT = 2
COARSE = ("bfloat16", "float16")


def within(error: float | None, precision: str) -> bool:
    """Whether an error is rounding error of its precision; what was not measured is no error."""
    limit = TOLERANCE.get(getattr(torch, precision), COARSE_TOLERANCE)
    return error is None or error <= limit


@dataclass(frozen=True)
class ElementCheck:
    """One symmetry that maps pixels to pixels: the relative error in each precision asked for.

    Then what it does to decisions (`answers.Decisions`), in the finest precision but float64.
    """

    element: int
    meaning: str
    float64: float | None
    float32: float | None
    bfloat16: float | None = None
    float16: float | None = None
    agreement: float = 1.0
    probability: float = 0.0
    margin: float = 0.0
    worst: int = 0

    @property
    def holds(self) -> bool:
        errors = {name: getattr(self, name) for name in ("float64", "float32", *COARSE)}
        return any(error is not None for error in errors.values()) and all(
            within(error, name) for name, error in errors.items()
        )


@dataclass(frozen=True)
class AngleCheck:
    """One angle, measured: how far the answer moves, and what becomes of the decisions."""

    degrees: float
    change: float
    agreement: float
    probability: float = 0.0
    margin: float = 0.0
    worst: int = 0


@dataclass(frozen=True)
class MoveCheck:
    """A mirror or shift that is not claimed, measured like an angle."""

    kind: str
    meaning: str
    change: float
    agreement: float
    probability: float
    margin: float
    worst: int


@dataclass(frozen=True)
class SizeCheck:
    """The worst error over the exact elements at another size; or why the model refuses it."""

    size: int
    float64: float | None = None
    float32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None
    refusal: str = ""

    @property
    def holds(self) -> bool:
        """A refused size is not certified, and not broken: the model did not answer."""
        return all(within(getattr(self, name), name) for name in ("float64", "float32", *COARSE))


@dataclass(frozen=True)
class WorstImage:
    """A picture whose probabilities a move changed most, and the decision before and after."""

    picture: int
    move: str
    claimed: bool
    probability: float
    before: int
    after: int
    margin: float


@dataclass(frozen=True)
class Likeness:
    """The same pictures answered by the model that a file was exported from."""

    target: str
    weights_sha256: str
    change: float
    agreement: float

    @property
    def holds(self) -> bool:
        return within(self.change, "float32")


@dataclass(frozen=True)
class Certificate:
    target: str
    group: str
    exact_part: str
    pictures: str
    elements: tuple[ElementCheck, ...]
    angles: tuple[AngleCheck, ...]
    controls: tuple[Control, ...]
    weights_sha256: str
    versions: dict[str, str]
    date: str
    moves: tuple[MoveCheck, ...] = ()
    sizes: tuple[SizeCheck, ...] = ()
    worst: tuple[WorstImage, ...] = ()
    layers: tuple[LayerCheck, ...] = ()
    entry: str = ""
    likeness: Likeness | None = None
    data_sha256: str = ""
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """What the verdict is about: the group, or as much of it as pixels have."""
        whole = self.exact_part == self.group
        return self.group if whole else f"{self.exact_part}, the exact part of {self.group}"

    @property
    def holds(self) -> bool:
        """Whether every exact element holds, at every size, and every control speaks."""
        parts: tuple[Any, ...] = (*self.elements, *self.controls, *self.sizes)
        like = self.likeness is None or self.likeness.holds
        some = bool(self.elements and self.controls)
        return some and like and all(part.holds for part in parts)

    def plain(self) -> dict[str, Any]:
        """As nested plain values, for JSON (certificate.schema.json tells the form)."""
        return {"format": FORMAT, "holds": self.holds, **asdict(self)}


KINDS: dict[str, Any] = {
    "elements": ElementCheck,
    "angles": AngleCheck,
    "controls": Control,
    "moves": MoveCheck,
    "sizes": SizeCheck,
    "worst": WorstImage,
    "layers": LayerCheck,
}


def from_plain(plain: dict[str, Any]) -> Certificate:
    """The certificate that `plain` was made from; its form is known to be right (`schema`)."""
    words = {name: value for name, value in plain.items() if name not in ("format", "holds")}
    for name, kind in KINDS.items():
        words[name] = tuple(kind(**_numbers(part)) for part in words[name])
    if words["likeness"] is not None:
        words["likeness"] = Likeness(**_numbers(words["likeness"]))
    return Certificate(**words)


def _numbers(part: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity; `files.to_json_value` writes it as text."""
    return {k: float(v) if v in ("nan", "inf", "-inf") else v for k, v in part.items()}
