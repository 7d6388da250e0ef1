"""The certificate: does the answer change when the picture moves, measured element by element?

Claimed, and tested to rounding error, is invariance under the elements of the group that map pixels
to pixels; other angles are measured beside it.  A measurement counts only if its controls speak: it
must condemn the same model when one quadrant is inverted before it, different pictures must get
different answers, and shuffled pixels must, too.
"""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import turnwise
from turnwise.checks import require
from turnwise.evaluation.predictions import device_of, equal_angles
from turnwise.geometry.warps import turn_image
from turnwise.groups import PlanarGroup, equivariance_errors
from turnwise.groups.law import TOLERANCE

VISIBLE = 1e-6  # a control must move the answer by more than this, relative to its size

Answer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ElementCheck:
    """One symmetry that maps pixels to pixels, and the relative error in two precisions."""

    element: int
    meaning: str
    float64: float
    float32: float

    @property
    def holds(self) -> bool:
        return self.float64 <= TOLERANCE[torch.float64] and self.float32 <= TOLERANCE[torch.float32]


@dataclass(frozen=True)
class AngleCheck:
    """One angle, measured: how far the answer moves, and how many decisions stay."""

    degrees: float
    change: float
    agreement: float


@dataclass(frozen=True)
class Control:
    """Something that must move the answer, and by how much it does."""

    name: str
    change: float

    @property
    def holds(self) -> bool:
        return self.change > VISIBLE


@dataclass(frozen=True)
class Certificate:
    target: str
    group: str
    exact_part: str
    pictures: str
    elements: tuple[ElementCheck, ...]
    angles: tuple[AngleCheck, ...]
    controls: tuple[Control, ...]
    weights_sha256: str
    versions: dict[str, str]
    date: str

    @property
    def claim(self) -> str:
        """What the verdict is about: the group, or as much of it as pixels have."""
        whole = self.exact_part == self.group
        return self.group if whole else f"{self.exact_part}, the exact part of {self.group}"

    @property
    def holds(self) -> bool:
        """Whether every exact element holds and every control speaks."""
        return all(e.holds for e in self.elements) and all(c.holds for c in self.controls)

    def plain(self) -> dict[str, Any]:
        """As nested plain values, for JSON."""
        return {"holds": self.holds, **asdict(self)}


def certify(
    model: nn.Module,
    group: PlanarGroup | str,
    images: Float[Tensor, "batch channel row col"],
    *,
    target: str = "model",
    pictures: str = "given pictures",
    angles: int = 24,
) -> Certificate:
    """Measure the invariance of a classifier on pictures in [0, 1]; the model is not changed.

    `target` and `pictures` say in words what was certified, on what.
    """
    group = PlanarGroup.named(group)
    require(
        group.exact_part().order > 1,
        f"{group.name} has no element but the identity that maps pixels to pixels, so there is "
        "nothing to certify; use C2, C4, D1, D2 or D4, or a group that contains one of them.",
    )
    images = images.to(device_of(model))
    double, single = _answers(model, torch.float64), _answers(model, torch.float32)
    exact = group.grid_elements()
    errors = zip(
        exact,
        equivariance_errors(double, group, images.double(), elements=exact),
        equivariance_errors(single, group, images.float(), elements=exact),
        strict=True,
    )
    return Certificate(
        target=target,
        group=group.name,
        exact_part=group.exact_part().name,
        pictures=f"{pictures}, {len(images)} of shape {tuple(images.shape[1:])}",
        elements=tuple(ElementCheck(g, meaning_of(group, g), *both) for g, *both in errors),
        angles=tuple(_angle(single, images.float(), a) for a in equal_angles(angles)),
        controls=_controls(double, group, images.double()),
        weights_sha256=_hash(model),
        versions={"turnwise": turnwise.__version__, "torch": str(torch.__version__)},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def meaning_of(group: PlanarGroup, g: int) -> str:
    """What an element does, in words."""
    degrees = 360 * (g % group.rotations) / group.rotations
    turn = f"turn by {degrees:g}°"
    if not group.mirrors(g):
        return turn if degrees else "nothing"
    return f"mirror, then {turn}" if degrees else "mirror left and right"


def _answers(model: nn.Module, precision: torch.dtype) -> Answer:
    """A copy of the model that answers pictures in [0, 1], in this precision, with dropout off."""
    prepared = copy.deepcopy(model).to(precision).eval()
    prepare = getattr(prepared, "preprocess", lambda images: images)
    return lambda images: prepared(prepare(images))


@torch.no_grad()
def _angle(answer: Answer, images: Tensor, degrees: float) -> AngleCheck:
    before, after = answer(images), answer(turn_image(images, degrees))
    change = float((after - before).abs().max() / before.abs().max())
    same = (after.argmax(-1) == before.argmax(-1)).double().mean()
    return AngleCheck(degrees, change, float(same))


@torch.no_grad()
def _controls(answer: Answer, group: PlanarGroup, images: Tensor) -> tuple[Control, ...]:
    """Three changes that no symmetry of the plane excuses."""
    before = answer(images)
    scale = before.abs().max()
    exact = group.grid_elements()
    condemned = max(
        equivariance_errors(lambda x: answer(_invert_quadrant(x)), group, images, elements=exact)
    )
    order = torch.randperm(images[0, 0].numel(), generator=torch.Generator().manual_seed(0))
    shuffled = images.flatten(2)[..., order.to(images.device)].view_as(images)
    return (
        Control("the measure sees an inverted quadrant", condemned),
        Control("other pictures, other answers", float((before - before[:1]).abs().max() / scale)),
        Control(
            "shuffled pixels, another answer",
            float((answer(shuffled) - before).abs().max() / scale),
        ),
    )


def _invert_quadrant(images: Tensor) -> Tensor:
    """1 − f in the upper left quarter, which no rotation and no mirror left and right respects."""
    rows, cols = images.shape[-2] // 2, images.shape[-1] // 2
    inverted = images.clone()
    inverted[..., :rows, :cols] = 1 - images[..., :rows, :cols]
    return inverted


def _hash(model: nn.Module) -> str:
    """One hash over the names and bytes of all weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
