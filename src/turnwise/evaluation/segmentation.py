"""Evaluate models of masks: overlap, boundaries and instances, upright and rotated.

Each score is the mean over the images in which it is defined:

    dice, iou      of masks: the mean over the classes of an image; of instances: the foreground
    boundary_f1    see `data.pixel_scores`
    ap50, ap75, ap at an IoU of 0.5, at 0.75, and the mean over 0.5, 0.55, …, 0.95
    pq             panoptic quality
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data import Examples, Target
from turnwise.data.instances import score_instances
from turnwise.data.masks import pixel_classes, rotate_masks
from turnwise.data.pixel_scores import boundary_f1, class_overlaps
from turnwise.evaluation.metrics import Interval
from turnwise.evaluation.transformations import equal_angles
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor

Masks = Shaped[Tensor, "image row col"]
Classes = Int64[Tensor, "image row col"]
PerImage = dict[str, Float64[Tensor, " image"]]
Transform = Callable[[Tensor], Tensor]
RESAMPLES = 1000


class View(NamedTuple):
    """The predictions for the images in one view: scores by image, and the class of each pixel."""

    scores: PerImage
    overlaps: dict[str, Float64[Tensor, "image class"]]
    classes: Classes


def evaluate_masks(
    model: nn.Module,
    examples: Examples,
    target: Target,
    group: PlanarGroup,
    *,
    fill: str = "reflect",
    angles: int = 24,
    batch_size: int = 32,
    progress: bool = False,
) -> dict[str, Any]:
    """Return all figures as plain values, ready for JSON.

    scores              upright, with 95 % intervals over resampled images
    classes             Dice and IoU of each class of pixels, over the images that have it
    subsets             the scores of each folder of the examples' names, such as a kind of image
    angles              Dice, and AP at 0.5 of instances, at each of `angles` over 360°
    orbit_scores        each score over the exact elements of the group: mean and minimum
    orbit_agreement     share of pixels with one class over the exact elements of the group
    rotation_agreement  share of pixels that keep their class when the image is rotated, the mean
                        over the angles
    """
    predictor, degrees = Predictor(model, batch_size=batch_size), equal_angles(angles)

    def view(images: Transform, masks: Transform) -> View:
        return _view(predictor, examples, target, images, masks)

    upright = view(_same, _same)
    elements, kept = {0: upright}, torch.ones_like(upright.classes, dtype=torch.bool)
    for g in _show(group.grid_elements()[1:], "group elements", progress):
        act, back = partial(act_on_image, group, g), partial(act_on_image, group, group.invert(g))
        elements[g] = view(act, act)
        kept &= back(elements[g].classes) == upright.classes
    known = {360 * g / group.rotations: g for g in elements if not group.is_reflection(g)}
    known = {} if fill == "disc" else known  # which shows less of the image
    rotated, shares = [upright], list[float]()
    for angle in _show(degrees[1:], "angles", progress):
        turn = partial(rotate_masks, degrees=angle, fill=fill)
        rotated.append(
            elements[known[angle]]
            if angle in known
            else view(partial(rotate_image, degrees=angle, fill=fill), turn)
        )
        expected = turn(upright.classes.to(torch.uint8)).long()
        shares.append(float((rotated[-1].classes == expected).double().mean()))
    main = "ap50" if target.kind == "instances" else "dice"
    return {
        "target": predictor.kind.named(tuple(target.names)).plain(),
        "images": len(examples),
        "group": group.name,
        "main_score": main,
        "scores": {name: asdict(_interval(values)) for name, values in upright.scores.items()},
        "classes": _by_class(upright, target.names),
        "subsets": _by_subset(upright.scores, examples.names),
        "angles": {
            "degrees": degrees, "fill": fill, "score": main,
            **{key: [_mean(v.scores[key]) for v in rotated] for key in {main: 0, "dice": 0}},
        },
        "orbit_scores": {
            name: _summary([_mean(v.scores[name]) for v in elements.values()])
            for name in upright.scores
        },
        "orbit_agreement": float(kept.double().mean()),
        "rotation_agreement": sum(shares) / len(shares) if shares else 1.0,
    }  # fmt: skip


def _view(
    predictor: Predictor, examples: Examples, target: Target, images: Transform, masks: Transform
) -> View:
    """Predict and score in batches, which bounds the memory."""
    parts, step = list[View](), predictor.batch_size
    for start in range(0, len(examples), step):
        found = predictor.probabilities(examples.images[start : start + step], images)
        true = masks(examples.targets[start : start + step])
        scores = score_instances if target.kind == "instances" else score_classes
        classes = found.argmax(dim=1)
        overlaps = class_overlaps(classes, pixel_classes(true), found.shape[1])
        parts.append(View(scores(found.to(predictor.device), true), overlaps, classes))
    scored, overlapping, classes_of = zip(*parts, strict=True)
    return View(_join(scored), _join(overlapping), torch.cat(classes_of))


def score_classes(probabilities: Float[Tensor, "image class row col"], masks: Masks) -> PerImage:
    """Return the scores of each image for masks of classes."""
    predicted, true = probabilities.argmax(dim=1).cpu(), pixel_classes(masks)
    overlaps = class_overlaps(predicted, true, probabilities.shape[1])
    means = {name: values.nanmean(dim=1) for name, values in overlaps.items()}
    return means | {"boundary_f1": boundary_f1(predicted, true)}


def _same(x: Tensor) -> Tensor:
    return x


def _join(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _mean(values: Float64[Tensor, " image"]) -> float:
    return float(values.nanmean())


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "least": min(values)}


def _interval(values: Float64[Tensor, " image"]) -> Interval:
    """Return the mean and the percentiles of the means of images drawn with replacement."""
    known = values[~values.isnan()]
    if not len(known):
        return Interval(torch.nan, torch.nan, torch.nan)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(known), (RESAMPLES, len(known)), generator=generator)
    low, high = known[drawn].mean(dim=1).quantile(known.new_tensor([0.025, 0.975])).tolist()
    return Interval(float(known.mean()), low, high)


def _by_class(view: View, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, **{key: _mean(values[:, c]) for key, values in view.overlaps.items()}}
        for c, name in enumerate(names)
    ]


def _by_subset(scores: PerImage, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the scores of the images of each folder; none if there is only one."""
    folders = [name.rpartition("/")[0] for name in names]
    if len(set(folders)) < 2:
        return {}

    def chosen(folder: str) -> Bool[Tensor, " image"]:
        return torch.tensor([f == folder for f in folders])

    return {
        folder: {
            "images": float(chosen(folder).sum()),
            **{key: _mean(values[chosen(folder)]) for key, values in scores.items()},
        }
        for folder in sorted(set(folders))
    }


def _show(items: Sequence[Any], title: str, progress: bool) -> "tqdm[Any]":
    return tqdm(items, desc=title, disable=not progress, leave=False)
