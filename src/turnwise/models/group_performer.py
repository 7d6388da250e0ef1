"""A Performer on the group: equivariant to rotations, reflections and circular shifts, linear cost.

A small stem lifts the image to the group, blocks of `layers.performer.steered` attention mix all
group elements of all tokens through one key-value state, and an invariant pooling precedes the
classifier.  By default convolutions and positions are circular: the logits do not change under C4
or D4, nor under circular shifts by whole tokens; moving an object over a blank background is one.

Paper:    none; after Horn et al. 2021, "Translational Equivariance in Kernelizable Attention".
Symbols:  `width` counts the channels of all group elements together; each has width / |G|.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.attention.linear import KERNELS
from turnwise.errors import InputError, require, require_divisible
from turnwise.geometry.layouts import (
    field_to_tokens,
    regular_to_tokens,
    tokens_to_field,
)
from turnwise.geometry.sizes import Stage, exact_sizes, output_size, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import CircularConv2d, GroupConv2d, LiftingConv2d
from turnwise.layers.conv.stem import GroupBatchNorm2d, GroupPool2d
from turnwise.layers.heads.pooling import COMBINE, invariant, pooled_width
from turnwise.layers.normalise import Normalise
from turnwise.layers.performer.steered import ATTENTIONS, SteeredAttention
from turnwise.layers.transformer.block import GroupTokenBlock, TokenNorm
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.models.contract import ImageModel
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Field = Float[Tensor, "batch group row col channel"]
BORDERS = ("wrap", "zero")
POSE_MAPS = ("group", "pose")


def _pose_linear(group: PlanarGroup, in_width: int, out_width: int) -> nn.Linear:
    """Return a linear map that does not mix group elements, so its cost is linear in |G|."""
    return nn.Linear(in_width, out_width)


class PerformerStem(nn.Module):
    """Convolutions on the group, each with norm and ReLU; pools after the first halve the image.

    kernels: odd, one for each convolution.  The side of a token is `patch` pixels, a power of 2.
    """

    feature_layout = "regular"

    def __init__(
        self,
        group: PlanarGroup,
        in_chans: int,
        width: int,
        kernels: tuple[int, ...],
        patch: int,
        wrap: bool,
    ) -> None:
        super().__init__()
        halvings = patch.bit_length() - 1
        require(
            patch == 2**halvings and halvings <= len(kernels) and len(kernels) > 0,
            f"patch = {patch} must be a power of 2, at most {2 ** len(kernels)}: each of the "
            f"stem's {len(kernels)} convolutions may halve the image once.",
        )
        layers, stages = list[nn.Module](), list[Stage]()
        for number, kernel in enumerate(kernels):
            layer: Any = GroupConv2d if number else LiftingConv2d
            conv = layer(group, width if number else in_chans, width, kernel, bias=False)
            layers.append(CircularConv2d(conv, kernel) if wrap else conv)
            layers += [GroupBatchNorm2d(group, width), nn.ReLU()]
            stages += conv.stages
            if number < halvings:
                layers.append(GroupPool2d(group, 2))
                stages.append(Stage(2, 2))
        self.layers, self.stages = nn.Sequential(*layers), tuple(stages)

    def forward(self, images: Float[Tensor, "batch channel row col"]) -> Tensor:
        return self.layers(images)


@dataclass(frozen=True)
class GroupPerformerDesign(Options):
    """The options of the group Performer."""

    width: int = option(128, "channels of all group elements together", at_least=1, at_most=16384)
    depth: int = option(4, "number of blocks", at_least=1, at_most=256)
    heads: int = option(2, "attention heads of each group element", at_least=1, at_most=1024)
    features: int = option(
        0, "features of queries and keys in each head; 0 takes the first multiple of 2 |G| from 32",
        at_least=0, at_most=16384,
    )  # fmt: skip
    attention: str = option(
        "linear", "linear, or softmax of the same queries and keys", choices=ATTENTIONS
    )
    kernel: str = option("elu", "feature map of linear attention", choices=KERNELS)
    frequencies: str = option(
        "torus", "torus: whole periods, for one image size and exact circular shifts (grid groups);"
        " free: learned", choices=("torus", "free"),
    )  # fmt: skip
    local: int = option(
        3, "kernel of the convolution beside attention, odd; 0 is none", at_least=0, at_most=255
    )
    border: str = option("wrap", "padding of convolutions", choices=BORDERS)
    pose_maps: str = option(
        "group", "group: linear maps mix group elements; pose: attention alone does",
        choices=POSE_MAPS,
    )  # fmt: skip
    kernels: tuple[int, ...] = option(
        (5, 3), "kernels of the stem, odd; the first are followed by pools until a token covers "
        "`patch` pixels", at_least=1, at_most=255,
    )  # fmt: skip
    patch: int = option(1, "side of a token in pixels, a power of 2", at_least=1, at_most=1024)
    mlp_ratio: float = option(
        2.0, "hidden width of the MLP relative to the width", above=0, at_most=64
    )
    pool: str = option("both", "pooling over the group", choices=COMBINE)
    drop_path: float = option(
        0.0, "highest drop-path rate, reached in the last block", at_least=0, below=1,
        changes_output=False,
    )  # fmt: skip
    dropout: float = option(0.0, "dropout rate of MLPs", at_least=0, below=1, changes_output=False)

    def validate(self) -> None:
        for what, kernels in (("kernels", self.kernels), ("local", (self.local or 1,))):
            odd = all(kernel % 2 == 1 for kernel in kernels)
            require(odd, f"{what} = {getattr(self, what)} must be odd, to keep the size.")

    @property
    def wrap(self) -> bool:
        return self.border == "wrap"


def _blocks(
    design: GroupPerformerDesign, group: PlanarGroup, width: int, side: int
) -> Iterator[nn.Module]:
    """Yield the blocks; the drop-path rate rises with the depth."""
    linear = GroupLinear if design.pose_maps == "group" else _pose_linear
    orbit = 2 * group.order
    for rate in torch.linspace(0, design.drop_path, design.depth, device="cpu").tolist():
        attention = SteeredAttention(
            group, width, design.heads, side, features=design.features or -(-32 // orbit) * orbit,
            attention=design.attention, kernel=design.kernel, frequencies=design.frequencies,
            local=design.local, wrap=design.wrap, linear=linear,
        )  # fmt: skip
        yield GroupTokenBlock(
            group, width, attention, mlp_ratio=design.mlp_ratio, linear=linear, drop_path=rate,
            dropout=design.dropout,
        )  # fmt: skip


@register(
    "group_performer",
    GroupPerformerDesign,
    "Performer on the group: linear attention, exact under rotations and reflections.",
)
class GroupPerformer(ImageModel):
    """Stem, blocks, norm, pooling, classifier."""

    def __init__(self, task: Task, design: GroupPerformerDesign) -> None:
        super().__init__()
        group, order = task.group, task.group.order
        why = f"it is split over {order} group elements and {design.heads} heads"
        require_divisible(design.width, order * design.heads, "width", why)
        width = design.width // order
        self.group, self.design, self.num_classes = group, design, task.num_classes
        # whole numbers of periods in one image size are none in another
        self.canvas = task.image_size if design.frequencies == "torus" else None
        self.preprocess = Normalise(task.in_chans)
        self.stem = PerformerStem(
            group, task.in_chans, width, design.kernels, design.patch, design.wrap
        )
        require_exact_size(task.image_size, self.stem.stages, "this Performer's stem")
        side = output_size(task.image_size, self.stem.stages)
        assert side is not None
        self.blocks = nn.ModuleList(_blocks(design, group, width, side))
        self.norm = TokenNorm(width)
        self.num_features = pooled_width(width, "mean", design.pool)
        self.head = self.make_head(task.num_classes)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return `size` if the stem samples it symmetrically, else the nearest such sizes.

        With frequencies="torus" it is the one size that the model was made for.
        """
        return (self.canvas,) if self.canvas else exact_sizes(size, self.stem.stages)

    def _require_size(self, rows: int, cols: int) -> None:
        if self.canvas and (rows, cols) != (self.canvas, self.canvas):
            raise InputError(  # not `require`: the message would be traced
                f"with frequencies='torus' this Performer takes images of {self.canvas} x "
                f"{self.canvas} pixels, got {rows} x {cols}; resample them, or build the model for "
                "their size or with frequencies='free'."
            )
        for size in (rows, cols):
            require_exact_size(size, self.stem.stages, "this Performer's stem")

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group, which rotate with the image."""
        self.preprocess.require_channels(images)
        self._require_size(*images.shape[2:])
        regular = self.stem(images)
        rows, cols = regular.shape[3:]
        tokens = regular_to_tokens(regular)
        for block in self.blocks:
            tokens = block(tokens, rows, cols)
        return tokens_to_field(self.norm(tokens), rows, cols)

    def pool(self, features: Field) -> Float[Tensor, "batch pooled"]:
        return invariant(field_to_tokens(features), "mean", self.design.pool)
