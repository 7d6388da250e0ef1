"""Any classifier, made exactly invariant: run it on every view of the picture and average.

    Φ(f) = 1/|G| Σ_h φ(h⁻¹f)

Turning f only reorders the views, so the mean cannot change, whatever φ is.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.checks import require_known
from turnwise.groups import PlanarGroup, act_on_image, require_grid_group

COMBINATIONS = ("mean",)

Images = Float[Tensor, "batch channel row col"]


class Orbit(nn.Module):
    """The mean of a classifier's answers over the orbit of the picture.

    Symbols:  φ is `model`; φ(h⁻¹f) is `forward_features(images)[:, h]`, a function on the group
              that turns into itself: F(h) becomes F(g⁻¹h) when the picture turns by g.
    """

    def __init__(self, model: nn.Module, group: PlanarGroup, combine: str) -> None:
        super().__init__()
        require_grid_group(group)
        require_known(combine, COMBINATIONS, "combination")
        self.model, self.group, self.combine = model, group, combine
        self.views = group.inverse().tolist()  # h⁻¹ for every h

    def preprocess(self, images: Images) -> Images:
        """What the classifier inside expects, or the pictures as they are if it does not say."""
        prepare = getattr(self.model, "preprocess", None)
        return images if prepare is None else prepare(images)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """The sizes that the classifier inside takes; the orbit itself is exact at every size."""
        inner = getattr(self.model, "exact_size", None)
        return (size,) if inner is None else inner(size)

    def forward_features(self, images: Images) -> Float[Tensor, "batch group num_classes"]:
        """The answers to all views, in one batch."""
        views = [act_on_image(self.group, view, images) for view in self.views]
        return self.model(torch.cat(views)).unflatten(0, (self.group.order, -1)).transpose(0, 1)

    def forward_head(
        self, answers: Float[Tensor, "batch group num_classes"]
    ) -> Float[Tensor, "batch num_classes"]:
        return answers.mean(dim=1)

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))

    def extra_repr(self) -> str:
        return f"{self.group.name}, combine={self.combine!r}"


def orbit(model: nn.Module, group: str | PlanarGroup = "C4", combine: str = "mean") -> Orbit:
    """Wrap any classifier (pictures in, logits out) so that `group` cannot change its answer."""
    return Orbit(model, PlanarGroup.named(group), combine)
