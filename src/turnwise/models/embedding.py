"""One vector per image from any backbone: pooled outputs, tokens or maps.

A backbone may return a tensor, an output of Hugging Face (`last_hidden_state`, `pooler_output`) or
have timm's `forward_features` and `forward_head`.  `Embedding` turns all of them into a model with
`num_classes = 0`, which `orbit` makes invariant.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.groups import PlanarGroup
from turnwise.models.contract import TRIVIAL, ImageModel, Model
from turnwise.models.pooled import POOLS, pool_output

Images = Float[Tensor, "batch channel row col"]


class Embedding(ImageModel):
    """The vector that a backbone makes of an image.

    Args:
        model: the backbone.
        pool: "auto", or "cls", "mean" or "pooler" for a backbone that returns tokens.
        preprocess: from images in [0, 1] to what the backbone takes; None is the backbone's own.
    """

    def __init__(
        self, model: nn.Module, pool: str = "auto", preprocess: Callable[..., Tensor] | None = None
    ) -> None:
        super().__init__()
        require_known(pool, POOLS, "pooling")
        own = getattr(model, "preprocess", None)
        self.model, self.pooling, self.head, self.num_classes = model, pool, nn.Identity(), 0
        self.prepare = preprocess or own or nn.Identity()
        self.training = model.training

    @property
    def group(self) -> PlanarGroup:  # type: ignore[override]
        found = getattr(self.model, "group", None)
        return found if isinstance(found, PlanarGroup) else TRIVIAL

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """The width of the vectors; 0 if the backbone does not state it."""
        config = getattr(self.model, "config", None)
        sizes = [getattr(self.model, "num_features", None), getattr(config, "hidden_size", None)]
        return next((size for size in sizes if isinstance(size, int)), 0)

    @property
    def fill(self) -> str:
        """The fill mode that the backbone was trained with; empty if it does not state it."""
        return str(getattr(self.model, "fill", ""))

    def preprocess(self, images: Images) -> Images:  # type: ignore[override]
        return self.prepare(images)

    def exact_size(self, size: int) -> tuple[int, ...]:
        inner = getattr(self.model, "exact_size", None)
        return (size,) if inner is None else inner(size)

    def forward_features(self, images: Images) -> Float[Tensor, "batch width"]:
        vectors = pool_output(self._run(images), self.pooling, getattr(self.model, "prefix", None))
        require(
            vectors.ndim == 2 and len(vectors) == len(images),
            f"a {type(self.model).__name__} returns shape {tuple(vectors.shape)} for {len(images)} "
            "images; an embedding is one vector for each image.",
        )
        return vectors

    def pool(self, features: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return features

    def _run(self, images: Images) -> Any:
        """Return the features before the classifier where the backbone separates them."""
        features = getattr(self.model, "forward_features", None)
        head = getattr(self.model, "forward_head", None)
        if features is None:
            return self.model(images)
        found = features(images)
        if self.pooling != "auto" or head is None:
            return found
        return head(found, pre_logits=True)

    def extra_repr(self) -> str:
        return f"pool={self.pooling!r}"


def is_embedding(model: nn.Module) -> bool:
    """Return whether the output of a model is an embedding and not logits."""
    return isinstance(model, Model) and model.num_classes == 0
