"""One class per image: unordered, or in ascending order."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.data.targets.calibration import choose_threshold, fit_temperature, reliability
from turnwise.data.targets.kind import (
    Change,
    Decisions,
    Loss,
    Measured,
    Outputs,
    Predictions,
    TargetKind,
    Targets,
    Weights,
    register_kind,
)
from turnwise.data.targets.scores import (
    Counts,
    Ranking,
    confusion_counts,
    count_classes,
    weighted_auc,
    weighted_kappa,
    weighted_mean,
)
from turnwise.errors import require, require_known

Labels = Int64[Tensor, " image"]


@register_kind
@dataclass(frozen=True)
class Classes(TargetKind):
    """One of several classes: cross-entropy, softmax, the most probable class.

    Attributes:
        temperature: the logits are divided by it (calibration on validation images).
        threshold: of two classes, `positive` is decided where its probability is at least this;
            None decides for the more probable one.
        positive: the index of the positive class.
    """

    temperature: float = 1.0
    threshold: float | None = None
    positive: int = 1

    kind: ClassVar[str] = "class"
    dtype: ClassVar[torch.dtype] = torch.int64
    axes: ClassVar[int] = 1
    score_names: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy", "macro_f1", "auc")
    selection: ClassVar[str] = "accuracy"
    calibrates: ClassVar[bool] = True

    def make_loss(self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None) -> Loss:
        require_count(weights, len(self.names), "class")
        return Loss(partial(_cross_entropy, smoothing=smoothing), weights)

    def balanced_weights(self, targets: Targets) -> tuple[float, ...]:
        """Return images / (classes · images of the class), as scikit-learn does."""
        counts = torch.bincount(targets, minlength=len(self.names)).double()
        present = counts > 0
        weights = counts.sum() / (int(present.sum()) * counts.clamp_min(1))
        return tuple(torch.where(present, weights, 1.0).tolist())

    def strata(self, targets: Targets) -> Labels:
        return targets

    def predict(self, outputs: Outputs) -> Predictions:
        """Return the softmax; a single logit is the log odds of the second of two classes."""
        logits = outputs / self.temperature if self.temperature != 1 else outputs
        if logits.shape[1] > 1:
            return logits.softmax(dim=1)
        second = logits.sigmoid()
        return torch.cat([1 - second, second], dim=1)

    def decide(self, predictions: Predictions) -> Decisions:
        if self.threshold is None or predictions.shape[1] != 2:
            return predictions.argmax(1)
        reached = predictions[:, self.positive].double() >= self.threshold
        return torch.where(reached, self.positive, 1 - self.positive)

    def compare(self, before: Outputs, after: Outputs) -> Change:
        """Compare probabilities; the margin is the lead of the old class over every other."""
        p, q = self.predict(before), self.predict(after)
        decided = self.decide(p)
        if self.threshold is None:
            margin = lead_of(decided, q)
        else:
            sign = torch.where(decided == self.positive, 1.0, -1.0).to(q)
            margin = sign * (q[:, self.positive] - self.threshold)
        return Change(self.decide(q) == decided, (q - p).abs().amax(1), margin)

    def centre(self, outputs: Outputs) -> Outputs:
        """Subtract what all classes have in common, which the softmax ignores."""
        return outputs - outputs.mean(1, keepdim=True) if outputs.shape[1] > 1 else outputs

    def describe(self, prediction: Float[Tensor, " output"]) -> str:
        return self.names[int(self.decide(prediction[None])[0])]

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return accuracy, balanced accuracy, macro F1 and AUC; at a threshold, its two rates.

        Balanced accuracy is the mean recall of the classes that occur among the labels.  F1 is
        averaged over the classes that occur among labels or decisions.  The AUC is one class
        against the rest, averaged over the classes that occur (for two classes: the second against
        the first); it is undefined if all labels are of one class.
        """
        probabilities, labels = measured["predictions"], measured["targets"]
        decided = self.decide(probabilities)
        counts = count_classes(weights, decided, labels, probabilities.shape[1])
        found = {
            "accuracy": weighted_mean(weights, (decided == labels).double()),
            "balanced_accuracy": counts.recall.nanmean(1),
            "macro_f1": counts.f1.nanmean(1),
            "auc": _mean_auc(weights, probabilities, labels),
        }
        if self.threshold is not None:
            found["sensitivity"] = counts.recall[:, self.positive]
            found["specificity"] = counts.recall[:, 1 - self.positive]
        return found

    def details(self, measured: Measured) -> list[dict[str, Any]]:
        """Return recall, precision and F1 of every class; 0/0 is NaN."""
        counts = self.counts(measured)
        columns = (counts.label.long(), counts.recall, counts.precision, counts.f1)
        rows = zip(self.names, *(column[0].tolist() for column in columns), strict=True)
        keys = ("name", "count", "recall", "precision", "f1")
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def counts(self, measured: Measured) -> Counts:
        labels = measured["targets"]
        ones = torch.ones(1, len(labels), dtype=torch.float64)
        return count_classes(ones, self.decide(measured["predictions"]), labels, len(self.names))

    def confusion(self, measured: Measured) -> list[list[int]]:
        """Return how many images of each class (rows) were decided to be each class (columns)."""
        decided, labels = self.decide(measured["predictions"]), measured["targets"]
        cells = torch.bincount(labels * len(self.names) + decided, minlength=len(self.names) ** 2)
        return cells.view(len(self.names), -1).tolist()

    def summaries(self, measured: Measured) -> dict[str, Any]:
        return {"confusion": self.confusion(measured), "calibration": self.calibration(measured)}

    def calibrate(self, outputs: Outputs, targets: Targets) -> "Classes":
        """Return this kind with the temperature that fits these images best."""
        logits, labels = outputs.double(), targets
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        own = logits.gather(1, labels[:, None])[:, 0]

        def slope(inverse: float) -> float:
            return float(((inverse * logits).softmax(1) * logits).sum(1).mean() - own.mean())

        return replace(self, temperature=fit_temperature(slope))

    def calibration(self, measured: Measured) -> dict[str, Any]:
        """Return the expected calibration error of the most probable class, and its bins."""
        best = measured["predictions"].max(1)
        return reliability(best.values, best.indices == measured["targets"])

    def require_thresholds(self, positive: str | None = None) -> None:
        """Raise unless there are two classes, of which `positive` is one."""
        require(
            len(self.names) == 2,
            f"a threshold is for two classes, and there are {len(self.names)}; leave "
            "evaluation.sensitivity and evaluation.specificity out.",
        )
        if positive is not None:
            require_known(positive, self.names, "class")

    def without_decisions(self) -> "Classes":
        return replace(self, temperature=1.0, threshold=None)

    def at_operating_point(
        self,
        predictions: Predictions,
        targets: Targets,
        *,
        sensitivity: float | None = None,
        specificity: float | None = None,
        positive: str | None = None,
    ) -> "Classes":
        """Return this kind with the threshold that reaches a sensitivity or a specificity."""
        self.require_thresholds(positive)
        index = self.positive if positive is None else self.names.index(positive)
        threshold = choose_threshold(
            predictions[:, index], targets == index, sensitivity=sensitivity,
            specificity=specificity,
        )  # fmt: skip
        return replace(self, threshold=threshold, positive=index)


@register_kind
@dataclass(frozen=True)
class OrderedClasses(Classes):
    """One of several classes in ascending order, such as grades.

    The loss is the mean cross-entropy of the K − 1 questions "above class k?", whose probabilities
    are cumulative sums of the softmax: predictions two grades off cost more than one grade off.  It
    is a proper scoring rule, and a logarithmic form of the ranked probability score.

    Paper:    Epstein 1969, "A Scoring System for Probability Forecasts of Ranked Categories".
    Departs:  logarithms instead of squares.
    """

    kind: ClassVar[str] = "ordinal"
    score_names: ClassVar[tuple[str, ...]] = (*Classes.score_names, "mae", "kappa")
    selection: ClassVar[str] = "mae"
    falling: ClassVar[frozenset[str]] = frozenset({"mae"})
    plain_scores: ClassVar[frozenset[str]] = frozenset({"mae", "kappa"})

    def make_loss(self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None) -> Loss:
        require(smoothing == 0, "ordered classes have no label smoothing; set it to 0.")
        require_count(weights, len(self.names), "class")
        return Loss(_cumulative_cross_entropy, weights)

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return the scores of classes, the mean error in steps, and quadratic kappa."""
        decided, labels = self.decide(measured["predictions"]), measured["targets"]
        cells = confusion_counts(weights, decided, labels, measured["predictions"].shape[1])
        return super().scores(measured, weights) | {
            "mae": weighted_mean(weights, (decided - labels).abs().double()),
            "kappa": weighted_kappa(cells),
        }


def lead_of(
    decided: Labels, probabilities: Float[Tensor, "image classes"]
) -> Float[Tensor, " image"]:
    """Return how far the decided class is ahead of every other class."""
    others = probabilities.scatter(1, decided[:, None], -math.inf).amax(1)
    return probabilities.gather(1, decided[:, None])[:, 0] - others


def require_count(weights: tuple[float, ...] | None, count: int, what: str) -> None:
    """Raise unless there is a weight for every class or label."""
    require(
        weights is None or len(weights) == count,
        f"{len(weights or ())} weights were given for {count} {what} names; give one for each.",
    )


def _cross_entropy(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
) -> Tensor:
    return F.cross_entropy(outputs, targets, weights, label_smoothing=smoothing)


def _cumulative_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Return −Σₖ log P(side of threshold k on which the class is) / (K − 1), averaged."""
    log_p = outputs.float().log_softmax(1) if outputs.dtype.itemsize < 4 else outputs.log_softmax(1)
    below = log_p.logcumsumexp(1)[:, :-1]  # log P(class ≤ k)
    above = log_p.flip(1).logcumsumexp(1).flip(1)[:, 1:]  # log P(class > k)
    steps = torch.arange(below.shape[1], device=targets.device)
    loss = -torch.where(targets[:, None] <= steps, below, above).mean(1)
    if weights is None:
        return loss.mean()
    own = weights[targets]
    return (own * loss).sum() / own.sum()


def _mean_auc(
    weights: Weights, probabilities: Predictions, labels: Labels
) -> Float[Tensor, " draw"]:
    present = labels.unique().tolist()
    chosen = [1] if probabilities.shape[1] == 2 else present
    areas = [
        weighted_auc(weights, Ranking.of(probabilities[:, c], labels == c))
        for c in chosen
        if len(present) > 1
    ]
    undefined = weights.new_full((len(weights),), torch.nan)
    return torch.stack([undefined, *areas]).nanmean(0)
