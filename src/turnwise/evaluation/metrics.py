"""Scores with confidence intervals, upright, over views of the images, and by group.

What a score is belongs to the kind of target (`data/targets/`).  Intervals are bootstrap
percentiles: images, or groups of images where groups are known, are drawn with replacement, and
each draw is scored.  Images of one patient are alike, so drawing them on their own would make the
interval too narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from turnwise.data.targets import TargetKind, make_kind
from turnwise.data.targets.kind import Measured, Predictions, Targets
from turnwise.errors import require

Probabilities = Float[Tensor, "image class"]
Labels = Int64[Tensor, " image"]
LEVEL, RESAMPLES = 0.95, 1000
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


def score_intervals(
    kind: TargetKind,
    measured: Measured,
    groups: Sequence[str] = (),
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return every score of the kind with its confidence interval.

    `groups` has the group of each image, or is empty if groups are not known.
    """
    require(0 < level < 1, f"level = {level} must lie between 0 and 1; try 0.95.")
    require(resamples >= 1, f"resamples = {resamples} must be positive; try 1000.")
    values = kind.point_scores(measured)
    draws = score_draws(kind, measured, groups, resamples, seed)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    found = {}
    for name, value in values.items():
        low, high = draws[name].nanquantile(ends).tolist()
        found[name] = Interval(value, low, high)
    return found


def score_draws(
    kind: TargetKind, measured: Measured, groups: Sequence[str], resamples: int, seed: int
) -> dict[str, Float64[Tensor, " draw"]]:
    """Return every score of each draw of images, or of groups of images."""
    images = len(next(iter(measured.values())))
    unit = _unit_of_images(groups) if groups else torch.arange(images)
    units = int(unit.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    most = max(1, ENTRIES_AT_ONCE // images)
    sizes = [most] * (resamples // most) + [resamples % most] * (resamples % most > 0)
    chunks = []
    for size in sizes:
        chosen = torch.randint(units, (size, units), generator=generator)
        chosen += units * torch.arange(size)[:, None]
        counts = torch.bincount(chosen.flatten(), minlength=size * units).view(size, units)
        chunks.append(kind.scores(measured, counts[:, unit].double()))
    return {name: torch.cat([chunk[name] for chunk in chunks]).double() for name in chunks[0]}


def group_scores(
    kind: TargetKind, predictions: Predictions, targets: Targets, groups: Sequence[str]
) -> dict[str, Any]:
    """Return the scores of groups, such as patients: each predicts the mean of its images.

    count   the number of groups
    mixed   groups whose images differ in their target; they are left out
    scores  of the others, with intervals
    """
    unit = _unit_of_images(groups)
    members = [(unit == number).nonzero()[:, 0] for number in range(int(unit.max()) + 1)]
    found = [(rows, kind.group_target(targets[rows])) for rows in members]
    pairs = [(predictions[rows].mean(0), target) for rows, target in found if target is not None]
    result: dict[str, Any] = {"count": len(members), "mixed": len(members) - len(pairs)}
    if not pairs:
        return {**result, "scores": {}}
    means, wanted = (torch.stack(column) for column in zip(*pairs, strict=True))
    scores = score_intervals(kind, kind.measure(means, wanted))
    return {**result, "scores": {name: asdict(interval) for name, interval in scores.items()}}


def scores_by_view(
    kind: TargetKind, predictions: Float[Tensor, "view image *output"], targets: Targets
) -> dict[str, dict[str, float]]:
    """Return the mean and the worst of each score over several views of the same images."""
    found = [kind.point_scores(kind.measure(view, targets)) for view in predictions]
    of = {name: [scores[name] for scores in found] for name in found[0]}
    worst = {name: max if name in kind.falling else min for name in of}
    return {name: {"mean": sum(v) / len(v), "least": worst[name](v)} for name, v in of.items()}


def classification_scores(
    probabilities: Probabilities,
    labels: Labels,
    groups: Sequence[str] = (),
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return accuracy, balanced_accuracy, macro_f1 and auc, each with its confidence interval.

    `data.targets.classes` defines them.  `groups` has the group of each image, if it is known:
    then groups are resampled, not images.
    """
    probabilities, labels = _checked(probabilities, labels)
    names = tuple(str(number) for number in range(probabilities.shape[1]))
    kind = make_kind("class", names)
    measured = kind.measure(probabilities, labels)
    return score_intervals(kind, measured, groups, level=level, resamples=resamples, seed=seed)


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


def _unit_of_images(groups: Sequence[str]) -> Int64[Tensor, " image"]:
    """Return the number of each image's group, in the order in which groups appear."""
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([number[group] for group in groups])


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
