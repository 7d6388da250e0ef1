"""From a classifier and pictures to a certificate."""

import platform
from datetime import UTC, datetime

import torch
from jaxtyping import Float
from torch import Tensor, nn

import turnwise
from turnwise.errors import require
from turnwise.evaluation.certificate.certificate import Certificate
from turnwise.evaluation.certificate.controls import measure_controls
from turnwise.evaluation.certificate.layers import find_entry, trace_layers
from turnwise.evaluation.certificate.measurement import Measurement, Scope
from turnwise.evaluation.certificate.scores import hash_images, hash_weights
from turnwise.groups import PlanarGroup
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE


def certify(
    model: nn.Module,
    group: PlanarGroup | str,
    images: Float[Tensor, "batch channel row col"],
    *,
    target: str = "model",
    pictures: str = "given pictures",
    angles: int = 24,
    scope: Scope | None = None,
    original: tuple[str, nn.Module] | None = None,
) -> Certificate:
    """Measure the invariance of a classifier on pictures in [0, 1]; the model is not changed.

    `target` and `pictures` say in words what was certified, on what; `scope` is what else to
    measure; `original` is name and model that a file was exported from, whose answers it must give.
    """
    group, scope = PlanarGroup.named(group), scope or Scope()
    require(
        group.exact_subgroup().order > 1,
        f"{group.name} has no element but the identity that maps pixels to pixels, so there is "
        "nothing to certify; use C2, C4, D1, D2 or D4, or a group that contains one of them.",
    )
    require(
        len(images) >= 2,
        f"a certificate needs 2 pictures or more, to see that other pictures have other answers; "
        f"got {len(images)}.",
    )
    measure = Measurement(model, group, images, scope)
    elements, turned, moves = measure.elements(), measure.angles(angles), measure.moves()
    layers = trace_layers(measure.finest, group, images) if scope.layers else ()
    limit = TOLERANCE.get(measure.finest.precision, COARSE_TOLERANCE)
    return Certificate(
        target=target,
        group=group.name,
        exact_part=group.exact_subgroup().name,
        pictures=f"{pictures}, {len(images)} of shape {tuple(images.shape[1:])}",
        elements=elements,
        angles=turned,
        controls=measure_controls(measure.finest, group, images, measure.finest_before),
        weights_sha256=hash_weights(model),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        moves=moves,
        sizes=tuple(measure.size(side) for side in scope.sizes),
        worst=measure.worst(),
        layers=layers,
        entry=find_entry(layers, limit),
        likeness=None if original is None else measure.likeness(*original),
        data_sha256=hash_images(images),
    )


def versions() -> dict[str, str]:
    """What the figures were made with."""
    return {
        "turnwise": turnwise.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
