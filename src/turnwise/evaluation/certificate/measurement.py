"""The figures of a certificate, one method for each part of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.errors import InputError, require, require_known, require_positive
from turnwise.evaluation.certificate.certificate import (
    AngleCheck,
    ElementCheck,
    Likeness,
    MoveCheck,
    SizeCheck,
    WorstImage,
)
from turnwise.evaluation.certificate.moves import describe_element, unclaimed_moves
from turnwise.evaluation.certificate.scores import (
    PRECISIONS,
    Decisions,
    Move,
    answerer,
    compare_decisions,
    hash_weights,
    leads,
    own_precisions,
    probabilities,
    score_change,
    with_noise,
)
from turnwise.evaluation.rotations import equal_angles
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_image

SHOWN_WORST = 5
REFUSALS = (InputError, RuntimeError, ValueError, TypeError, IndexError)

Item = TypeVar("Item")
Images = Float[Tensor, "batch channel row col"]


@dataclass(frozen=True)
class Scope:
    """What is measured beside the elements and angles, and how.

    shifts:      1 to so many pixels, right and up
    sizes:       the claim at these sizes, too, on pictures resampled to them
    precisions:  of "float64", "float32", "bfloat16", "float16"; a file has its own alone
    layers:      the law layer by layer, to say where an error enters
    chunk:       so many pictures at a time, which bounds the memory
    """

    shifts: int = 1
    sizes: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("float64", "float32")
    layers: bool = True
    chunk: int = 64
    progress: bool = False

    def __post_init__(self) -> None:
        require_positive(chunk=self.chunk)
        require(self.shifts >= 0, f"shifts = {self.shifts} must be 0 or more pixels.")
        require(
            all(size > 1 for size in self.sizes), f"sizes = {self.sizes} must be 2 pixels or more."
        )
        require(bool(self.precisions), "a certificate needs a precision; try float64.")
        for precision in self.precisions:
            require_known(precision, PRECISIONS, "precision")


class Measurement:
    """Moves the pictures, compares the answers, and remembers the worst change of each picture."""

    def __init__(self, model: nn.Module, group: PlanarGroup, images: Images, scope: Scope) -> None:
        asked = own_precisions(model, scope.precisions)
        self.group, self.images, self.scope = group, images, scope
        self.answers = {p: answerer(model, p, scope.chunk) for p in asked}
        self.finest = next(iter(self.answers.values()))
        self.before = {p: answer(images) for p, answer in self.answers.items()}
        self.noisy = with_noise(images)
        self.noisy_before = {p: answer(self.noisy) for p, answer in self.answers.items()}
        self.finest_before = next(iter(self.before.values()))
        self.usual = "float32" if "float32" in self.answers else next(iter(self.answers))
        self._worst: dict[int, WorstImage] = {}

    def elements(self) -> tuple[ElementCheck, ...]:
        """Every element that maps pixels to pixels, in every precision.

        Once more on pictures that are nowhere blank, of which every other one is moved: the border
        of a digit shows nothing, and what a batch shares moves with it.
        """
        checks = []
        for g in self._shown(self.group.grid_elements(), "symmetries"):
            move = partial(act_on_image, self.group, g)
            after, mixed = self._answered(self.images, move), self._answered_in_part(move)
            errors = {
                p: max(
                    score_change(self.before[p], after[p]),
                    score_change(self.noisy_before[p], mixed[p]),
                )
                for p in after
            }
            meaning = describe_element(self.group, g)
            decisions = self._decide(meaning, after[self.usual], claimed=True)
            checks.append(ElementCheck(g, meaning, **_by_precision(errors), **asdict(decisions)))
        return tuple(checks)

    def angles(self, count: int) -> tuple[AngleCheck, ...]:
        """`count` equal steps of a full turn."""
        checks = []
        for degrees in self._shown(equal_angles(count), "angles"):
            move = partial(rotate_image, degrees=degrees)
            change, decisions = self._measured(f"turn by {degrees:g}°", move)
            checks.append(AngleCheck(degrees, change, **asdict(decisions)))
        return tuple(checks)

    def moves(self) -> tuple[MoveCheck, ...]:
        """Mirrors that the group does not have, and shifts."""
        checks = []
        for move in self._shown(unclaimed_moves(self.group, self.scope.shifts), "moves"):
            change, decisions = self._measured(move.meaning, move.apply)
            checks.append(MoveCheck(move.kind, move.meaning, change, **asdict(decisions)))
        return tuple(checks)

    def size(self, side: int) -> SizeCheck:
        """The exact elements on the pictures resampled to side × side pixels."""
        images = F.interpolate(self.images.double(), (side, side), mode="bilinear", antialias=True)
        try:
            before = self._answered(images)
            worst = dict.fromkeys(before, 0.0)
            for g in self.group.grid_elements():
                after = self._answered(images, partial(act_on_image, self.group, g))
                worst = {p: max(worst[p], score_change(before[p], after[p])) for p in after}
        except REFUSALS as error:
            if "memory" in str(error):
                raise
            return SizeCheck(side, refusal=(str(error) or type(error).__name__).splitlines()[0])
        return SizeCheck(side, **_by_precision(worst))

    def likeness(self, name: str, original: nn.Module) -> Likeness:
        """How far the answers are from those of the model that the file was exported from."""
        (precision,) = own_precisions(original, (self.usual,))
        theirs = answerer(original, precision, self.scope.chunk)(self.images)
        ours = self.before[self.usual]
        require(
            theirs.shape == ours.shape,
            f"{name} answers with {theirs.shape[1]} scores, the file with {ours.shape[1]}; "
            "compare it with the model that it was exported from.",
        )
        return Likeness(
            name, hash_weights(original), score_change(theirs, ours),
            compare_decisions(theirs, ours).agreement,
        )  # fmt: skip

    def worst(self) -> tuple[WorstImage, ...]:
        """The pictures whose probabilities moved most, each once, under its worst move."""
        ranked = sorted(self._worst.values(), key=lambda w: (-w.probability, w.picture))
        return tuple(ranked[:SHOWN_WORST])

    def _answered(self, images: Images, move: Move | None = None) -> dict[str, Tensor]:
        return {p: answer(images, move) for p, answer in self.answers.items()}

    def _answered_in_part(self, move: Move) -> dict[str, Tensor]:
        """Of noisy pictures, every other one moved; all where they would have different sizes."""

        def some(images: Tensor) -> Tensor:
            moved = move(images)
            if moved.shape != images.shape:
                return moved
            still = torch.arange(len(images), device=images.device) % 2 == 1
            return torch.where(still[:, None, None, None], images, moved)

        return self._answered(self.noisy, some)

    def _measured(self, meaning: str, move: Move) -> tuple[float, Decisions]:
        after = self.answers[self.usual](self.images, move)
        decisions = self._decide(meaning, after, claimed=False)
        return score_change(self.before[self.usual], after), decisions

    def _decide(self, meaning: str, after: Tensor, *, claimed: bool) -> Decisions:
        before = self.before[self.usual]
        p, moved = probabilities(before), probabilities(after)
        change = (moved - p).abs().amax(dim=-1).tolist()
        decided, now, lead = p.argmax(-1).tolist(), moved.argmax(-1).tolist(), leads(p, moved)
        for i, size in enumerate(change):
            if i not in self._worst or size > self._worst[i].probability:
                self._worst[i] = WorstImage(
                    i, meaning, claimed, size, decided[i], now[i], float(lead[i])
                )
        return compare_decisions(before, after)

    def _shown(self, items: Sequence[Item], what: str) -> Iterable[Item]:
        return tqdm(items, desc=what, disable=not self.scope.progress, leave=False)


def _by_precision(errors: Mapping[str, float]) -> dict[str, Any]:
    return {name: errors.get(name) for name in PRECISIONS}
