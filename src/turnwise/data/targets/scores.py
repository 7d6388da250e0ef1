"""Scores of weighted images, for all draws of a bootstrap at once.

Every function takes weights of shape (draw, image) and returns one value per draw, NaN where the
score is undefined.  With weights 1 it is the ordinary score.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Weights = Float[Tensor, "draw image"]
PerDraw = Float[Tensor, " draw"]
PerClass = Float[Tensor, "draw classes"]


@dataclass(frozen=True)
class Counts:
    """Weights of the images of each class: by label, by decision, and where the two agree."""

    label: PerClass
    decided: PerClass
    right: PerClass

    @property
    def recall(self) -> PerClass:
        return self.right / self.label

    @property
    def precision(self) -> PerClass:
        return self.right / self.decided

    @property
    def f1(self) -> PerClass:
        return 2 * self.right / (self.label + self.decided)


def count_classes(
    weights: Weights,
    decided: Int64[Tensor, " image"],
    labels: Int64[Tensor, " image"],
    classes: int,
) -> Counts:
    """Return the weights of each class; an image has one label and one decision."""

    def by(numbers: Int64[Tensor, " image"], of: Weights) -> PerClass:
        return of.new_zeros(len(of), classes).index_add_(1, numbers, of)

    return Counts(
        by(labels, weights), by(decided, weights), by(labels, weights * (decided == labels))
    )


def weighted_mean(weights: Weights, values: Float[Tensor, " image"]) -> PerDraw:
    """Return the mean of the values."""
    return weights @ values.to(weights.dtype) / weights.sum(1)


@dataclass(frozen=True)
class Ranking:
    """Positive and negative images by rising value, sorted once for all draws."""

    positives: Int64[Tensor, " positive"]
    negatives: Int64[Tensor, " negative"]  # by rising value
    below: Int64[Tensor, " positive"]  # how many negatives rank below each positive
    not_above: Int64[Tensor, " positive"]  # the same, ties included

    @classmethod
    def of(cls, values: Float[Tensor, " image"], positive: Bool[Tensor, " image"]) -> "Ranking":
        positives, negatives = positive.nonzero()[:, 0], (~positive).nonzero()[:, 0]
        rising, order = values[negatives].sort()
        wanted = values[positives]
        below = torch.searchsorted(rising, wanted)
        not_above = torch.searchsorted(rising, wanted, right=True)
        return cls(positives, negatives[order], below, not_above)


def weighted_auc(weights: Weights, ranking: Ranking) -> PerDraw:
    """Return the share of pairs (positive, negative) in the right order; a tie counts half."""
    positive, negative = weights[:, ranking.positives], weights[:, ranking.negatives]
    passed = torch.nn.functional.pad(negative.cumsum(1), (1, 0))  # weight of the first n negatives
    pairs = positive * (passed[:, ranking.below] + passed[:, ranking.not_above]) / 2
    return pairs.sum(1) / (positive.sum(1) * negative.sum(1))  # 0/0 is NaN: one side is missing


def weighted_average_precision(
    weights: Weights, values: Float[Tensor, " image"], positive: Bool[Tensor, " image"]
) -> PerDraw:
    """Return Σ (Rₙ − Rₙ₋₁) Pₙ over falling thresholds, tied values taken at once."""
    falling, order = values.sort(descending=True)
    ends = torch.searchsorted(-falling, -falling, right=True) - 1  # the last of each tie
    sorted_weights, hits = weights[:, order], positive[order].to(weights.dtype)
    precision = (sorted_weights * hits).cumsum(1) / sorted_weights.cumsum(1)
    gains = sorted_weights * hits
    found = (gains * precision[:, ends].nan_to_num()).sum(1)
    return found / gains.sum(1)


def weighted_kappa(counts: Float[Tensor, "draw label decided"]) -> PerDraw:
    """Return Cohen's kappa with quadratic weights: 1 − Σ d² observed / Σ d² expected.

    Paper:    Cohen 1968, "Weighted kappa".
    """
    steps = torch.arange(counts.shape[1], dtype=counts.dtype)
    cost = (steps[:, None] - steps[None]).square()
    total = counts.sum((1, 2))
    expected = counts.sum(2)[:, :, None] * counts.sum(1)[:, None, :] / total[:, None, None]
    return 1 - (cost * counts).sum((1, 2)) / (cost * expected).sum((1, 2))  # 0/0 is NaN


def confusion_counts(
    weights: Weights,
    decided: Int64[Tensor, " image"],
    labels: Int64[Tensor, " image"],
    classes: int,
) -> Float[Tensor, "draw {classes} {classes}"]:
    """Return the weights of every pair (label, decision)."""
    cells = weights.new_zeros(len(weights), classes**2)
    return cells.index_add_(1, labels * classes + decided, weights).unflatten(1, (classes, classes))


def weighted_r2(
    weights: Weights, predicted: Float[Tensor, " image"], target: Float[Tensor, " image"]
) -> PerDraw:
    """Return 1 − Σ (y − ŷ)² / Σ (y − ȳ)²."""
    target, predicted = target.to(weights.dtype), predicted.to(weights.dtype)
    mean = weighted_mean(weights, target)
    residual = weights @ (target - predicted).square()
    total = (weights * (target[None] - mean[:, None]).square()).sum(1)
    return 1 - residual / torch.where(total > 0, total, torch.nan)
