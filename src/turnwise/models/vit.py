"""The plain vision transformer: the baseline, without any symmetry of its own.

Paper:    Dosovitskiy et al. 2021, "An Image Is Worth 16x16 Words".
Departs:  mean over the tokens instead of a class token (Beyer et al. 2022, "Better plain ViT
          baselines for ImageNet-1k"), unless pool="class"; normalised queries and keys; sizes for
          small images.  With a class token the last norm belongs to the head, as in
          WouterBant/GEVit-DL2-Project, so that an orbit combines tokens that are not normalised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.dense import BACKENDS
from turnwise.geometry.sizes import output_size, require_exact_size
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.plain import PatchEmbedding, TransformerBlock
from turnwise.models.contract import ImageModel, chosen_indices, small_linear
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

POOLS = ("mean", "class")
Indices = int | Sequence[int] | None

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
    mlp_ratio: float = option(4.0, "hidden channels of the MLP per channel", above=0, at_most=64)
    pool: str = option("mean", "mean: over the tokens; class: a class token", choices=POOLS)
    transposed: bool = option(False, "transpose images first, as networks of some programs need")
    backend: str = option(
        "auto", "implementation of attention", choices=BACKENDS, changes_output=False
    )


@register("vit", ViTDesign, "Plain vision transformer, the baseline without symmetry.")
class VisionTransformer(ImageModel):
    """Patches, learned absolute positions, blocks, a mean or a class token, a classifier."""

    def __init__(self, task: Task, design: ViTDesign) -> None:
        super().__init__()
        self.num_classes, self.num_features = task.num_classes, design.width
        self.image_size, self.has_class_token = task.image_size, design.pool == "class"
        self.preprocess = Normalise(task.in_chans, design.transposed)
        self.patches = PatchEmbedding(task.in_chans, design.width, design.patch)
        what = f"patches of {design.patch} pixels"
        require_exact_size(task.image_size, self.patches.stages, what)
        side = output_size(task.image_size, self.patches.stages)
        assert side is not None
        if self.has_class_token:
            self.class_token = nn.Parameter(torch.empty(design.width))
        self.position = nn.Parameter(torch.empty(self.has_class_token + side**2, design.width))
        rates = torch.linspace(0, design.drop_path, design.depth, device="cpu").tolist()
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(
                    design.width,
                    design.heads,
                    design.mlp_ratio,
                    drop_path=rate,
                    backend=design.backend,
                    qk_norm=design.qk_norm,
                )
                for rate in rates
            )
        )
        self.norm = nn.Identity() if self.has_class_token else nn.LayerNorm(design.width)
        self.head = nn.Linear(design.width, task.num_classes) if task.num_classes else nn.Identity()
        if self.has_class_token and task.num_classes:
            self.head = nn.Sequential(nn.LayerNorm(design.width), self.head)
        self.reset_parameters()

    def make_head(self, num_classes: int) -> nn.Module:
        linear = small_linear(self.num_features, num_classes)
        if not (self.has_class_token and num_classes):
            return linear
        return nn.Sequential(nn.LayerNorm(self.num_features), linear)

    def reset_parameters(self) -> None:
        """Initialise with Xavier weights as in the paper's code, and a small classifier."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.position, std=self.position.shape[-1] ** -0.5)
        if self.has_class_token:
            nn.init.normal_(self.class_token, std=0.02)
        for last in self.head.modules():
            if isinstance(last, nn.Linear):
                nn.init.normal_(last.weight, std=0.02)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return the one size that the learned positions are for."""
        return (self.image_size,)

    def forward_features(self, images: Float[Tensor, "batch channel row col"]) -> Tokens:
        self.require_shape(images, self.image_size)
        tokens = self.patches(images)
        if self.has_class_token:
            tokens = torch.cat([self.class_token.expand(len(tokens), 1, -1), tokens], dim=1)
        tokens = tokens + self.position
        return self.norm(self.blocks(tokens.contiguous()))  # by token, as all that follows reads

    def pool(self, features: Tokens) -> Float[Tensor, "batch width"]:
        return features[:, 0] if self.has_class_token else features.mean(dim=1)

    def forward_intermediates(
        self, images: Float[Tensor, "batch channel row col"], indices: Indices = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the final tokens, and the output of each layer as maps without the class token."""
        if not self.has_class_token:
            return super().forward_intermediates(images, indices)
        self.require_shape(images, self.image_size)
        maps, patches = list[Tensor](), self.patches(images)
        side = round(patches.shape[1] ** 0.5)
        maps.append(patches.mT.unflatten(2, (side, side)))
        tokens = torch.cat([self.class_token.expand(len(patches), 1, -1), patches], dim=1)
        tokens = tokens + self.position
        for block in self.blocks:
            tokens = block(tokens)
            maps.append(tokens[:, 1:].mT.unflatten(2, (side, side)))
        return tokens, [maps[i] for i in chosen_indices(indices, len(maps))]

    def no_weight_decay(self) -> set[str]:
        names = {"position", "class_token"} if self.has_class_token else {"position"}
        return super().no_weight_decay() | names

    def position_maps(self) -> dict[str, Float[Tensor, "1 row col"]]:
        """Return some channels of the learned positions as images."""
        pixels = self.position.detach().cpu()[int(self.has_class_token) :]
        side = round(len(pixels) ** 0.5)
        maps = pixels.T.unflatten(1, (side, side))
        return {f"channel {c}": maps[c][None] for c in range(min(6, len(maps)))}
