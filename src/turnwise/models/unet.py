"""U-Nets on the group: one output per pixel, which rotates with the image, exactly.

An encoder of group convolutions halves the sides from level to level; optional blocks of rotary
attention mix the coarsest level; a decoder doubles the sides again on the centred grid and joins
each level with the encoder's features of the same size.  Images of any even size are padded with
zeros, equally on both sides, and the output is cropped.  On the group C1 this is the plain U-Net,
layer by layer, and `unet` is just that.

Paper:    Ronneberger et al. 2015, "U-Net"; Cohen & Welling 2016 for the convolutions; the blocks
          are the flagship's (`models/turnwise_vit.py`).
Departs:  padded convolutions with batch norm; a 1 × 1 convolution before each upsampling by whole
          pixels, where the paper has transposed convolutions, which sample off-centre.
Symbols:  `widths` count the channels of all group elements together, as a plain network counts
          them; each element has width / |G| of them, and convolutions |G| times fewer weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_divisible
from turnwise.geometry.layouts import for_convolutions, regular_to_tokens, tokens_to_regular
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size
from turnwise.groups import PlanarGroup
from turnwise.layers.conv.conv import GroupConv2d, LiftingConv2d
from turnwise.layers.conv.stem import POOLS, GroupBatchNorm2d, GroupPool2d
from turnwise.layers.conv.upsample import UPSAMPLING, GroupUpsample2d, join_channels
from turnwise.layers.heads.fields import FIELDS, FieldHead
from turnwise.layers.normalise import Normalise
from turnwise.layers.transformer.block import GroupTokenBlock, TokenNorm
from turnwise.layers.transformer.rotary import GroupRotaryAttention
from turnwise.models.contract import TRIVIAL, ImageModel
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Images = Float[Tensor, "batch in_chans row col"]
Regular = Float[Tensor, "batch channel group row col"]
READOUTS = ("classes", *FIELDS)
WHAT = "a U-Net, which halves it"


@dataclass(frozen=True)
class UNetDesign(Options):
    """The options of a U-Net; its sizes are instances of this class."""

    widths: tuple[int, ...] = option(
        (32, 64, 128), "channels of each level, all group elements together; the sides are halved "
        "between levels", at_least=1, at_most=16384,
    )  # fmt: skip
    convs: int = option(2, "convolutions of each level, on either side", at_least=1, at_most=16)
    kernel: int = option(3, "side of the convolutions' filters, odd", at_least=1, at_most=31)
    blocks: int = option(
        0, "blocks of rotary attention on the group at the coarsest level", at_least=0, at_most=64
    )
    heads: int = option(1, "attention heads of each group element", at_least=1, at_most=1024)
    mlp_ratio: float = option(
        2.0, "hidden width of the blocks' MLPs relative to the width", above=0, at_most=64
    )
    halve: str = option("max", "pooling between the levels", choices=POOLS)
    upsample: str = option("nearest", "upsampling between the levels", choices=UPSAMPLING)
    readout: str = option(
        "classes", "classes: logits of each pixel; vector: a direction at each pixel; axis: a line "
        "at each pixel, as (cos 2φ, sin 2φ)", choices=READOUTS,
    )  # fmt: skip
    dropout: float = option(
        0.0, "dropout rate of whole channels at the coarsest level", at_least=0, below=1,
        changes_output=False,
    )  # fmt: skip

    def validate(self) -> None:
        require(bool(self.widths), "widths must list one level or more.")
        require(
            self.kernel % 2 == 1,
            f"kernel = {self.kernel} must be odd, so that convolutions keep the size; "
            f"try {self.kernel + 1}.",
        )


SIZES = {
    "nano": (UNetDesign(blocks=1), "for small images and tests"),
    "tiny": (UNetDesign(widths=(32, 64, 128, 256), blocks=1), "for a laptop"),
    "small": (UNetDesign(widths=(64, 128, 256, 512), blocks=2, heads=2), "for a GPU"),
}
PLAIN = UNetDesign(widths=(64, 128, 256, 512))


class UNet(ImageModel):
    """Encoder, blocks, decoder; the head takes the features of every pixel."""

    output = "map"
    norm: Any

    def __init__(self, task: Task, design: UNetDesign) -> None:
        super().__init__()
        group, self.design = task.group, design
        self.group, self.num_classes = group, task.num_classes
        for level, width in enumerate(design.widths):
            reason = f"level {level + 1} is split over {group.order} group elements"
            require_divisible(width, group.order, "widths", reason)
        if design.blocks:
            reason = f"{group.order} group elements with {design.heads} attention heads of pairs"
            require_divisible(design.widths[-1], 2 * group.order * design.heads, "widths", reason)
        widths = [width // group.order for width in design.widths]
        self.step = 2 ** (len(widths) - 1)  # padded sides are multiples of it
        require_exact_size(task.image_size, self.sampling, WHAT)
        self.preprocess = Normalise(task.in_chans)
        steps = list(pairwise(widths))
        firsts = [
            LiftingConv2d(group, task.in_chans, widths[0], design.kernel, bias=False),
            *(GroupConv2d(group, old, new, design.kernel, bias=False) for old, new in steps),
        ]
        self.encoder = nn.ModuleList(
            _level(design, group, first, width) for first, width in zip(firsts, widths, strict=True)
        )
        self.halve = GroupPool2d(group, 2, design.halve)
        self.blocks = nn.ModuleList(_blocks(design, group, widths[-1]))
        self.norm = TokenNorm(widths[-1]) if design.blocks else nn.Identity()
        self.dropout = nn.Dropout3d(design.dropout)
        up = steps[::-1]
        self.narrow = nn.ModuleList(GroupConv2d(group, coarse, fine, 1) for fine, coarse in up)
        self.upsample = GroupUpsample2d(group, design.upsample)
        self.decoder = nn.ModuleList(
            _level(
                design, group, GroupConv2d(group, 2 * fine, fine, design.kernel, bias=False), fine
            )
            for fine, _ in up
        )
        # the mean and the maximum over a group of one element would be the same
        self.num_features = widths[0] * (1 if group.order == 1 else 2)
        if design.readout != "classes":
            self.output, self.num_features = design.readout, widths[0]
            self._require_components(task.num_classes)
        self.head = self.make_head(task.num_classes)

    def make_head(self, num_classes: int) -> nn.Module:
        if num_classes == 0:
            return nn.Identity()
        if self.design.readout != "classes":
            return FieldHead(self.group, self.num_features, self.design.readout)
        head = nn.Conv2d(self.num_features, num_classes, 1)
        # not smaller: with Adam it would take hundreds of steps to grow
        nn.init.normal_(head.weight, std=self.num_features**-0.5)
        nn.init.zeros_(head.bias)  # type: ignore[arg-type]
        return head

    def reset_classifier(self, num_classes: int) -> None:
        self._require_components(num_classes)
        super().reset_classifier(num_classes)

    def _require_components(self, num_classes: int) -> None:
        require(
            self.design.readout == "classes" or num_classes in (0, 2),
            f"a field of readout = {self.design.readout} has 2 components, not num_classes = "
            f"{num_classes}; set it to 2.",
        )

    @property
    def sampling(self) -> tuple[Stage, ...]:
        """How images are sampled: an even side is padded equally on both sides, an odd is not."""
        return (Stage(2, 2),) if self.step > 1 else ()

    def exact_size(self, size: int) -> tuple[int, ...]:
        return exact_sizes(size, self.sampling)

    def forward_features(self, images: Images) -> Regular:
        """Return the features of every pixel on the group, which rotate with the image."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, WHAT)
        top, left = (-side % self.step // 2 for side in images.shape[2:])
        x = F.pad(images, (left, left, top, top)) if top or left else images
        x = for_convolutions(x, self.training)
        skips = list[Tensor]()
        for number, level in enumerate(self.encoder):
            x = level(self.halve(x) if number else x)
            skips.append(x)
        x = self.dropout(self._mix(skips.pop()))
        for narrow, level in zip(self.narrow, self.decoder, strict=True):
            x = level(join_channels([self.upsample(narrow(x)), skips.pop()]))
        rows, cols = images.shape[2:]
        return x[..., top : top + rows, left : left + cols]

    def _mix(self, x: Regular) -> Regular:
        """Apply the blocks of attention."""
        if not self.design.blocks:
            return x
        rows, cols = x.shape[3:]
        tokens = regular_to_tokens(x).to(self.norm.weight.dtype).contiguous()
        for block in self.blocks:
            tokens = block(tokens, rows, cols)
        return tokens_to_regular(self.norm(tokens), rows, cols)

    def pool(self, features: Regular) -> Tensor:
        """Return what the head takes: (batch, channel, row, col), or for fields the features."""
        if self.design.readout != "classes":
            return features
        mean = features.mean(dim=2)
        # not amax: see `MaxOverGroup`
        most = () if self.group.order == 1 else (features.max(dim=2).values,)
        return torch.cat([mean, *most], dim=1)


class Level(nn.Sequential):
    """Convolutions of one size, each with norm and activation."""

    feature_layout = "regular"


def _level(design: UNetDesign, group: PlanarGroup, first: nn.Module, width: int) -> Level:
    parts = list[nn.Module]()
    for number in range(design.convs):
        inner = number and GroupConv2d(group, width, width, design.kernel, bias=False)
        parts += [inner or first, GroupBatchNorm2d(group, width), nn.ReLU(inplace=True)]
    return Level(*parts)


def _blocks(design: UNetDesign, group: PlanarGroup, width: int) -> Iterator[GroupTokenBlock]:
    for _ in range(design.blocks):
        attention = GroupRotaryAttention(group, width, design.heads, qk_norm=True)
        yield GroupTokenBlock(group, width, attention, mlp_ratio=design.mlp_ratio)


def _plain(task: Task, design: UNetDesign) -> UNet:
    """Return the U-Net on the trivial group: ordinary convolutions, whatever the task's group."""
    return UNet(replace(task, group=TRIVIAL), design)


for _size, (_design, _what) in SIZES.items():
    _words = f"Turnwise U-Net, {_size}: one output per pixel that rotates with the image, {_what}."
    register(f"turnwise_unet_{_size}", _design, _words)(UNet)
register("unet", PLAIN, "Plain U-Net, of the width of turnwise_unet_small.")(_plain)
