"""The plain vision transformer: the baseline that every table needs, and no symmetry of its own.

Paper:    Dosovitskiy et al. 2021, "An Image Is Worth 16x16 Words".
Departs:  mean over the tokens instead of a class token (Beyer et al. 2022, "Better plain ViT
          baselines for ImageNet-1k"); sizes for small pictures.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_positive
from turnwise.geometry.sizes import output_size, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.plain import PatchEmbedding, TransformerBlock
from turnwise.models.registry import Task, register


@register("vit")
class VisionTransformer(nn.Module):
    """Plain vision transformer, the baseline: it has no symmetry, whichever group is asked for.

    Patches, learned absolute positions, `depth` blocks, mean over the tokens, a linear read-out.
    """

    def __init__(
        self,
        task: Task,
        *,
        patch: int = 4,
        width: int = 128,
        depth: int = 6,
        heads: int = 4,
        drop_path: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        require_positive(patch=patch, width=width, depth=depth, heads=heads)
        require(0 <= drop_path < 1, f"drop_path = {drop_path} must be from 0 to below 1.")
        self.group = PlanarGroup.named("C1")  # what it promises: nothing
        self.image_size = task.image_size
        self.preprocess = Normalise(task.in_chans)
        self.patches = PatchEmbedding(task.in_chans, width, patch)
        require_exact_size(task.image_size, self.patches.stages, f"patches of {patch} pixels")
        side = output_size(task.image_size, self.patches.stages)
        assert side is not None
        self.position = nn.Parameter(torch.empty(side * side, width))
        rates = torch.linspace(0, drop_path, depth, device="cpu").tolist()
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, drop_path=rate, backend=backend) for rate in rates)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, task.num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier weights as in the paper's code; a small head: the first loss is a guess's."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.position, std=self.position.shape[-1] ** -0.5)
        nn.init.normal_(self.head.weight, std=0.02)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """The one size that its positions are for."""
        return (self.image_size,)

    def forward_features(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch token width"]:
        expected = (self.preprocess.mean.numel(), self.image_size, self.image_size)
        require(
            tuple(images.shape[1:]) == expected,
            f"the model takes pictures of shape {expected} (channel, row, col), "
            f"got {tuple(images.shape[1:])}.",
        )
        tokens = self.patches(images) + self.position
        return self.norm(self.blocks(tokens.contiguous()))  # by token, as all that follows reads

    def forward_head(
        self, features: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.head(features.mean(dim=1))

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))
