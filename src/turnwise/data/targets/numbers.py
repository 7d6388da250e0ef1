"""Numbers: one or several per image, such as an angle, a count or a size."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

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
from turnwise.data.targets.scores import weighted_mean, weighted_r2
from turnwise.errors import InputError, require

CLOSE = 0.01  # predictions count as the same if they differ by less, in standard deviations


@register_kind
@dataclass(frozen=True)
class Numbers(TargetKind):
    """Numbers: squared error of standardised targets; outputs are scaled back to their unit.

    Attributes:
        mean, std: of each column over the training images; empty means 0 and 1.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    kind: ClassVar[str] = "number"
    dtype: ClassVar[torch.dtype] = torch.float32
    axes: ClassVar[int] = 2
    score_names: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2")
    selection: ClassVar[str] = "mae"
    falling: ClassVar[frozenset[str]] = frozenset({"mae", "rmse"})
    plain_scores: ClassVar[frozenset[str]] = frozenset({"mae", "rmse", "r2"})
    has_probabilities: ClassVar[bool] = False

    def fit(self, targets: Targets) -> "Numbers":
        """Return this kind with the mean and the standard deviation of the targets."""
        require(
            bool(torch.isfinite(targets).all()),
            "a target is not a finite number; correct it or leave the image out.",
        )
        values = targets.double()
        std = values.std(0, unbiased=False)
        std = torch.where(std > 0, std, 1.0)  # a constant column stays as it is
        return replace(self, mean=tuple(values.mean(0).tolist()), std=tuple(std.tolist()))

    def make_loss(self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None) -> Loss:
        require(smoothing == 0, "numbers have no label smoothing; set it to 0.")
        require(weights is None, "numbers have no class weights; leave them out.")
        return Loss(self._squared_error)

    def balanced_weights(self, targets: Targets) -> tuple[float, ...]:
        raise InputError("numbers have no class weights; leave them out.")

    def strata(self, targets: Targets) -> Int64[Tensor, " image"]:
        raise InputError("balanced sampling needs classes, and the targets are numbers.")

    def predict(self, outputs: Outputs) -> Predictions:
        mean, std = self._constants(outputs)
        return mean + std * outputs

    def decide(self, predictions: Predictions) -> Decisions:
        return predictions

    def agree(self, one: Predictions, other: Predictions) -> Bool[Tensor, " image"]:
        """Return for which images two numbers differ by less than `CLOSE` standard deviations."""
        _, std = self._constants(one)
        return ((one - other).abs() / std).amax(1) < CLOSE

    def compare(self, before: Outputs, after: Outputs) -> Change:
        """Compare in standard deviations; numbers that differ by less than `CLOSE` are the same."""
        size = (after - before).abs().amax(1)
        return Change(size < CLOSE, size, CLOSE - size)

    def describe(self, prediction: Float[Tensor, " output"]) -> str:
        values = ", ".join(f"{value:.4g}" for value in prediction.tolist())
        return f"{values} {self.unit}".rstrip()

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return the mean absolute error, the root of the mean squared error and R², each averaged
        over the columns."""
        columns = list(zip(measured["predictions"].T, measured["targets"].T, strict=True))
        errors = [(p - y).double() for p, y in columns]
        squares = [weighted_mean(weights, e.square()).sqrt() for e in errors]
        return {
            "mae": torch.stack([weighted_mean(weights, e.abs()) for e in errors]).mean(0),
            "rmse": torch.stack(squares).mean(0),
            "r2": torch.stack([weighted_r2(weights, p, y) for p, y in columns]).nanmean(0),
        }

    def details(self, measured: Measured) -> list[dict[str, Any]]:
        """Return the scores of every column."""
        rows = []
        for i, name in enumerate(self.names):
            column = {key: values[:, i : i + 1] for key, values in measured.items()}
            rows.append({"name": name, **self.point_scores(column)})
        return rows

    def group_target(self, targets: Targets) -> Tensor | None:
        """Return the mean of the targets of a group of images."""
        return targets.mean(0)

    def _squared_error(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        mean, std = self._constants(outputs)
        return F.mse_loss(outputs, (targets.to(outputs) - mean) / std)

    def _constants(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and std with the axes of the outputs."""
        shape = (1, outputs.shape[1], *(1 for _ in outputs.shape[2:]))
        mean, std = self.mean or (0.0,) * shape[1], self.std or (1.0,) * shape[1]
        return outputs.new_tensor(mean).view(shape), outputs.new_tensor(std).view(shape)
