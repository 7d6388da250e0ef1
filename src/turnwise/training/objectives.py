"""What training minimises and what validation selects by, for each kind of target."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from turnwise.data.dataset import Target
from turnwise.data.masks import IGNORED_CLASS, pixel_classes
from turnwise.data.targets import make_kind
from turnwise.errors import require
from turnwise.training.recipe import OptimisationPart


class Objective(ABC):
    """The loss of a batch, and the score by which validation selects: higher is better.

    Attributes:
        score: the name of the score, in tables `val_NAME`.
        title: the score in words.
    """

    score: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, target: Target, part: OptimisationPart) -> None:
        self.classes, self.part = len(target.names), part

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def make_score(self) -> Metric:
        """Return a fresh metric, which `update_score` updates batch by batch."""

    def update_score(self, metric: Metric, outputs: Tensor, targets: Tensor) -> None:
        metric.update(outputs, targets)


class ClassObjective(Objective):
    """Cross-entropy; selected by accuracy."""

    score, title = "accuracy", "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def make_score(self) -> Metric:
        return MulticlassAccuracy(self.classes, average="micro")


class PixelObjective(Objective):
    """The loss of masks; selected by the mean Dice of the classes of pixels."""

    score, title = "dice", "mean Dice"

    def __init__(self, target: Target, part: OptimisationPart) -> None:
        super().__init__(target, part)
        self.kind = make_kind(target.kind, target.names)
        require(
            part.mixup == 0 and part.cutmix == 0,
            "mixup and cutmix combine images of one class each, not masks; set "
            "optimisation.mixup and optimisation.cutmix to 0.",
        )

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return self.kind.make_loss(smoothing)(outputs, targets)

    def make_score(self) -> Metric:
        return MulticlassF1Score(self.classes, average="macro", ignore_index=IGNORED_CLASS)

    def update_score(self, metric: Metric, outputs: Tensor, targets: Tensor) -> None:
        metric.update(outputs.argmax(dim=1), pixel_classes(targets))


OBJECTIVES: dict[str, type[Objective]] = {
    "class": ClassObjective,
    "ordinal": ClassObjective,
    "mask": PixelObjective,
    "instances": PixelObjective,
}


def objective_of(target: Target) -> type[Objective]:
    """Return the objective of a kind of target."""
    require(
        target.kind in OBJECTIVES,
        f"models are not trained on targets of kind {target.kind!r} yet; use one of "
        f"{', '.join(OBJECTIVES)}.",
    )
    return OBJECTIVES[target.kind]


def make_objective(target: Target, part: OptimisationPart) -> Objective:
    """Return the objective for a target, with the recipe's options."""
    return objective_of(target)(target, part)
