"""How invariant an embedding is, and what that costs, for every route to invariance.

Three measurements, over all elements of the group but the identity:

    error    max |v(g f) − v(f)| / max |v(f)|
    overlap  the share of the k nearest neighbours of v(f) among the images that are also the
             nearest neighbours of v(g f) among the rotated images (1 is invariant)
    recall   the share of rotated images whose nearest upright image is the image itself

Neighbours are by cosine.  The cost is counted: passes through the backbone for one image.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.groups.equivariance import TOLERANCE, ratio
from turnwise.inference.exported import FileModel
from turnwise.inference.predictor import Predictor
from turnwise.models.canonical import canonical
from turnwise.models.embedding import Embedding
from turnwise.models.orbits import orbit

NEIGHBOURS = 10
DIFFERENT = 1e-3  # vectors of different images must differ by more, relative to the largest
BACKBONE, CANONICAL = "backbone", "canonical"

Images = Float[Tensor, "image channel row col"]
Vectors = Float[Tensor, "image width"]


@dataclass(frozen=True)
class RouteCheck:
    """What one route measures; `passes` are forward passes of the backbone per image."""

    route: str
    passes: float
    error: float
    overlap: float
    recall: float
    distance: float
    precision: str

    @property
    def holds(self) -> bool:
        """Whether the error is rounding, and different images have different vectors."""
        limit = TOLERANCE[getattr(torch, self.precision)]
        return self.error <= limit and self.distance > DIFFERENT


def routes_of(model: nn.Module, group: PlanarGroup, combine: str = "mean") -> dict[str, nn.Module]:
    """Return the routes to invariance under `group`, by name, from a backbone without any."""
    routes: dict[str, nn.Module] = {BACKBONE: model}
    rotations = PlanarGroup(group.rotations)
    if group.reflections and rotations.order > 1:
        routes[orbit_route(rotations, combine)] = orbit(model, rotations, combine=combine)
    routes[CANONICAL] = canonical(model, group, combine=combine)
    routes[orbit_route(group, combine)] = orbit(model, group, combine=combine)
    return routes


def orbit_route(group: PlanarGroup, combine: str) -> str:
    return f"orbit {group.name}, {combine}"


def measure_routes(
    model: nn.Module,
    group: PlanarGroup | str,
    images: Images,
    *,
    combine: str = "mean",
    batch_size: int = 64,
) -> list[RouteCheck]:
    """Measure every route, the cheapest first.

    Args:
        model: a backbone whose output is one vector for each image.
        group: whose pixel-exact elements are applied.
        images: at least 3, in [0, 1].
        combine: how an orbit combines vectors.
        batch_size: images per forward pass.
    """
    group = PlanarGroup.named(group)
    require(len(images) > 2, f"{len(images)} images have no neighbours; give 3 or more.")
    require(
        group.exact_subgroup().order > 1,
        f"{group.name} has no element but the identity that maps pixels to pixels; try C4 or D4.",
    )
    has_file = any(isinstance(part, FileModel) for part in model.modules())
    precision = "float32" if has_file else "float64"
    routes = routes_of(model, group, combine).items()
    checks = [_measure(name, route, group, images, precision, batch_size) for name, route in routes]
    return sorted(checks, key=lambda check: check.passes)


def _measure(
    name: str, model: nn.Module, group: PlanarGroup, images: Images, precision: str, batch: int
) -> RouteCheck:
    wider = precision if precision == "float64" else None  # a file has its own precision
    predictor = Predictor(model, ("logits",), batch_size=batch, precision=wider)
    with count_images(predictor.model) as counted:
        before = predictor.logits(images)
    elements = [g for g in group.grid_elements() if g != 0]
    after = [predictor.logits(act_on_image(group, g, images)) for g in elements]
    largest = float(before.abs().max())
    return RouteCheck(
        route=name,
        passes=counted["images"] / len(images),
        error=max(ratio(float((v - before).abs().max()), largest) for v in after),
        overlap=sum(neighbour_overlap(before, v) for v in after) / len(after),
        recall=sum(self_recall(before, v) for v in after) / len(after),
        distance=ratio(float((before[1:] - before[:-1]).abs().amax(1).min()), largest),
        precision=precision,
    )


def nearest(queries: Vectors, index: Vectors, k: int, skip_self: bool) -> Int64[Tensor, "query k"]:
    """Return the k vectors of `index` with the largest cosine, for each query."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(index, dim=1).T
    if skip_self:
        similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(k, dim=1).indices


def neighbour_overlap(before: Vectors, after: Vectors, k: int = NEIGHBOURS) -> float:
    """Return the mean share of neighbours that both sets of vectors have in common."""
    k = min(k, len(before) - 1)
    one, other = (nearest(v, v, k, skip_self=True) for v in (before, after))
    return float((one[:, :, None] == other[:, None, :]).any(2).double().mean())


def self_recall(before: Vectors, after: Vectors) -> float:
    """Return the share of rows of `after` whose nearest row of `before` has the same number."""
    found = nearest(after, before, 1, skip_self=False)[:, 0]
    return float((found == torch.arange(len(before))).double().mean())


@contextmanager
def count_images(model: nn.Module) -> Iterator[dict[str, int]]:
    """Count the images that pass through the backbone inside a route."""
    counted = {"images": 0}
    inner = next((part for part in model.modules() if isinstance(part, Embedding)), model)

    def count(module: nn.Module, given: tuple[Any, ...]) -> None:
        counted["images"] += len(given[0])

    hook = inner.register_forward_pre_hook(count)
    try:
        yield counted
    finally:
        hook.remove()
