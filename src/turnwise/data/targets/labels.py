"""Several labels per image, each present or absent."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.data.targets.calibration import choose_threshold, fit_temperature, reliability
from turnwise.data.targets.classes import require_count
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
    Ranking,
    weighted_auc,
    weighted_average_precision,
    weighted_mean,
)
from turnwise.errors import InputError, require


@register_kind
@dataclass(frozen=True)
class Labels(TargetKind):
    """Any number of labels: binary cross-entropy, sigmoid, every label with p ≥ its threshold.

    Attributes:
        temperature: the logits are divided by it (calibration on validation images).
        thresholds: of each label; empty means 0.5.
    """

    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()

    kind: ClassVar[str] = "multilabel"
    dtype: ClassVar[torch.dtype] = torch.float32
    axes: ClassVar[int] = 2
    score_names: ClassVar[tuple[str, ...]] = ("map", "auc", "macro_f1", "exact_match")
    selection: ClassVar[str] = "map"
    calibrates: ClassVar[bool] = True

    def make_loss(self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None) -> Loss:
        require(smoothing == 0, "several labels have no label smoothing; set it to 0.")
        require_count(weights, len(self.names), "label")
        return Loss(_binary_cross_entropy, weights)

    def balanced_weights(self, targets: Targets) -> tuple[float, ...]:
        """Return absent / present for each label: the weight of its positive images."""
        present = targets.double().sum(0)
        return tuple(((len(targets) - present) / present.clamp_min(1)).clamp_min(1e-3).tolist())

    def strata(self, targets: Targets) -> Int64[Tensor, " image"]:
        raise InputError(
            "balanced sampling needs one class per image, and these images have several labels; "
            "use class weights instead."
        )

    def predict(self, outputs: Outputs) -> Predictions:
        return (outputs / self.temperature if self.temperature != 1 else outputs).sigmoid()

    def decide(self, predictions: Predictions) -> Decisions:
        return predictions.double() >= self._limits(predictions)

    def compare(self, before: Outputs, after: Outputs) -> Change:
        """Compare probabilities; the margin is the smallest distance to a threshold."""
        p, q = self.predict(before), self.predict(after)
        old = self.decide(p)
        distance = torch.where(old, 1.0, -1.0) * (q.double() - self._limits(q))
        same = (self.decide(q) == old).all(1)
        return Change(same, (q - p).abs().amax(1), distance.amin(1).to(q.dtype))

    def describe(self, prediction: Float[Tensor, " output"]) -> str:
        present = self.decide(prediction[None])[0].tolist()
        return "|".join(name for name, here in zip(self.names, present, strict=True) if here)

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return mAP, AUC and F1, averaged over the labels, and the share of exact matches.

        A label that no image has, or that all have, is left out of the mean.
        """
        probabilities, present = measured["predictions"], measured["targets"] > 0.5
        decided = self.decide(probabilities)
        columns = list(zip(probabilities.T, present.T, decided.T, strict=True))
        precision = [weighted_average_precision(weights, p, y) for p, y, _ in columns]
        areas = [weighted_auc(weights, Ranking.of(p, y)) for p, y, _ in columns]
        f1 = [_f1(weights, d, y) for _, y, d in columns]
        return {
            "map": torch.stack(precision).nanmean(0),
            "auc": torch.stack(areas).nanmean(0),
            "macro_f1": torch.stack(f1).nanmean(0),
            "exact_match": weighted_mean(weights, (decided == present).all(1).double()),
        }

    def details(self, measured: Measured) -> list[dict[str, Any]]:
        """Return recall, precision, F1 and average precision of every label; 0/0 is NaN."""
        probabilities, present = measured["predictions"], measured["targets"] > 0.5
        decided, ones = self.decide(probabilities), torch.ones(1, len(present)).double()
        rows = []
        for i, name in enumerate(self.names):
            y, d = present[:, i], decided[:, i]
            right, count, found = (int(x.sum()) for x in (y & d, y, d))
            average = weighted_average_precision(ones, probabilities[:, i], y)
            rows.append(
                {
                    "name": name,
                    "count": count,
                    "recall": _ratio(right, count),
                    "precision": _ratio(right, found),
                    "f1": _ratio(2 * right, count + found),
                    "average_precision": float(average),
                }
            )
        return rows

    def summaries(self, measured: Measured) -> dict[str, Any]:
        return {"calibration": self.calibration(measured)}

    def calibrate(self, outputs: Outputs, targets: Targets) -> "Labels":
        """Return this kind with the temperature that fits these images best."""
        logits, present = outputs.double(), targets.double()

        def slope(inverse: float) -> float:
            return float(((inverse * logits).sigmoid() * logits - present * logits).mean())

        return replace(self, temperature=fit_temperature(slope))

    def calibration(self, measured: Measured) -> dict[str, Any]:
        """Return the expected calibration error over all labels of all images, and its bins."""
        probabilities, present = measured["predictions"].flatten(), measured["targets"].flatten()
        return reliability(probabilities, present > 0.5)

    def require_thresholds(self, positive: str | None = None) -> None:
        require(
            positive is None, "every label has its own threshold; leave evaluation.positive out."
        )

    def without_decisions(self) -> "Labels":
        return replace(self, temperature=1.0, thresholds=())

    def at_operating_point(
        self,
        predictions: Predictions,
        targets: Targets,
        *,
        sensitivity: float | None = None,
        specificity: float | None = None,
        positive: str | None = None,
    ) -> "Labels":
        """Return this kind with thresholds at which every label reaches the rate."""
        self.require_thresholds(positive)
        thresholds = [
            choose_threshold(p, y > 0.5, sensitivity=sensitivity, specificity=specificity)
            for p, y in zip(predictions.T, targets.T, strict=True)
        ]
        return replace(self, thresholds=tuple(thresholds))

    def _limits(self, predictions: Predictions) -> Tensor:
        given = self.thresholds or (0.5,) * predictions.shape[1]
        return torch.tensor(given, dtype=torch.float64, device=predictions.device)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs), pos_weight=weights)


def _f1(weights: Weights, decided: Tensor, present: Tensor) -> Tensor:
    right = weights @ (decided & present).to(weights.dtype)
    return 2 * right / (weights @ decided.to(weights.dtype) + weights @ present.to(weights.dtype))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
