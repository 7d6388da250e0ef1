"""A class for every pixel, or the instances that three classes of pixels stand for."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.data.instances import SCORES, score_instances
from turnwise.data.masks import IGNORED_CLASS, pixel_classes
from turnwise.data.targets.classes import lead_of, require_count
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
from turnwise.errors import InputError


@register_kind
@dataclass(frozen=True)
class Masks(TargetKind):
    """A class for every pixel: cross-entropy and Dice loss, softmax, and the overlap of masks.

    Paper:    Isensee et al. 2021, "nnU-Net" (the sum of both losses, Dice over the whole batch).
    """

    kind: ClassVar[str] = "mask"
    dtype: ClassVar[torch.dtype] = torch.uint8
    axes: ClassVar[int] = 3
    score_names: ClassVar[tuple[str, ...]] = ("mean_dice", "mean_iou", "pixel_accuracy")
    measured_names: ClassVar[tuple[str, ...]] = ("truth", "found", "both")
    selection: ClassVar[str] = "mean_dice"
    can_mix: ClassVar[bool] = False

    def make_loss(self, smoothing: float = 0.0, weights: tuple[float, ...] | None = None) -> Loss:
        require_count(weights, len(self.names), "class")
        return Loss(partial(_pixel_loss, smoothing=smoothing), weights)

    def balanced_weights(self, targets: Targets) -> tuple[float, ...]:
        """Return pixels / (classes · pixels of the class)."""
        classes = pixel_classes(targets)
        counts = torch.bincount(classes[classes >= 0], minlength=len(self.names)).double()
        present = counts > 0
        weights = counts.sum() / (int(present.sum()) * counts.clamp_min(1))
        return tuple(torch.where(present, weights, 1.0).tolist())

    def strata(self, targets: Targets) -> Int64[Tensor, " image"]:
        raise InputError(
            "balanced sampling needs one class per image, and these have masks; use class weights."
        )

    def predict(self, outputs: Outputs) -> Predictions:
        return outputs.softmax(dim=1)

    def decide(self, predictions: Predictions) -> Decisions:
        return predictions.argmax(1)

    def compare(self, before: Outputs, after: Outputs) -> Change:
        """Compare all pixels; an image keeps its decision if every pixel does."""
        p, q = (self.predict(x).flatten(2) for x in (before, after))
        old = self.decide(p)
        lead = torch.stack([lead_of(d, x.T) for d, x in zip(old, q, strict=True)]).amin(1)
        return Change((self.decide(q) == old).all(1), (q - p).abs().amax((1, 2)), lead)

    def centre(self, outputs: Outputs) -> Outputs:
        return outputs - outputs.mean(1, keepdim=True)

    def describe(self, prediction: Float[Tensor, "output row col"]) -> str:
        shares = F.one_hot(self.decide(prediction[None]).flatten(), len(self.names)).sum(0)
        return self.names[int(shares.argmax())]

    def measure(self, predictions: Predictions, targets: Targets) -> Measured:
        """Return the pixels of each class in the mask, in the decision, and in both."""
        classes = pixel_classes(targets)
        counts = (classes != IGNORED_CLASS)[..., None]
        truth, found = (
            (F.one_hot(c.clamp_min(0), len(self.names)) * counts).flatten(1, 2)
            for c in (classes, self.decide(predictions))
        )
        return {
            "truth": truth.sum(1).double(),
            "found": found.sum(1).double(),
            "both": (truth * found).sum(1).double(),
        }

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return Dice and the intersection over union, averaged over the classes that occur in
        masks or decisions, and the share of correct pixels."""
        truth, found, both = (weights @ measured[key] for key in ("truth", "found", "both"))
        return {
            "mean_dice": (2 * both / (truth + found)).nanmean(1),
            "mean_iou": (both / (truth + found - both)).nanmean(1),
            "pixel_accuracy": both.sum(1) / truth.sum(1),
        }

    def details(self, measured: Measured) -> list[dict[str, Any]]:
        """Return the pixels and the intersection over union of every class."""
        truth, found, both = (measured[key].sum(0) for key in ("truth", "found", "both"))
        overlap = (both / (truth + found - both)).tolist()
        return [
            {"name": name, "pixels": int(count), "iou": iou}
            for name, count, iou in zip(self.names, truth.tolist(), overlap, strict=True)
        ]

    def group_target(self, targets: Targets) -> None:
        """Masks of several images are not one target."""


@register_kind
@dataclass(frozen=True)
class Instances(Masks):
    """The number of the instance of every pixel; models predict background, inside and border.

    The scores are those of the instances that the three classes stand for, means over the images.
    The border is one pixel wide, so its own overlap, and `mean_dice` with it, is low even where
    every instance is found: moving the true masks by one pixel halves it.
    """

    kind: ClassVar[str] = "instances"
    dtype: ClassVar[torch.dtype] = torch.int16
    score_names: ClassVar[tuple[str, ...]] = (*SCORES, *Masks.score_names)
    measured_names: ClassVar[tuple[str, ...]] = (*Masks.measured_names, *SCORES)
    selection: ClassVar[str] = "ap50"

    def measure(self, predictions: Predictions, targets: Targets) -> Measured:
        """Return the pixels of each class, and the scores of the instances of each image."""
        found = score_instances(predictions, targets)
        scores = {name: values.to(predictions.device) for name, values in found.items()}
        return {**super().measure(predictions, targets), **scores}

    def scores(self, measured: Measured, weights: Weights) -> dict[str, Float[Tensor, " draw"]]:
        """Return the mean scores of the instances, over the images that have them, and those of
        the three classes of pixels."""
        means = {
            name: (weights @ measured[name].nan_to_num(0.0))
            / (weights @ (~measured[name].isnan()).to(weights))
            for name in SCORES
        }
        return {**means, **super().scores(measured, weights)}


def _pixel_loss(
    outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
) -> Tensor:
    classes, logits = pixel_classes(targets), outputs.float()
    require_map(outputs, classes)
    entropy = F.cross_entropy(
        logits, classes, weights, ignore_index=IGNORED_CLASS, label_smoothing=smoothing
    )
    return entropy + dice_loss(logits, classes)


def dice_loss(
    logits: Float[Tensor, "image class row col"], classes: Int64[Tensor, "image row col"]
) -> Float[Tensor, ""]:
    """Return 1 − mean over the classes of 2 Σ p y / (Σ p + Σ y), sums over the pixels of a batch.

    Paper:    Milletari et al. 2016, "V-Net".
    Departs:  p and y are not squared in the denominator; classes absent from the batch and from
              the predictions count as right.
    """
    counts = (classes != IGNORED_CLASS)[:, None]
    p = logits.softmax(dim=1) * counts
    y = F.one_hot(classes.clamp_min(0), logits.shape[1]).movedim(-1, 1) * counts
    both, either = (p * y).sum((0, 2, 3)), (p + y).sum((0, 2, 3))
    return 1 - ((2 * both + 1) / (either + 1)).mean()


def require_map(outputs: Tensor, classes: Int64[Tensor, "image row col"]) -> None:
    """Raise unless a model returns logits for every pixel."""
    if outputs.ndim != 4 or outputs.shape[2:] != classes.shape[1:]:
        raise InputError(
            f"the model returns shape {tuple(outputs.shape)} for masks of {tuple(classes.shape)}; "
            "train a model with one output per pixel, such as turnwise_unet_small or unet."
        )
