"""The plain vision transformer: the baseline, without any symmetry of its own.

Paper:    Dosovitskiy et al. 2021, "An Image Is Worth 16x16 Words".
Departs:  mean over the tokens instead of a class token (Beyer et al. 2022, "Better plain ViT
          baselines for ImageNet-1k"); normalised queries and keys; sizes for small images.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import BACKENDS
from turnwise.geometry.sizes import output_size, require_exact_size
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.plain import PatchEmbedding, TransformerBlock
from turnwise.models.contract import ImageModel
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Tokens = Float[Tensor, "batch token width"]


@dataclass(frozen=True)
class ViTDesign(Options):
    """The options of the plain vision transformer."""

    patch: int = option(4, "side of a patch in pixels", at_least=1, at_most=1024)
    width: int = option(128, "channels of a token", at_least=1, at_most=16384)
    depth: int = option(6, "number of blocks", at_least=1, at_most=256)
    heads: int = option(4, "attention heads", at_least=1, at_most=1024)
    drop_path: float = option(
        0.0, "highest drop-path rate, reached in the last block", at_least=0, below=1,
        changes_output=False,
    )  # fmt: skip
    qk_norm: bool = option(
        True, "normalise queries and keys (RMSNorm), which keeps training in bfloat16 stable",
        absent=False,
    )  # fmt: skip
    backend: str = option(
        "auto", "implementation of attention", choices=BACKENDS, changes_output=False
    )


@register("vit", ViTDesign, "Plain vision transformer, the baseline without symmetry.")
class VisionTransformer(ImageModel):
    """Patches, learned absolute positions, blocks, mean over the tokens, a linear classifier."""

    def __init__(self, task: Task, design: ViTDesign) -> None:
        super().__init__()
        self.num_classes, self.num_features = task.num_classes, design.width
        self.image_size = task.image_size
        self.preprocess = Normalise(task.in_chans)
        self.patches = PatchEmbedding(task.in_chans, design.width, design.patch)
        what = f"patches of {design.patch} pixels"
        require_exact_size(task.image_size, self.patches.stages, what)
        side = output_size(task.image_size, self.patches.stages)
        assert side is not None
        self.position = nn.Parameter(torch.empty(side * side, design.width))
        rates = torch.linspace(0, design.drop_path, design.depth, device="cpu").tolist()
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(
                    design.width,
                    design.heads,
                    drop_path=rate,
                    backend=design.backend,
                    qk_norm=design.qk_norm,
                )
                for rate in rates
            )
        )
        self.norm = nn.LayerNorm(design.width)
        self.head = nn.Linear(design.width, task.num_classes) if task.num_classes else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise with Xavier weights as in the paper's code, and a small classifier."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.position, std=self.position.shape[-1] ** -0.5)
        if isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=0.02)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return the one size that the learned positions are for."""
        return (self.image_size,)

    def forward_features(self, images: Float[Tensor, "batch channel row col"]) -> Tokens:
        self.require_shape(images, self.image_size)
        tokens = self.patches(images) + self.position
        return self.norm(self.blocks(tokens.contiguous()))  # by token, as all that follows reads

    def pool(self, features: Tokens) -> Float[Tensor, "batch width"]:
        return features.mean(dim=1)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"position"}

    def position_maps(self) -> dict[str, Float[Tensor, "1 row col"]]:
        """Return some channels of the learned positions as images."""
        side = round(len(self.position) ** 0.5)
        maps = self.position.detach().cpu().T.unflatten(1, (side, side))
        return {f"channel {c}": maps[c][None] for c in range(min(6, len(maps)))}
