"""Two plain convolutional baselines for small images, without any symmetry.

`small_alexnet` has the layers and the 2.5 million parameters of the baseline that the Performers
were compared with; `small_vgg` has the 13 convolutions of VGG-16 at a quarter of its widths and one
linear layer for its three: 0.9 million parameters instead of 134.

Paper:    Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural Networks";
          Simonyan & Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image
          Recognition"; chosen as baselines by Horn et al. 2021.
Departs:  pools round up at the border, so that 28 pixels are enough; the mean over the pixels comes
          before the classifier; `small_vgg` has batch norms, and no dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.geometry.layouts import for_convolutions
from turnwise.geometry.sizes import Stage, exact_sizes
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import ImageModel
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

ALEXNET_STAGES = (Stage(11, 4, 5), Stage(5, 1, 2), *[Stage(3, 1, 1)] * 3)
ALEXNET_POOLS = (0, 1, 4)  # after these convolutions
VGG_DEPTHS = (2, 2, 3, 3, 3)

Images = Float[Tensor, "batch channel row col"]


def require_widths(widths: tuple[int, ...], count: int) -> None:
    """Raise unless there is one width for each of `count` stages."""
    require(len(widths) == count, f"widths = {list(widths)} must have {count} entries.")


@dataclass(frozen=True)
class AlexNetDesign(Options):
    """The options of the small AlexNet."""

    widths: tuple[int, ...] = option(
        (64, 192, 384, 256, 256), "channels of the 5 convolutions", at_least=1, at_most=16384
    )
    dropout: float = option(
        0.0, "dropout rate before the classifier", at_least=0, below=1, changes_output=False
    )

    def validate(self) -> None:
        require_widths(self.widths, len(ALEXNET_STAGES))


@dataclass(frozen=True)
class VGGDesign(Options):
    """The options of the small VGG."""

    widths: tuple[int, ...] = option(
        (16, 32, 64, 128, 128), "channels of the 5 stages", at_least=1, at_most=16384
    )

    def validate(self) -> None:
        require_widths(self.widths, len(VGG_DEPTHS))


class SmallCNN(ImageModel):
    """Convolutions and pools, the mean over the pixels, a linear classifier."""

    def __init__(self, task: Task, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.num_classes, self.num_features = task.num_classes, width
        self.preprocess = Normalise(task.in_chans)
        self.features = nn.Sequential(*layers)
        self.head = self.make_head(task.num_classes)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):  # torch's default fades over 13 layers
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if isinstance(layer, nn.ReLU):
                layer.feature_layout = "image"  # type: ignore[assignment]

    def make_head(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return `size`: without a symmetry every size is exact."""
        return exact_sizes(size, ())

    def forward_features(self, images: Images) -> Float[Tensor, "batch width newrow newcol"]:
        self.preprocess.require_channels(images)
        return self.features(for_convolutions(images, self.training))

    def pool(self, features: Float[Tensor, "batch width row col"]) -> Float[Tensor, "batch width"]:
        return features.mean(dim=(2, 3))


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(2, ceil_mode=True)


@register("small_alexnet", AlexNetDesign, "AlexNet for small images, a plain baseline.")
def small_alexnet(task: Task, design: AlexNetDesign) -> SmallCNN:
    layers: list[nn.Module] = []
    sizes = pairwise((task.in_chans, *design.widths))
    for number, ((old, width), stage) in enumerate(zip(sizes, ALEXNET_STAGES, strict=True)):
        layers += [nn.Conv2d(old, width, *stage), nn.ReLU()]
        layers += [_pool()] if number in ALEXNET_POOLS else []
    if design.dropout:
        layers.append(nn.Dropout(design.dropout))
    return SmallCNN(task, layers, design.widths[-1])


@register("small_vgg", VGGDesign, "VGG-16 at a quarter of its widths, a plain baseline.")
def small_vgg(task: Task, design: VGGDesign) -> SmallCNN:
    return SmallCNN(task, list(_vgg_layers(task.in_chans, design.widths)), design.widths[-1])


def _vgg_layers(in_chans: int, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for (old, width), depth in zip(pairwise((in_chans, *widths)), VGG_DEPTHS, strict=True):
        for number in range(depth):
            yield nn.Conv2d(width if number else old, width, 3, padding=1, bias=False)
            yield nn.BatchNorm2d(width)
            yield nn.ReLU()
        yield _pool()
