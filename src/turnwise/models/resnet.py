"""ResNet-18, the convolutional baseline, and its twin that turns with the picture.

Paper:    He et al. 2016, "Deep Residual Learning for Image Recognition".
Departs:  stem "small" for small pictures, 3/1/1 and no pool, as in its CIFAR-10 networks and in
          MedMNIST's baselines at 28 pixels.  In the twin all 20 convolutions are RotoConvs, as
          Roto-MetaFormer has it, or, in the first `oriented` stages, convolutions on the group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size, size_after
from turnwise.layers.normalise import Normalise
from turnwise.layers.roto.conv import ALGORITHMS, REDUCTIONS
from turnwise.models.convolutions import (
    ConvMaker,
    register_twins,
    require_oriented,
)
from turnwise.models.registry import Task

STEMS = ("large", "small")
WIDTHS = (64, 128, 256, 512)
KEEP, HALVE, SHORTCUT = Stage(3, 1, 1), Stage(3, 2, 1), Stage(1, 2, 0)

Images = Float[Tensor, "batch channel row col"]
Maps = Float[Tensor, "batch width row col"]
NewMaps = Float[Tensor, "batch new_width newrow newcol"]


@dataclass(frozen=True)
class ResNetDesign:
    """What a user may choose.

    depths:  blocks of each stage, and `widths` their channels
    stem:    "large", 7/2/3 and a pool, for 64 pixels and more; "small", 3/1/1, for less
    roto:    equivariant convolutions; `reduce` and `algorithm` are theirs (layers/roto_conv.py)
    oriented: how many of the first stages, and the stem with them, keep a channel for each pose
             (layers/oriented.py), within the same width and with |G| times fewer weights
    dropout: of the vector before the read-out
    """

    depths: tuple[int, ...] = (2, 2, 2, 2)
    widths: tuple[int, ...] = WIDTHS
    stem: str = "large"
    roto: bool = False
    reduce: str = "max"
    algorithm: str = "auto"
    oriented: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_known(self.stem, STEMS, "stem")
        require_known(self.reduce, REDUCTIONS, "reduction")
        require_known(self.algorithm, ALGORITHMS, "algorithm")
        require(
            len(self.depths) == len(self.widths) > 0 and min(*self.depths, *self.widths) > 0,
            f"depths = {self.depths} and widths = {self.widths} must have one entry for each "
            "stage, and be positive.",
        )
        require_oriented(self.oriented, self.depths, self.roto, self.reduce)
        require(0 <= self.dropout < 1, f"dropout = {self.dropout} must be 0 to below 1.")


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))."""

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
        kept = oriented[1]
        self.conv_in = maker.conv(old, width, step, size, bias=False, oriented=oriented)
        self.norm_in = maker.batch_norm(width, kept)
        size_inside = size_after(size, step)
        self.conv_out = maker.conv(width, width, KEEP, size_inside, False, (kept, kept))
        self.norm_out = maker.batch_norm(width, kept)
        self.shortcut: nn.Module = nn.Identity()
        if step.stride > 1 or old != width or oriented[0] != kept:
            short = SHORTCUT._replace(stride=step.stride)
            conv = maker.conv(old, width, short, size, bias=False, oriented=oriented)
            self.shortcut = nn.Sequential(conv, maker.batch_norm(width, kept))
        self.relu = nn.ReLU()

    def forward(self, maps: Maps) -> NewMaps:
        inner = self.relu(self.norm_in(self.conv_in(maps)))
        return self.relu(self.shortcut(maps) + self.norm_out(self.conv_out(inner)))


class ResNet(nn.Module):
    """Stem, stages of residual blocks, mean over the pixels, a linear read-out."""

    def __init__(self, task: Task, design: ResNetDesign) -> None:
        super().__init__()
        maker = ConvMaker(task.group, design.roto, design.reduce, design.algorithm)
        self.group, self.design = maker.promise, design
        self.preprocess = Normalise(task.in_chans)
        size, width = task.image_size, design.widths[0]
        first = Stage(7, 2, 3) if design.stem == "large" else KEEP
        kept = design.oriented > 0
        conv = maker.conv(task.in_chans, width, first, size, bias=False, oriented=(False, kept))
        stem = [conv, maker.batch_norm(width, kept), nn.ReLU()]
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
        self.sampling = tuple(steps) if design.roto else ()  # without a promise all sizes are right
        self.dropout = nn.Dropout(design.dropout)
        self.head = nn.Linear(design.widths[-1], task.num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Convolutions keep the spread of what goes back through them, as in the paper's code."""
        for parameter in self.parameters():
            if parameter.ndim == 4:
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""
        return exact_sizes(size, self.sampling)

    def forward_features(self, images: Images) -> NewMaps:
        """A map that turns with the picture, if the network is equivariant; "legacy" stays."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.sampling, "this network")
        return self.stages(self.stem(images))

    def forward_head(self, maps: Maps) -> Float[Tensor, "batch num_classes"]:
        return self.head(self.dropout(maps.mean(dim=(2, 3))))

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _stages(maker: ConvMaker, design: ResNetDesign, size: int) -> Iterator[nn.Module]:
    """The first block of every stage but the first halves the sides."""
    shapes = pairwise((design.widths[0], *design.widths))
    for number, ((old, width), depth) in enumerate(zip(shapes, design.depths, strict=True)):
        step = HALVE if number else KEEP
        kept = number < design.oriented
        before = max(0, number - 1) < design.oriented  # of the stage before, or of the stem
        blocks = [ResidualBlock(maker, old, width, step, size, (before, kept))]
        size, both = size_after(size, step), (kept, kept)
        blocks += [ResidualBlock(maker, width, width, KEEP, size, both) for _ in range(1, depth)]
        yield nn.Sequential(*blocks)


register_twins("resnet18", ResNetDesign(), ResNet, "ResNet-18, the convolutional baseline.")
