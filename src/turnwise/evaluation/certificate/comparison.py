"""Compare the logits of a model before and after the images were transformed."""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.data.targets import TargetKind, make_kind
from turnwise.data.targets.masks import Masks
from turnwise.errors import require
from turnwise.groups.equivariance import ratio
from turnwise.inference.exported import FileModel
from turnwise.inference.loading import hash_weights as hash_weights
from turnwise.inference.predictor import PRECISIONS, Predictor, Transform

Images = Float[Tensor, "image channel row col"]
Logits = Float[Tensor, "image num_classes *pixels"]


def predict_logits(
    predictor: Predictor,
    images: Images,
    transform: Transform | None = None,
    back: Transform | None = None,
) -> Logits:
    """Return the logits in float64: one row for each image, or one map.

    `back` undoes on maps what `transform` does to images: a map h⁻¹Φ(h f) over the image itself
    must not change, as the logits of a classifier must not.
    """
    logits = predictor.logits(images, transform)
    if logits.ndim == 4 and isinstance(predictor.kind, Masks):
        return logits if back is None else back(logits)
    require(
        logits.ndim == 2,
        f"the model returns shape {tuple(logits.shape)} for {len(images)} images; a model that can "
        "be certified returns one row of logits for each image, (image, class), or one map, "
        "(image, class, row, col).",
    )
    return logits


def usable_precisions(model: nn.Module, requested: tuple[str, ...]) -> tuple[str, ...]:
    """Return the precisions in which to run a model, finest first; a file has only its own."""
    if isinstance(model, FileModel):
        return (model.precision,)
    return tuple(precision for precision in PRECISIONS if precision in requested)


def logit_change(before: Logits, after: Logits, kind: TargetKind | None = None) -> float:
    """Return max |after − before| / max |before − what does not matter|.

    The softmax ignores what all classes have in common, so a large common part must not hide a
    difference between classes.  `kind` is the kind of target, by default classes.
    """
    centred = (kind or make_kind("class")).centre(before)
    return ratio(float((after - before).abs().max()), float(centred.abs().max()))


@dataclass(frozen=True)
class Decisions:
    """What a transformation does to decisions; p and p′ are the probabilities before and after.

    agreement    the share of images whose decision stays: the class, all labels, or the number
    probability  max |p′ − p| over images and classes; of numbers, in standard deviations
    margin       the smallest lead of the old class over every other class afterwards,
                 min p′(old) − p′(other), or what the kind of target defines (`data/targets/`);
                 below 0 where a decision changed
    worst        the image whose probabilities changed most
    """

    agreement: float
    probability: float
    margin: float
    worst: int


def compare_decisions(before: Logits, after: Logits, kind: TargetKind | None = None) -> Decisions:
    """Compare the decisions of two sets of logits for the same images."""
    change = (kind or make_kind("class")).compare(before, after)
    return Decisions(
        agreement=float(change.same.double().mean()),
        probability=float(change.size.max()),
        margin=float(change.margin.min()),
        worst=int(change.size.argmax()),
    )


def with_noise(images: Images) -> Images:
    """Return four fifths of the images plus a fifth of noise, so that no region is blank."""
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    return 0.8 * images + 0.2 * noise.to(images)


def hash_images(images: Images) -> str:
    """Return one hash of the shape and the values in float32."""
    digest = hashlib.sha256(str(tuple(images.shape)).encode())
    digest.update(images.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
