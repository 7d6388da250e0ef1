"""ResNet-18 and ResNet-50, the convolutional baselines, and their equivariant variants.

Paper:    He et al. 2016, "Deep Residual Learning for Image Recognition".
Departs:  stem "small" for small images, 3/1/1 without a pool, as in the paper's CIFAR-10 networks
          and in MedMNIST's baselines at 28 pixels.  In the roto_ variants all convolutions are
          RotoConvs, as in Roto-MetaFormer, or group convolutions in the first `oriented` stages.
          In bottleneck blocks the stride is in the 3 × 3 convolution, as in most programs since,
          not in the 1 × 1 before it, which would skip three of four pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.layouts import for_convolutions
from turnwise.geometry.sizes import Stage, exact_sizes, size_after
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import ImageModel
from turnwise.models.convolutions import ConvMaker, RotoDesign, register_both
from turnwise.models.registry import Task
from turnwise.options import option

STEMS = ("large", "small")
LARGE, KEEP, HALVE = Stage(7, 2, 3), Stage(3, 1, 1), Stage(3, 2, 1)
POINT, SHORTCUT = Stage(1, 1, 0), Stage(1, 2, 0)
EXPANSION = 4  # output channels of a bottleneck block for each channel of its middle

Images = Float[Tensor, "batch channel row col"]
Maps = Float[Tensor, "batch width *group row col"]  # with a group axis in oriented stages
NewMaps = Float[Tensor, "batch new_width *new_group new_row new_col"]


@dataclass(frozen=True)
class ResNetDesign(RotoDesign):
    """The options of the ResNets."""

    depths: tuple[int, ...] = option((2, 2, 2, 2), "blocks of each stage", at_least=1, at_most=256)
    widths: tuple[int, ...] = option(
        (64, 128, 256, 512), "channels of each stage", at_least=1, at_most=16384
    )
    stem: str = option(
        "large", "large: 7/2/3 and a pool, for 64 pixels and more; small: 3/1/1", choices=STEMS
    )
    dropout: float = option(
        0.0, "dropout rate before the classifier", at_least=0, below=1, changes_output=False
    )

    def validate(self) -> None:
        require(
            len(self.depths) == len(self.widths) > 0,
            f"depths = {self.depths} and widths = {self.widths} must have one entry per stage.",
        )
        self.require_oriented(self.depths)


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))."""

    feature_layout = "image"

    def __init__(
        self,
        maker: ConvMaker,
        old: int,
        width: int,
        step: Stage,
        size: int,
        oriented: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        before, after = oriented
        self.conv_in = maker.conv(old, width, step, size, bias=False, oriented=oriented)
        self.norm_in = maker.batch_norm(width, after)
        inner = size_after(size, step)
        self.conv_out = maker.conv(width, width, KEEP, inner, bias=False, oriented=(after, after))
        self.norm_out = maker.batch_norm(width, after)
        self.shortcut: nn.Module = nn.Identity()
        if step.stride > 1 or old != width or before != after:
            short = SHORTCUT._replace(stride=step.stride)
            conv = maker.conv(old, width, short, size, bias=False, oriented=oriented)
            self.shortcut = nn.Sequential(conv, maker.batch_norm(width, after))
        self.relu = nn.ReLU()
        if after:
            self.feature_layout = "regular"

    def forward(self, maps: Maps) -> NewMaps:
        inner = self.relu(self.norm_in(self.conv_in(maps)))
        return self.relu(self.shortcut(maps) + self.norm_out(self.conv_out(inner)))


class BottleneckBlock(nn.Module):
    """relu(shortcut(x) + expand(look(reduce(x)))): 1 × 1, 3 × 3, 1 × 1, a norm after each."""

    feature_layout = "image"

    def __init__(self, maker: ConvMaker, old: int, width: int, step: Stage, size: int) -> None:
        super().__init__()
        new, after = EXPANSION * width, size_after(size, step)
        self.reduce = _conv_norm(maker, old, width, POINT, size)
        self.look = _conv_norm(maker, width, width, step, size)
        self.expand = _conv_norm(maker, width, new, POINT, after)
        self.shortcut: nn.Module = nn.Identity()
        if step.stride > 1 or old != new:
            self.shortcut = _conv_norm(maker, old, new, SHORTCUT._replace(stride=step.stride), size)
        self.relu = nn.ReLU()

    def forward(self, maps: Maps) -> NewMaps:
        inner = self.relu(self.look(self.relu(self.reduce(maps))))
        return self.relu(self.shortcut(maps) + self.expand(inner))


def _conv_norm(maker: ConvMaker, old: int, width: int, stage: Stage, size: int) -> nn.Module:
    return nn.Sequential(maker.conv(old, width, stage, size, bias=False), nn.BatchNorm2d(width))


class ResNet(ImageModel):
    """Stem, stages of residual blocks, mean over the pixels, a linear classifier."""

    def __init__(self, task: Task, design: ResNetDesign) -> None:
        super().__init__()
        maker = ConvMaker.of(task.group, design)
        self.group, self.design, self.num_classes = maker.exact_group, design, task.num_classes
        self.num_features = design.widths[-1]
        self.preprocess = Normalise(task.in_chans)
        size, width = task.image_size, design.widths[0]
        first = LARGE if design.stem == "large" else KEEP
        oriented = design.oriented > 0
        conv = maker.conv(task.in_chans, width, first, size, bias=False, oriented=(False, oriented))
        stem = [conv, maker.batch_norm(width, oriented), nn.ReLU()]
        steps = [maker.sampling(first, size)]
        size = size_after(size, first)
        if design.stem == "large":
            stem.append(maker.max_pool(HALVE, size))
            steps.append(maker.sampling(HALVE, size))
            size = size_after(size, HALVE)
        self.stem = nn.Sequential(*stem)
        self.stages = nn.Sequential(*_stages(maker, design, size))
        for _ in design.depths[1:]:
            steps.append(maker.sampling(HALVE, size))
            size = size_after(size, HALVE)
        self.sampling = tuple(steps) if design.roto else ()  # without symmetry every size is exact
        self.dropout = nn.Dropout(design.dropout)
        self.head = self.make_head(task.num_classes)
        self.reset_parameters()

    def make_head(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def reset_parameters(self) -> None:
        """Initialise convolutions to keep the variance of gradients, as in the paper's code."""
        for parameter in self.parameters():
            if parameter.ndim == 4:
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")

    def exact_size(self, size: int) -> tuple[int, ...]:
        return exact_sizes(size, self.sampling)

    def forward_features(self, images: Images) -> NewMaps:
        """Return maps that rotate with the image if the network is equivariant."""
        self.require_images(images, "this network")
        return self.stages(self.stem(for_convolutions(images, self.training)))

    def pool(self, features: Maps) -> Float[Tensor, "batch width"]:
        return self.dropout(features.mean(dim=(2, 3)))


def _stages(maker: ConvMaker, design: ResNetDesign, size: int) -> Iterator[nn.Module]:
    """Yield the stages; the first block of every stage but the first halves the sides."""
    shapes = pairwise((design.widths[0], *design.widths))
    for number, ((old, width), depth) in enumerate(zip(shapes, design.depths, strict=True)):
        step = HALVE if number else KEEP
        after = number < design.oriented
        before = max(0, number - 1) < design.oriented  # of the stage before, or of the stem
        blocks = [ResidualBlock(maker, old, width, step, size, (before, after))]
        size, both = size_after(size, step), (after, after)
        blocks += [ResidualBlock(maker, width, width, KEEP, size, both) for _ in range(1, depth)]
        yield nn.Sequential(*blocks)


def bottleneck_resnet(task: Task, design: ResNetDesign) -> ResNet:
    """Build a ResNet with the same stem, strides and sizes, and stages of bottleneck blocks."""
    require(
        design.oriented == 0,
        f"oriented = {design.oriented} is not available for bottleneck blocks; set it to 0, or use "
        "roto_resnet18.",
    )
    network = ResNet(task, design)
    size = size_after(task.image_size, LARGE if design.stem == "large" else KEEP)
    size = size_after(size, HALVE) if design.stem == "large" else size
    maker = ConvMaker.of(task.group, design)
    network.stages = nn.Sequential(*_bottleneck_stages(maker, design, size))
    network.num_features = EXPANSION * design.widths[-1]
    network.head = network.make_head(task.num_classes)
    network.reset_parameters()
    return network


def _bottleneck_stages(maker: ConvMaker, design: ResNetDesign, size: int) -> Iterator[nn.Module]:
    old = design.widths[0]
    for number, (width, depth) in enumerate(zip(design.widths, design.depths, strict=True)):
        blocks = []
        for step in (HALVE if number else KEEP, *[KEEP] * (depth - 1)):
            blocks.append(BottleneckBlock(maker, old, width, step, size))
            old, size = EXPANSION * width, size_after(size, step)
        yield nn.Sequential(*blocks)


register_both("resnet18", ResNetDesign(), ResNet, "ResNet-18, the convolutional baseline.")
register_both(
    "resnet50",
    ResNetDesign(depths=(3, 4, 6, 3)),
    bottleneck_resnet,
    "ResNet-50, the deeper convolutional baseline.",
)
