"""Two plain convolutional baselines for small pictures; they promise nothing about turns.

`small_alexnet` has the layers and the 2.5 million weights of the one that the Performers were held
against; `small_vgg` has the 13 convolutions of VGG-16 at a quarter of its widths and one linear
map for its three, 0.9 million weights for 134.  (The third baseline, ResNet-18, is `resnet18`.)

Paper:    Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural Networks";
          Simonyan & Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image
          Recognition"; chosen as baselines by Horn et al. 2021.
Departs:  pools take what is left at the border, so that 28 pixels are enough; the mean over the
          pixels stands before the read-out; `small_vgg` has batch norms, and no dropout.
"""

from collections.abc import Iterator
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_positive
from turnwise.geometry.sizes import Stage, exact_sizes
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.models.registry import Task, register

ALEXNET_STAGES = (Stage(11, 4, 5), Stage(5, 1, 2), *[Stage(3, 1, 1)] * 3)
ALEXNET_WIDTHS = (64, 192, 384, 256, 256)
ALEXNET_POOLS = (0, 1, 4)  # after these convolutions
VGG_DEPTHS = (2, 2, 3, 3, 3)
VGG_WIDTHS = (16, 32, 64, 128, 128)

Images = Float[Tensor, "batch channel row col"]


class SmallCnn(nn.Module):
    """Convolutions and pools, the mean over the pixels, a linear read-out."""

    def __init__(self, task: Task, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.group = PlanarGroup.named("C1")  # what it promises about turns: nothing
        self.preprocess = Normalise(task.in_chans)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width, task.num_classes)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):  # 13 layers of torch's default leave nothing to see
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Every size: without a promise all are right."""
        return exact_sizes(size, ())

    def forward_features(self, images: Images) -> Float[Tensor, "batch width newrow newcol"]:
        self.preprocess.require_channels(images)
        return self.features(images)

    def forward_head(
        self, maps: Float[Tensor, "batch width row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.head(maps.mean(dim=(2, 3)))

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(2, ceil_mode=True)


@register("small_alexnet")
def small_alexnet(
    task: Task, *, widths: tuple[int, ...] = ALEXNET_WIDTHS, dropout: float = 0.0
) -> SmallCnn:
    """AlexNet for small pictures: five convolutions, the plain baseline of the Performers."""
    given = _checked(widths, len(ALEXNET_STAGES))
    require(0 <= dropout < 1, f"dropout = {dropout} must be from 0 to below 1.")
    layers: list[nn.Module] = []
    sizes = pairwise((task.in_chans, *given))
    for number, ((old, width), stage) in enumerate(zip(sizes, ALEXNET_STAGES, strict=True)):
        layers += [nn.Conv2d(old, width, *stage), nn.ReLU()]
        layers += [_pool()] if number in ALEXNET_POOLS else []
    if dropout:
        layers.append(nn.Dropout(dropout))
    return SmallCnn(task, layers, given[-1])


@register("small_vgg")
def small_vgg(task: Task, *, widths: tuple[int, ...] = VGG_WIDTHS) -> SmallCnn:
    """VGG-16 in a quarter of its widths: 13 convolutions with batch norms, a plain baseline."""
    given = _checked(widths, len(VGG_DEPTHS))
    return SmallCnn(task, list(_vgg_layers(task.in_chans, given)), given[-1])


def _vgg_layers(in_chans: int, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for (old, width), depth in zip(pairwise((in_chans, *widths)), VGG_DEPTHS, strict=True):
        for number in range(depth):
            yield nn.Conv2d(width if number else old, width, 3, padding=1, bias=False)
            yield nn.BatchNorm2d(width)
            yield nn.ReLU()
        yield _pool()


def _checked(widths: tuple[int, ...], count: int) -> tuple[int, ...]:
    require(
        len(widths) == count, f"widths = {list(widths)} must have {count} entries, one for each."
    )
    require_positive(**{f"widths[{number}]": width for number, width in enumerate(widths)})
    return tuple(widths)
