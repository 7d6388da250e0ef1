"""The ways a picture is moved: what a group claims, and what is measured beside it.

Elements of the group that map pixels to pixels are claimed.  Measured, and not claimed, are other
angles (`rotate_image`), mirrors that the group does not have, and shifts: of a picture on paper,
with nothing where it came from, or of a picture that goes around the border.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from turnwise.groups import PlanarGroup, act_on_image

Images = Float[Tensor, "batch channel row col"]


@dataclass(frozen=True)
class NamedMove:
    """A way to move pictures, its kind ("mirror" or "shift") and what it does in words."""

    kind: str
    meaning: str
    apply: Callable[[Tensor], Tensor]


def describe_element(group: PlanarGroup, g: int) -> str:
    """What an element does, in words."""
    degrees = 360 * (g % group.rotations) / group.rotations
    turn = f"turn by {degrees:g}°"
    if not group.is_reflection(g):
        return turn if degrees else "nothing"
    return f"mirror, then {turn}" if degrees else "mirror left and right"


def unclaimed_moves(group: PlanarGroup, shifts: int) -> list[NamedMove]:
    """Mirrors, where the group has none, and shifts by 1 to `shifts` pixels, right and up."""
    d4 = PlanarGroup.named("D4")
    mirrors = [
        NamedMove("mirror", "mirror left and right", partial(act_on_image, d4, 4)),
        NamedMove("mirror", "mirror upside down", partial(act_on_image, d4, 6)),
    ]
    moved = [
        NamedMove(
            "shift",
            f"shift {'right' if right else 'up'} by {right or up}, {how}",
            partial(shift_images, right=right, up=up, around=around),
        )
        for steps in range(1, shifts + 1)
        for right, up in ((steps, 0), (0, steps))
        for around, how in ((False, "zeros enter"), (True, "around the border"))
    ]
    return ([] if group.reflections else mirrors) + moved


def shift_images(images: Images, *, right: int, up: int, around: bool) -> Images:
    """Whole pixels, 0 or more; what leaves comes back on the other side, or zeros enter there."""
    moved = torch.roll(images, (-up, right), (-2, -1))
    if not around:
        moved[..., :right] = 0
        moved[..., max(0, moved.shape[-2] - up) :, :] = 0
    return moved
