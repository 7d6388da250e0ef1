"""Metrics of a classifier, with confidence intervals.

Point values come from torchmetrics.  Intervals are bootstrap percentiles: the test images are
resampled with replacement, and each resample is scored.  Accuracy, balanced accuracy and F1 depend
only on the confusion matrix, whose cells are multinomial under resampling; so we draw the cells,
which is exact and fast.  For the AUC the images themselves are drawn, and each draw is a weighted
rank statistic of one sorted list.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torchmetrics.functional.classification as scores
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from turnwise.errors import require

Probabilities = Float[Tensor, "image class"]
Labels = Int64[Tensor, " image"]
Draws = Float64[Tensor, "score draw"]
ENTRIES_AT_ONCE = 1 << 20  # draws are made in chunks of about this many numbers, to bound memory


@dataclass(frozen=True)
class Interval:
    """A score and its confidence interval; all three are NaN if the score is undefined."""

    value: float
    low: float
    high: float

    @classmethod
    def from_plain(cls, plain: Mapping[str, float | str]) -> "Interval":
        """Return the interval stored in JSON, where NaN is the string "nan"."""
        return cls(*(float(plain[key]) for key in ("value", "low", "high")))


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class; a quotient 0/0 (no such label, or never predicted) is NaN."""

    name: str
    count: int
    recall: float
    precision: float
    f1: float


def classification_scores(
    probabilities: Probabilities,
    labels: Labels,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return accuracy, balanced_accuracy, macro_f1 and auc, each with its confidence interval.

    Balanced accuracy is the mean recall of the classes that occur among the labels.  F1 is averaged
    over the classes that occur among labels or predictions.  The AUC is one class against the
    rest, averaged over the classes that occur (for two classes: the second against the first); it
    is undefined if all labels are of one class.
    """
    require(0 < level < 1, f"level = {level} must lie between 0 and 1; try 0.95.")
    require(resamples >= 1, f"resamples = {resamples} must be positive; try 1000.")
    probabilities, labels = _checked(probabilities, labels)
    confusion = confusion_matrix(probabilities, labels, probabilities.shape[1])
    draws = torch.cat(
        [
            _confusion_draws(confusion, resamples, np.random.default_rng(seed)),
            _auc_draws(probabilities, labels, resamples, torch.Generator().manual_seed(seed)),
        ]
    )
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = draws.nanquantile(ends, dim=1).tolist()
    values = _point_values(probabilities, labels)
    return {
        name: Interval(value, low[i], high[i]) for i, (name, value) in enumerate(values.items())
    }


def scores_by_view(
    probabilities: Float[Tensor, "view image class"], labels: Labels
) -> dict[str, dict[str, float]]:
    """Return the mean and the minimum of each score over several views of the same images."""
    values = [_point_values(*_checked(view, labels)) for view in probabilities]
    of = {name: [value[name] for value in values] for name in values[0]}
    return {name: {"mean": sum(v) / len(v), "least": min(v)} for name, v in of.items()}


def per_class_scores(
    probabilities: Probabilities, labels: Labels, classes: Sequence[str]
) -> list[ClassScore]:
    """Return recall, precision and F1 of every class, in the order of `classes`."""
    confusion = confusion_matrix(probabilities, labels, len(classes)).double()
    right, label, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    recall, precision, f1 = right / label, right / predicted, 2 * right / (label + predicted)
    columns = (label.long().tolist(), recall.tolist(), precision.tolist(), f1.tolist())
    return [ClassScore(*row) for row in zip(classes, *columns, strict=True)]


def confusion_matrix(
    probabilities: Probabilities, labels: Labels, classes: int
) -> Int64[Tensor, "label predicted"]:
    """Return how many images of each label were predicted as each class."""
    probabilities, labels = _checked(probabilities, labels)
    require(
        probabilities.shape[1] == classes,
        f"the probabilities are of {probabilities.shape[1]} classes and {classes} classes are "
        "named; name as many classes as the model has.",
    )
    cells = labels * classes + probabilities.argmax(1)
    return torch.bincount(cells, minlength=classes**2).view(classes, classes)


def _checked(probabilities: Probabilities, labels: Labels) -> tuple[Probabilities, Labels]:
    """Check both; return them on the CPU, the probabilities in at least float32."""
    images, classes = probabilities.shape
    require(images > 0, "there are no images to score; give at least one.")
    inside = bool(((probabilities >= -1e-5) & (probabilities <= 1 + 1e-5)).all())  # no for NaN
    require(inside, "probabilities must lie between 0 and 1; apply softmax, and look for NaN.")
    require(
        bool(((labels >= 0) & (labels < classes)).all()),
        f"labels run from {int(labels.min())} to {int(labels.max())}, but {classes} classes are "
        f"numbered 0 to {classes - 1}; number the labels alike.",
    )
    precise = torch.promote_types(probabilities.dtype, torch.float32)
    return probabilities.detach().to("cpu", precise).clamp(0, 1), labels.cpu()


def _point_values(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    predicted = probabilities.argmax(1)
    classes = max(2, probabilities.shape[1])  # torchmetrics needs two
    present = torch.bincount(labels, minlength=classes) > 0
    recall = scores.multiclass_recall(predicted, labels, classes, average="none")
    f1 = scores.multiclass_f1_score(predicted, labels, classes, average="macro")
    accuracy = scores.multiclass_accuracy(predicted, labels, classes, average="micro")
    areas = [
        scores.binary_auroc(probabilities[:, c], (labels == c).long())
        for c in _ranked_classes(probabilities, labels)
    ]
    return {
        "accuracy": float(accuracy),
        "balanced_accuracy": float(recall[present].mean()),
        "macro_f1": float(f1),
        "auc": min(1.0, float(torch.stack(areas).mean())) if areas else math.nan,
    }


def _ranked_classes(probabilities: Probabilities, labels: Labels) -> list[int]:
    """Return the classes with an AUC: those that some images have and others have not."""
    classes = probabilities.shape[1]
    counts = torch.bincount(labels, minlength=classes).tolist()
    both = [c for c in range(classes) if 0 < counts[c] < len(labels)]
    return both[-1:] if classes == 2 else both


def _confusion_draws(
    confusion: Int64[Tensor, "label predicted"], resamples: int, random: np.random.Generator
) -> Draws:
    """Return accuracy, balanced accuracy and macro F1 of each resample."""
    label, predicted = confusion.nonzero(as_tuple=True)
    counts, classes, images = confusion[label, predicted], len(confusion), int(confusion.sum())

    def by_class(
        cells: Float64[Tensor, "draw cell"], class_of_cell: Int64[Tensor, " cell"]
    ) -> Float64[Tensor, "draw class"]:
        return cells.new_zeros(len(cells), classes).index_add_(1, class_of_cell, cells)

    def scores_of(draws: int) -> Draws:
        drawn = random.multinomial(images, (counts.double() / images).numpy(), size=draws)
        cells = torch.from_numpy(drawn).double()  # (draw, cell)
        right = by_class(cells * (label == predicted), label)
        recall = right / by_class(cells, label)  # 0/0 is NaN, and left out of the mean
        f1 = 2 * right / (by_class(cells, label) + by_class(cells, predicted))
        return torch.stack([right.sum(1) / images, recall.nanmean(1), f1.nanmean(1)])

    return _in_chunks(scores_of, resamples, max(len(counts), classes))


def _auc_draws(
    probabilities: Probabilities, labels: Labels, resamples: int, generator: torch.Generator
) -> Draws:
    """Return the AUC of each resample, averaged over the classes that have one in it."""
    images = len(labels)
    rankings = [
        _ranking(probabilities[:, c], labels == c) for c in _ranked_classes(probabilities, labels)
    ]

    def scores_of(draws: int) -> Draws:
        chosen = torch.randint(images, (draws, images), generator=generator)
        chosen += images * torch.arange(draws)[:, None]
        counts = torch.bincount(chosen.flatten(), minlength=draws * images)
        weights = counts.view(draws, images).double()
        areas = [_weighted_auc(weights, ranking) for ranking in rankings]
        undefined = weights.new_full((1, draws), torch.nan)
        return torch.cat([undefined, *(area[None] for area in areas)]).nanmean(0, keepdim=True)

    return _in_chunks(scores_of, resamples, images)


@dataclass(frozen=True)
class _Ranking:
    """One class against the rest, sorted once for all resamples."""

    positives: Int64[Tensor, " positive"]
    negatives: Int64[Tensor, " negative"]  # by rising probability
    below: Int64[Tensor, " positive"]  # how many negatives rank below each positive
    not_above: Int64[Tensor, " positive"]  # the same, ties included


def _ranking(values: Float[Tensor, " image"], positive: Bool[Tensor, " image"]) -> _Ranking:
    positives, negatives = positive.nonzero()[:, 0], (~positive).nonzero()[:, 0]
    rising, order = values[negatives].sort()
    wanted = values[positives]
    below = torch.searchsorted(rising, wanted)
    not_above = torch.searchsorted(rising, wanted, right=True)
    return _Ranking(positives, negatives[order], below, not_above)


def _weighted_auc(
    weights: Float64[Tensor, "draw image"], ranking: _Ranking
) -> Float64[Tensor, " draw"]:
    """Return the share of pairs (positive, negative) in the right order; a tie counts half."""
    positive, negative = weights[:, ranking.positives], weights[:, ranking.negatives]
    passed = torch.nn.functional.pad(negative.cumsum(1), (1, 0))  # weight of the first n negatives
    pairs = positive * (passed[:, ranking.below] + passed[:, ranking.not_above]) / 2
    return pairs.sum(1) / (positive.sum(1) * negative.sum(1))  # 0/0 is NaN: one side is missing


def _in_chunks(scores_of: Callable[[int], Draws], resamples: int, entries: int) -> Draws:
    """Return `scores_of` for all resamples, in chunks; one draw holds `entries` numbers."""
    most = max(1, ENTRIES_AT_ONCE // entries)
    sizes = [most] * (resamples // most) + [resamples % most] * (resamples % most > 0)
    return torch.cat([scores_of(size) for size in sizes], dim=1)
