"""Compare the logits of a model before and after the images were transformed."""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.data.targets import TargetKind, make_kind
from turnwise.data.targets.masks import Masks
from turnwise.errors import InputError, require
from turnwise.groups.equivariance import ratio
from turnwise.inference.exported import FileModel
from turnwise.inference.loading import hash_weights as hash_weights
from turnwise.inference.predictor import PRECISIONS, Predictor, Transform
from turnwise.models.registry import config_of
from turnwise.options import to_plain

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


def most_probable(kind: TargetKind, outputs: Tensor) -> list[int]:
    """Return the most probable class or label of each image, or of most of its pixels; 0 for
    numbers."""
    predictions = kind.predict(outputs)
    if predictions.ndim > 2:
        return predictions.argmax(1).flatten(1).mode(dim=1).values.tolist()
    return predictions.argmax(1).tolist() if kind.has_probabilities else [0] * len(predictions)


def describe_meaning(model: nn.Module) -> dict[str, Any]:
    """Return what the weights mean: options, class names, preprocessing, or the code of a module.

    The hash of the weights does not cover it: with other class names, or another combination of
    views, the same weights make another model.
    """
    if isinstance(model, FileModel):
        return {"preprocess": _structure(model.preprocess)}
    meaning: dict[str, Any] = {"classes": list(getattr(model, "classes", ()))}
    meaning["target"] = to_plain(getattr(model, "target", None))
    try:
        config = config_of(model)
    except InputError:  # not made by name
        return meaning | {"structure": _structure(model)}
    preprocess = _structure(getattr(model, "preprocess", None))
    return meaning | {
        "name": config.name, "options": to_plain(dict(config.options)), "preprocess": preprocess
    }  # fmt: skip


def _structure(module: object) -> str:
    """Return the printed structure of a module without addresses, and its hash if it is long."""
    kind = type(module)
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{kind.__module__}.{kind.__qualname__}: {module!r}")
    return text if len(text) < 300 else f"{text[:80]} …, sha256 {_sha256(text)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_images(images: Images) -> str:
    """Return one hash of the shape and the values in float32."""
    digest = hashlib.sha256(str(tuple(images.shape)).encode())
    digest.update(images.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
