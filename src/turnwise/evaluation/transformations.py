"""Transformations of images (rotations, reflections, shifts), and predictions under them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from tqdm import tqdm

from turnwise.data.targets import TargetKind, make_kind
from turnwise.geometry.warps import fill_corners, keep_disc, rotate_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.predictor import Predictor, Transform

Images = Shaped[Tensor, "image channel row col"]
Predictions = Float[Tensor, "image *output"]
CONTROL_ANGLE = 45.0  # degrees; no rotation needs larger corners


@dataclass(frozen=True)
class Transformation:
    """A named function of images; its kind is "reflection", "shift" or "corners".

    `undo` moves the pixels of a map back to where they were in the image.
    """

    kind: str
    meaning: str
    apply: Transform
    undo: Transform | None = None


def describe_element(group: PlanarGroup, g: int) -> str:
    """Return what a group element does to an image, in words.

    >>> describe_element(PlanarGroup.named("D4"), 5)
    'flip left-right, then rotate by 90°'
    """
    degrees = 360 * (g % group.rotations) / group.rotations
    parts = ["flip left-right"] if group.is_reflection(g) else []
    parts += [f"rotate by {degrees:g}°"] if degrees else []
    return ", then ".join(parts) or "identity"


def corner_control(fill: str, degrees: float = CONTROL_ANGLE) -> Transformation:
    """Return the control of rotated scores: corners filled as by a rotation, nothing rotated."""
    meaning = f"corners filled as by {degrees:g}° ({fill}), not rotated"
    return Transformation("corners", meaning, partial(fill_corners, degrees=degrees, fill=fill))


def unclaimed_transformations(group: PlanarGroup, shifts: int) -> list[Transformation]:
    """Return flips, where the group has none, and shifts by 1 to `shifts` pixels, right and up."""
    d4 = PlanarGroup.named("D4")
    flips = [
        Transformation("reflection", "flip left-right", *[partial(act_on_image, d4, 4)] * 2),
        Transformation("reflection", "flip up-down", *[partial(act_on_image, d4, 6)] * 2),
    ]
    shifted = [
        Transformation(
            "shift",
            f"shift {'right' if right else 'up'} by {right or up}, {border}",
            partial(shift_images, right=right, up=up, circular=circular),
            partial(torch.roll, shifts=(up, -right), dims=(-2, -1)),
        )
        for steps in range(1, shifts + 1)
        for right, up in ((steps, 0), (0, steps))
        for circular, border in ((False, "zeros enter"), (True, "around the border"))
    ]
    return ([] if group.reflections else flips) + shifted


def shift_images(images: Images, *, right: int, up: int, circular: bool) -> Images:
    """Shift by whole pixels, 0 or more; zeros enter, or with `circular` the far side."""
    shifted = torch.roll(images, (-up, right), (-2, -1))
    if not circular:
        shifted[..., :right] = 0
        shifted[..., max(0, shifted.shape[-2] - up) :, :] = 0
    return shifted


def equal_angles(count: int) -> list[float]:
    """Return `count` angles from 0° on, equally spaced over 360°."""
    return [360.0 * k / count for k in range(count)]


def predict_over_angles(
    predictor: Predictor,
    images: Images,
    angles: Sequence[float],
    *,
    fill: str,
    known: Mapping[float, Predictions] | None = None,
    progress: bool = False,
) -> Float[Tensor, "angle image *output"]:
    """Return the predictions for every image rotated by every angle, in degrees.

    `fill` is the fill mode of the corners.  Angles that are `known` (see `by_angle`) are not
    predicted again.
    """
    found = dict(known or {})
    for angle in tqdm(angles, desc="rotating the images", disable=not progress, leave=False):
        if angle not in found:
            rotate = partial(rotate_image, degrees=angle, fill=fill)
            found[angle] = predictor.predictions(images, rotate)
    return torch.stack([found[angle] for angle in angles])


def predict_over_group(
    predictor: Predictor, group: PlanarGroup, images: Images, *, fill: str = "zeros"
) -> Float[Tensor, "element image *output"]:
    """Return the predictions under every group element that maps pixels to pixels."""
    return torch.stack(
        [
            predictor.predictions(images, partial(_act_and_fill, group, g, fill=fill))
            for g in group.grid_elements()
        ]
    )


def _act_and_fill(group: PlanarGroup, g: int, images: Images, *, fill: str) -> Images:
    """Act exactly; the fill mode "disc" shows only the inscribed disc of upright images, too."""
    acted = act_on_image(group, g, images)
    return keep_disc(acted) if fill == "disc" else acted


def by_angle(
    group: PlanarGroup, predicted: Float[Tensor, "element image *output"]
) -> dict[float, Predictions]:
    """Return the predictions of `predict_over_group` that are rotations, by degrees."""
    rows = enumerate(group.grid_elements())
    rotations = [(g, row) for row, g in rows if not group.is_reflection(g)]
    return {360.0 * g / group.rotations: predicted[row] for g, row in rotations}


def accuracy_by_view(
    probabilities: Float[Tensor, "view image class"], labels: Int64[Tensor, " image"]
) -> list[float]:
    """Return the accuracy in each view of the images."""
    return (probabilities.argmax(-1) == labels).double().mean(dim=1).tolist()


def agreement(
    predictions: Float[Tensor, "view image *output"], kind: TargetKind | None = None
) -> float:
    """Return the share of images whose decision, by default the class, is the same in all views."""
    kind = kind or make_kind("class")
    same = torch.stack([kind.agree(view, predictions[0]) for view in predictions])
    return float(same.all(dim=0).double().mean())
