"""Negative controls of a certificate: changes that no symmetry explains, which must be visible."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.evaluation.certificate.certificate import VISIBLE, Control
from turnwise.evaluation.certificate.comparison import logit_change, predict_logits
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE
from turnwise.inference.predictor import Predictor, Transform

Images = Float[Tensor, "image channel row col"]


def measure_controls(
    predictor: Predictor, group: PlanarGroup, images: Images, before: Tensor
) -> tuple[Control, ...]:
    """Measure three changes that no symmetry explains; `before` are the logits of `images`.

    In float32 rounding alone can reach 1e-6, so the threshold is higher there.
    """
    double = predictor.precision == torch.float64
    threshold = VISIBLE if double else TOLERANCE.get(predictor.precision, COARSE_TOLERANCE)
    inverted = predict_logits(predictor, images, invert_quadrant)

    def invert_after(act: Transform, x: Tensor) -> Tensor:
        return invert_quadrant(act(x))

    broken = max(
        logit_change(
            inverted,
            predict_logits(predictor, images, partial(invert_after, act), back),
            predictor.kind,
        )
        for act, back in (acting(group, g) for g in group.grid_elements())
    )
    order = torch.randperm(images[0, 0].numel(), generator=torch.Generator().manual_seed(0))

    def shuffle(x: Tensor) -> Tensor:
        return x.flatten(2)[..., order.to(x.device)].view_as(x)

    other = logit_change(before, before[:1].expand_as(before), predictor.kind)
    shuffled = logit_change(before, predict_logits(predictor, images, shuffle), predictor.kind)
    is_map = before.ndim > 2
    maps = _controls_of_maps(predictor, group, images, before, threshold) if is_map else ()
    return (
        Control("an inverted quadrant breaks the invariance", broken, threshold),
        Control("different images, different outputs", other, threshold),
        Control("shuffled pixels, another output", shuffled, threshold),
        *maps,
    )


def _controls_of_maps(
    predictor: Predictor, group: PlanarGroup, images: Images, before: Tensor, threshold: float
) -> tuple[Control, ...]:
    """Measure maps that are rotated the wrong way, and how far maps are from being constant."""
    g = next(g for g in group.grid_elements() if g)
    act, _ = acting(group, g)
    wrong = predict_logits(predictor, images, act, act)
    if group.invert(g) == g:  # its own inverse: the wrong way is not to go back
        wrong = predict_logits(predictor, images, act)
    same_shape = wrong.shape == before.shape  # else the maps differ altogether
    misplaced = logit_change(before, wrong, predictor.kind) if same_shape else 1.0
    flat = before.mean((-2, -1), keepdim=True).expand_as(before)
    return (
        Control("maps rotated the wrong way differ", misplaced, threshold),
        Control("maps are not constant", logit_change(before, flat, predictor.kind), threshold),
    )


def acting(group: PlanarGroup, g: int) -> tuple[Transform, Transform]:
    """Return the action of an element on images, and that of its inverse."""
    return partial(act_on_image, group, g), partial(act_on_image, group, group.invert(g))


def invert_quadrant(images: Images) -> Images:
    """Replace f by 1 − f in the upper left quarter, which no rotation and no flip preserves."""
    rows, cols = images.shape[-2] // 2, images.shape[-1] // 2
    inverted = images.clone()
    inverted[..., :rows, :cols] = 1 - images[..., :rows, :cols]
    return inverted
