"""What a kind of target must say about itself, and the registry of kinds.

Training asks a kind for its loss and its scores, `Predictor` for its output transform, evaluation
for its scores and decisions, certificates for what a change of the outputs means, and `predict` for
words.  A kind is a frozen dataclass; its fields are plain values, which are stored with the model.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import Any, ClassVar, get_type_hints

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from turnwise.data.masks import INSTANCE_CLASSES
from turnwise.errors import InputError, require, require_known
from turnwise.options import convert

Outputs = Float[Tensor, "image output *space"]  # of a model: logits, or standardised numbers
Predictions = Float[Tensor, "image atleast1 *space"]  # probabilities or numbers
Targets = Shaped[Tensor, "image *target"]
Decisions = Shaped[Tensor, "image *decision"]
Measured = Mapping[str, Shaped[Tensor, "image *measured"]]  # one row per image: what scores need
Weights = Float[Tensor, "draw image"]  # how often each image counts, for each draw of a bootstrap
Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Change:
    """How the predictions for each image differ between two views of it.

    same    whether the decision is the same
    size    the largest change of a prediction: of a probability, or in standard deviations
    margin  how far the decision is from changing; below 0 where it changed
    """

    same: Bool[Tensor, " image"]
    size: Float[Tensor, " image"]
    margin: Float[Tensor, " image"]


@dataclass(frozen=True)
class TargetKind(ABC):
    """A kind of target, for these classes, labels or columns of numbers.

    Attributes:
        names: the classes, labels or columns, in the order of the model's outputs.
        unit: of numbers, such as "mm"; empty if there is none.

    A subclass also says

        kind        its name in the table of examples (`data/dataset.py`)
        dtype       the type of its targets, and
        axes        their number of axes
        score_names  its scores
        measured_names  what `measure` returns
        selection   the score that selects the best epoch, unless the recipe names another
        falling     its scores that are better if they are lower; the loss always is
        plain_scores  its scores that are numbers; all others are shares, shown in per cent
    """

    names: tuple[str, ...] = ()
    unit: str = ""

    kind: ClassVar[str]
    dtype: ClassVar[torch.dtype]
    axes: ClassVar[int]
    score_names: ClassVar[tuple[str, ...]]
    measured_names: ClassVar[tuple[str, ...]] = ("predictions", "targets")
    selection: ClassVar[str]
    falling: ClassVar[frozenset[str]] = frozenset()
    plain_scores: ClassVar[frozenset[str]] = frozenset()
    has_probabilities: ClassVar[bool] = True
    calibrates: ClassVar[bool] = False  # whether `calibrate` does something
    can_mix: ClassVar[bool] = True  # whether mixup and cutmix may combine two images

    def accepts(self, targets: Tensor) -> bool:
        """Return whether the targets have the type and the shape of this kind."""
        columns = self.axes != 2 or targets.shape[-1] == len(self.names)
        return targets.dtype == self.dtype and targets.ndim == self.axes and columns

    def fit(self, targets: Targets) -> "TargetKind":
        """Return this kind with what it learns from the training targets, such as their mean."""
        return self

    # training

    @abstractmethod
    def make_loss(
        self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None
    ) -> "Loss": ...

    @abstractmethod
    def balanced_weights(self, targets: Targets) -> tuple[float, ...]:
        """Return weights for the loss under which rare classes or labels count as much."""

    @abstractmethod
    def strata(self, targets: Targets) -> Int64[Tensor, " image"]:
        """Return the class of each image, for sampling that draws every class equally often."""

    # outputs

    @abstractmethod
    def predict(self, outputs: Outputs) -> Predictions:
        """Return what the outputs of a model mean: probabilities, or numbers in their unit."""

    @abstractmethod
    def decide(self, predictions: Predictions) -> Decisions: ...

    def agree(self, one: Predictions, other: Predictions) -> Bool[Tensor, " image"]:
        """Return for which images two predictions are the same decision."""
        return (self.decide(one) == self.decide(other)).reshape(len(one), -1).all(1)

    @abstractmethod
    def compare(self, before: Outputs, after: Outputs) -> Change: ...

    def centre(self, outputs: Outputs) -> Outputs:
        """Return the outputs without the part that predictions do not depend on."""
        return outputs

    # words

    @abstractmethod
    def describe(self, prediction: Float[Tensor, "output *space"]) -> str:
        """Return the decision in words."""

    def named(self, names: tuple[str, ...]) -> "TargetKind":
        """Return this kind with names for its outputs, if it has none."""
        return self if self.names else replace(self, names=names)

    # scores

    def show_score(self, name: str, value: float) -> str:
        """Return a score as text: a share in per cent, a number in its unit."""
        if name not in self.plain_scores:
            return f"{100 * value:.2f} %"
        unit = self.unit if name in self.falling else ""
        return f"{value:.4g} {unit}".rstrip()

    def require_score(self, name: str) -> None:
        """Raise unless `name` is "loss" or one of the scores of this kind."""
        require_known(name, ("loss", *self.score_names), f"score of the kind {self.kind!r}")

    def is_better_lower(self, name: str) -> bool:
        """Return whether lower values of a score, or of the loss, are better."""
        return name == "loss" or name in self.falling

    # decisions, chosen on validation

    def calibrate(self, outputs: Outputs, targets: Targets) -> "TargetKind":
        """Return this kind with probabilities that fit these images; numbers have none."""
        return self

    def require_thresholds(self, positive: str | None = None) -> None:
        """Raise unless decisions are made at a threshold."""
        raise InputError(
            f"targets of the kind {self.kind!r} have no threshold; leave evaluation.sensitivity "
            "and evaluation.specificity out."
        )

    def at_operating_point(
        self,
        predictions: Predictions,
        targets: Targets,
        *,
        sensitivity: float | None = None,
        specificity: float | None = None,
        positive: str | None = None,
    ) -> "TargetKind":
        """Return this kind with the threshold that reaches a sensitivity or a specificity."""
        self.require_thresholds(positive)
        return self

    def without_decisions(self) -> "TargetKind":
        """Return this kind as before `calibrate` and `at_operating_point`."""
        return self

    def measure(self, predictions: Predictions, targets: Targets) -> Measured:
        """Return all that scores need, one row per image; rows of batches are concatenated."""
        return {"predictions": predictions, "targets": targets}

    @abstractmethod
    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return every score of the images with these weights; NaN where it is undefined."""

    @abstractmethod
    def details(self, measured: Measured) -> list[dict[str, Any]]:
        """Return a row of figures for every class, label or column of numbers."""

    def summaries(self, measured: Measured) -> dict[str, Any]:
        """Return further figures by name, such as a confusion matrix, as plain values."""
        return {}

    def point_scores(self, measured: Measured) -> dict[str, float]:
        """Return every score of the images, each counted once."""
        images = len(next(iter(measured.values())))
        found = self.scores(measured, torch.ones(1, images, dtype=torch.float64))
        return {name: float(value) for name, value in found.items()}

    def group_target(self, targets: Targets) -> Tensor | None:
        """Return the target of a group of images, None if they differ."""
        return targets[0] if bool((targets == targets[0]).all()) else None

    # storage

    def plain(self) -> dict[str, Any]:
        """Return the kind as JSON stores it."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {"kind": self.kind, **values}


class Loss(nn.Module):
    """A loss with optional weights, which follow the model to its device and are not stored."""

    def __init__(self, compute: Compute, weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        self.compute = compute
        tensor = None if weights is None else torch.tensor(weights)
        self.register_buffer("weights", tensor, persistent=False)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.compute(outputs, targets, self.get_buffer("weights"))


_KINDS: dict[str, type[TargetKind]] = {}


def register_kind(cls: type[TargetKind]) -> type[TargetKind]:
    """Register a kind of target by its name."""
    require(cls.kind not in _KINDS, f"a kind of target {cls.kind!r} is registered already.")
    _KINDS[cls.kind] = cls
    return cls


def known_kinds() -> dict[str, type[TargetKind]]:
    """Return all kinds by name; this imports every module of the package."""
    package = import_module("turnwise.data.targets")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_KINDS.items()))


def make_kind(kind: str, names: tuple[str, ...] = (), unit: str = "") -> TargetKind:
    """Return a kind of target by its name."""
    require_known(kind, known_kinds(), "kind of target")
    return known_kinds()[kind](names, unit)


def read_kind(plain: Any) -> TargetKind:
    """Return the kind that `TargetKind.plain` stored; raise if it is damaged."""
    require(isinstance(plain, Mapping), "a stored target must have keys and values.")
    known, name = known_kinds(), str(plain.get("kind"))
    require_known(name, known, "kind of target")
    cls = known[name]
    given = {key: value for key, value in plain.items() if key != "kind"}
    hints = {f.name: get_type_hints(cls)[f.name] for f in fields(cls)}
    unknown = given.keys() - hints.keys()
    require(not unknown, f"a target of kind {name} has no {', '.join(sorted(unknown))}.")
    names = given.pop("names", ())
    require(
        isinstance(names, list | tuple) and all(isinstance(text, str) for text in names),
        "the names of a stored target must be a list of texts.",
    )
    values: dict[str, Any] = {
        key: convert(hints[key], value, f"target.{key}") for key, value in given.items()
    }
    return cls(tuple(names), **values)


def kind_of(model: nn.Module) -> TargetKind:
    """Return the kind of target that a model predicts.

    If it does not say, these are classes of images; or for a model of maps classes of pixels, and
    instances if the classes are those by which instances are predicted.
    """
    plain, names = getattr(model, "target", None), tuple(getattr(model, "classes", ()))
    if plain:
        return read_kind(plain)
    if getattr(model, "output", "class") == "map":
        return make_kind("instances" if names == INSTANCE_CLASSES else "mask", names)
    return make_kind("class", names)
