"""Make any classifier invariant at the cost of one pass: rotate the image upright, then classify.

    h*(f) = argmax_h s(h⁻¹f),   Φ(f) = φ(h*⁻¹ f)

When g acts on f, the best element becomes g h*, and the view h*⁻¹f stays the same image.  That
holds only where the best element is clear.  An image that looks the same, or nearly so, under
several elements has no upright view; such images are classified by the whole orbit.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup
from turnwise.models.orbits import orbit

Images = Float[Tensor, "batch channel row col"]
Score = Callable[[Images], Float[Tensor, " batch"]]
DIRECTION = 0.4  # radians; on no reflection axis of any group, which are multiples of π / n


class Choice(NamedTuple):
    """The element that rotates each image upright, and whether it is clearly the best one."""

    element: Int64[Tensor, " batch"]
    clear: Bool[Tensor, " batch"]


def harmonic_score(images: Images) -> Float[Tensor, " batch"]:
    """Return ⟨f, w⟩ with w = Σ_k ρ cos(k(θ − α_k)), k = 1, 2, 3.

    Several harmonics with different axes: no rotation and no reflection leaves w unchanged, and an
    image without a centre of mass of its own still has a direction.
    """
    x, y = pixel_centres(*images.shape[-2:]).to(images.device).unbind(-1)
    radius, angle = (x.square() + y.square()).sqrt(), torch.atan2(y, x)  # ONNX has no hypot
    template = sum(torch.cos(k * (angle - DIRECTION * math.sqrt(k))) for k in (1, 2, 3)) * radius
    return (images.mean(dim=1) * template.to(images)).mean(dim=(-2, -1))


class Canonical(nn.Module):
    """A classifier that sees each image in its best view; where that is unclear, in all views.

    Symbols:  φ is `model`, inside `orbit`; s is `score`, any map from images to one number each.
              The best element is clear where its lead over the second is more than `margin` times
              the distance from best to worst.
    """

    def __init__(
        self,
        model: nn.Module,
        group: PlanarGroup,
        score: Score = harmonic_score,
        margin: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__()
        require(group.order > 1, f"{group.name} has one view only, and nothing to choose.")
        require(0 <= margin < 1, f"margin = {margin} must be from 0 to below 1.")
        self.orbit = orbit(model, group, **options)
        require(self.orbit.design.output == "class", 'a choice of view needs output = "class".')
        self.group, self.score, self.margin = group, score, margin

    def preprocess(self, images: Images) -> Images:
        return self.orbit.preprocess(images)

    def exact_size(self, size: int) -> tuple[int, ...]:
        return self.orbit.exact_size(size)

    def scores(self, images: Images) -> Float[Tensor, "batch group"]:
        """Return s(h⁻¹f) for every h: a function on the group that rotates with the image."""
        views = self._views(images)
        return self.score(views.flatten(0, 1)).view(views.shape[:2]).T

    def choose(self, images: Images) -> Choice:
        """Return the best element of each image, and whether it is clear."""
        ranked = self.scores(images).sort(dim=1, descending=True)
        lead = ranked.values[:, 0] - ranked.values[:, 1]
        return Choice(
            ranked.indices[:, 0],
            lead > self.margin * (ranked.values[:, 0] - ranked.values[:, -1]),
        )

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        element, clear = self.choose(images)
        upright = self._views(images)[element, torch.arange(images.shape[0], device=images.device)]
        if torch.compiler.is_compiling():  # a graph has no branches: every image takes both ways
            return torch.where(clear[:, None], self._logits(upright), self.orbit(images))
        if bool(clear.all()):
            return self._logits(upright)
        if not bool(clear.any()):
            return self.orbit(images)
        unclear = self.orbit(images[~clear])
        logits = unclear.new_empty(len(images), unclear.shape[1])
        logits[~clear] = unclear
        logits[clear] = self._logits(upright[clear])
        return logits

    def _views(self, images: Images) -> Float[Tensor, "group batch channel row col"]:
        self.orbit.views.require_fitting(images)
        outside = self.orbit.outside(images)
        views = self.orbit.sampler.views(images, range(self.group.order), outside)
        return views.unflatten(0, (self.group.order, -1))

    def _logits(self, upright: Images) -> Float[Tensor, "batch num_classes"]:
        return self.orbit.combine_one(self.orbit.output_of(upright))

    def extra_repr(self) -> str:
        return f"{self.group.name}, margin={self.margin}"


def canonical(
    model: nn.Module,
    group: str | PlanarGroup = "C4",
    score: Score = harmonic_score,
    margin: float = 0.05,
    **options: Any,
) -> Canonical:
    """Wrap any classifier so that it sees every image upright; `options` as for `orbit`."""
    return Canonical(model, PlanarGroup.named(group), score, margin, **options)
