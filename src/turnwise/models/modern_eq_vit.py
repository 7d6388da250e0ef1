"""The two fast GE-ViTs of WouterBant/GEVit-DL2-Project, as its programs compute them.

They are here for their checkpoints; `patch_ge_vit` and `hybrid_ge_vit` are ours to train.

Paper:    WouterBant/GEVit-DL2-Project, "modern equivariant ViT" (--modern_vit, --modern_vit_w_cnn).
Symbols:  stem "patches": the mean over D4 of a linear map of each patch, and a norm.  "g_cnn":
          eight convolutions whose channels are the filters of a G-CNN, rotated and interpolated;
          each is normalised over the whole image; then the maximum over the group and over areas
          of the image, which leaves 6 × 6.  GE-ViT with C4 follows.
Departs:  the filters of the G-CNN are stored as they are used, after interpolation.  It has a wrong
          table for its eight elements, so the stem "g_cnn" is exact under no group.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.sizes import nearest_sizes
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.gsa.published import GEVIT_2023
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import TRIVIAL, small_linear
from turnwise.models.gsa import (
    AttentionDesign,
    GroupAttentionNetwork,
    GSADesign,
    Layout,
    PooledLogits,
)
from turnwise.models.registry import Task, register
from turnwise.options import option

D4 = PlanarGroup(4, reflections=True)
STEMS = ("patches", "g_cnn")
KERNEL, CONVS, CHANNELS, SIDE = 5, 8, 8, 6  # of the stem "g_cnn"
CUT = CONVS * (KERNEL - 1)  # pixels that its convolutions take from each side of the image

Images = Float[Tensor, "batch in_chans rows cols"]
Maps = Float[Tensor, "batch width newrow newcol"]
Field = Float[Tensor, "batch group row col channel"]


@dataclass(frozen=True)
class ModernDesign(AttentionDesign):
    """The options of the published GE-ViTs on fewer tokens."""

    stem: str = option("patches", "what comes before GE-ViT", choices=STEMS)
    patch: int = option(2, "side of a patch; published 3 to 16", at_least=1, at_most=1024)
    embedding: int = option(128, "channels of a patch", at_least=1, at_most=16384)
    width: int = option(20, "channels per group element", at_least=6, at_most=16384)
    window: int = option(3, "side of the neighbourhood", at_least=0, at_most=16384)


@dataclass(frozen=True)
class _InnerDesign(GSADesign):
    """GE-ViT with the crops and pools of both programs."""

    pool_last: bool = False

    def layout(self, image_size: int) -> Layout:
        widths = ((self.width,) * 2, (self.width,) * 3)
        crops = ((1, 0), (0, 0, 0))
        return Layout(self.width, widths, crops, pool_last=self.pool_last, norm_between=True)


class MeanPatches(nn.Module):
    """A linear map of the mean of each patch over D4, and a norm; one token per patch.

    The mean of a linear map is the linear map of the mean, at an eighth of the cost.
    """

    def __init__(self, in_chans: int, width: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(in_chans * patch**2, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Images) -> Maps:
        rows, cols = (side // self.patch for side in images.shape[2:])
        split = images.unflatten(3, (cols, self.patch)).unflatten(2, (rows, self.patch))
        patches = split.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)  # (patch, channel, row, col)
        mean = torch.stack([act_on_image(D4, g, patches) for g in range(8)]).mean(dim=0)
        tokens = self.norm(self.project(mean.flatten(1)))
        return tokens.unflatten(0, (-1, rows, cols)).permute(0, 3, 1, 2)


class InterpolatedGCNN(nn.Module):
    """Convolutions with the interpolated filters of the published G-CNN."""

    def __init__(self, in_chans: int) -> None:
        super().__init__()
        width = CHANNELS * D4.order
        self.convs = nn.ModuleList(
            nn.Conv2d(in_chans if n == 0 else width, width, KERNEL, bias=False)
            for n in range(CONVS)
        )

    def forward(self, images: Images) -> Maps:
        maps = images
        for conv in self.convs:
            maps = conv(maps)
            maps = F.relu(F.layer_norm(maps, maps.shape[1:]))
        split = maps.unflatten(1, (CHANNELS, D4.order))
        return F.adaptive_max_pool3d(split, (1, SIDE, SIDE)).squeeze(2)


@register(
    "modern_eq_vit", ModernDesign, "Published GE-ViT on patches or behind a G-CNN, for checkpoints."
)
class ModernEquivariantViT(PooledLogits):
    """A stem, GE-ViT on its few tokens, and the pooling of the logits as published."""

    sums_pixels = True

    def __init__(self, task: Task, design: ModernDesign) -> None:
        super().__init__()
        by_patches = design.stem == "patches"
        # with reflections and rotations GE-ViT has a wrong table (layers/gsa/published.py)
        right = by_patches and (not task.group.reflections or task.group.rotations == 1)
        self.group = task.group if right else TRIVIAL
        self.patch, self.num_classes, self.num_features = (
            design.patch,
            task.num_classes,
            design.width,
        )
        self.preprocess = Normalise(task.in_chans)
        self.stem: nn.Module = (
            MeanPatches(task.in_chans, design.embedding, design.patch)
            if by_patches
            else InterpolatedGCNN(task.in_chans)
        )
        self.by_patches = by_patches
        inner = _InnerDesign(
            heads=design.heads, queries=design.queries, width=design.width, window=design.window,
            attention_dropout=design.attention_dropout, value_dropout=design.value_dropout,
            backend=design.backend, variant="gevit-2023", pool_last=not by_patches,
        )  # fmt: skip
        self.layout = inner.layout(0)
        require(
            task.image_size in (nearest := self.exact_size(task.image_size)),
            f"image_size = {task.image_size} does not fit the stem {design.stem!r}; "
            f"try {' or '.join(map(str, nearest))}.",
        )
        side, width = (
            (task.image_size // design.patch, design.embedding) if by_patches else (SIDE, CHANNELS)
        )
        self.network = GroupAttentionNetwork(Task(task.group, 0, width, side), inner, GEVIT_2023)
        self.head = self.make_head(task.num_classes)

    def make_head(self, num_classes: int) -> nn.Module:
        return small_linear(self.num_features, num_classes, bias=False)

    def exact_size(self, size: int) -> tuple[int, ...]:
        def fits(side: int) -> bool:
            if not self.by_patches:
                return side >= CUT + SIDE
            tokens, rest = divmod(side, self.patch)
            return rest == 0 and self.layout.final_side(tokens, lambda n: 2) is not None

        return nearest_sizes(size, fits)

    def forward_features(self, images: Images) -> Field:
        """Return the features on the group."""
        self.require_images(images, "this network's patches, crops and pools")
        return self.network.forward_features(self.stem(images))
