"""ResNet-50, the deeper convolutional baseline, and its twin that turns with the picture.

Paper:    He et al. 2016, "Deep Residual Learning for Image Recognition": bottleneck blocks.
Departs:  the stride is in the 3 × 3 convolution, as in most programs since, and not in the 1 × 1
          before it, which would leave three of four pixels unseen.  Stems as in models/resnet.py.
"""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.sizes import Stage, size_after
from turnwise.models.convolutions import ConvMaker, register_twins
from turnwise.models.registry import Task
from turnwise.models.resnet import HALVE, KEEP, SHORTCUT, ResNet, ResNetDesign

EXPANSION = 4  # channels that leave a block, for each that its middle has
POINT = Stage(1, 1, 0)
RESNET_50 = ResNetDesign(depths=(3, 4, 6, 3))


class BottleneckBlock(nn.Module):
    """relu(shortcut(x) + expand(look(reduce(x)))): 1 × 1, 3 × 3, 1 × 1, a norm after each."""

    def __init__(self, maker: ConvMaker, old: int, width: int, step: Stage, size: int) -> None:
        super().__init__()
        new, after = EXPANSION * width, size_after(size, step)
        self.reduce = _normed(maker, old, width, POINT, size)
        self.look = _normed(maker, width, width, step, size)
        self.expand = _normed(maker, width, new, POINT, after)
        self.shortcut: nn.Module = nn.Identity()
        if step.stride > 1 or old != new:
            self.shortcut = _normed(maker, old, new, SHORTCUT._replace(stride=step.stride), size)
        self.relu = nn.ReLU()

    def forward(
        self, maps: Float[Tensor, "batch width row col"]
    ) -> Float[Tensor, "batch new_width newrow newcol"]:
        inner = self.relu(self.look(self.relu(self.reduce(maps))))
        return self.relu(self.shortcut(maps) + self.expand(inner))


def _normed(maker: ConvMaker, old: int, width: int, stage: Stage, size: int) -> nn.Module:
    return nn.Sequential(maker.conv(old, width, stage, size, bias=False), nn.BatchNorm2d(width))


def bottleneck_resnet(task: Task, design: ResNetDesign) -> ResNet:
    """A ResNet of the same stem, strides and sizes, whose stages are of bottleneck blocks."""
    require(
        design.oriented == 0,
        f"oriented = {design.oriented} is not known to bottleneck blocks; set it to 0, or use "
        "roto_resnet18.",
    )
    network = ResNet(task, design)
    maker = ConvMaker(task.group, design.roto, design.reduce, design.algorithm)
    network.stages = nn.Sequential(*_stages(maker, design, _size_after_stem(task, design)))
    network.head = nn.Linear(EXPANSION * design.widths[-1], task.num_classes)
    network.reset_parameters()
    return network


def _size_after_stem(task: Task, design: ResNetDesign) -> int:
    if design.stem == "small":
        return size_after(task.image_size, KEEP)
    return size_after(size_after(task.image_size, Stage(7, 2, 3)), HALVE)


def _stages(maker: ConvMaker, design: ResNetDesign, size: int) -> Iterator[nn.Module]:
    """The first block of every stage but the first halves the sides."""
    old = design.widths[0]
    for number, (width, depth) in enumerate(zip(design.widths, design.depths, strict=True)):
        blocks = []
        for step in (HALVE if number else KEEP, *[KEEP] * (depth - 1)):
            blocks.append(BottleneckBlock(maker, old, width, step, size))
            old, size = EXPANSION * width, size_after(size, step)
        yield nn.Sequential(*blocks)


register_twins(
    "resnet50", RESNET_50, bottleneck_resnet, "ResNet-50, the deeper convolutional baseline."
)
