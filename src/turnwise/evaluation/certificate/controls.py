"""Negative controls: changes that no symmetry excuses, and that must therefore move the answer."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.evaluation.certificate.scores import Answerer, score_change
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE

VISIBLE = 1e-6  # a control must move the answer by more than this, relative to its size

Images = Float[Tensor, "batch channel row col"]


@dataclass(frozen=True)
class Control:
    """Something that must move the answer by more than `visible`, and by how much it does."""

    name: str
    change: float
    visible: float = VISIBLE

    @property
    def holds(self) -> bool:
        return self.visible < self.change < math.inf


def measure_controls(
    answer: Answerer, group: PlanarGroup, images: Images, before: Tensor
) -> tuple[Control, ...]:
    """Three changes that no symmetry of the plane excuses; `before` are the answers to `images`.

    In float32 rounding alone can reach 1e-6, so that there they must move more.
    """
    double = answer.precision == torch.float64
    visible = VISIBLE if double else TOLERANCE.get(answer.precision, COARSE_TOLERANCE)
    inverted = answer(images, invert_quadrant)
    condemned = max(
        score_change(inverted, answer(images, partial(_move_then_invert, group, g)))
        for g in group.grid_elements()
    )
    order = torch.randperm(images[0, 0].numel(), generator=torch.Generator().manual_seed(0))
    shuffled = answer(images, partial(_shuffle, order))
    return (
        Control("the measure sees an inverted quadrant", condemned, visible),
        Control(
            "other pictures, other answers",
            score_change(before, before[:1].expand_as(before)),
            visible,
        ),
        Control("shuffled pixels, another answer", score_change(before, shuffled), visible),
    )


def invert_quadrant(images: Images) -> Images:
    """1 − f in the upper left quarter, which no rotation and no mirror left and right respects."""
    rows, cols = images.shape[-2] // 2, images.shape[-1] // 2
    inverted = images.clone()
    inverted[..., :rows, :cols] = 1 - images[..., :rows, :cols]
    return inverted


def _move_then_invert(group: PlanarGroup, g: int, images: Images) -> Tensor:
    return invert_quadrant(act_on_image(group, g, images))


def _shuffle(order: Tensor, images: Images) -> Images:
    return images.flatten(2)[..., order.to(images.device)].view_as(images)
