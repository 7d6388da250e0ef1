"""Group-equivariant convolutional networks: the baseline before attention.

Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks": P4CNN, seven layers for
          rotated MNIST; and, as "pcam", the one before GE-ViT in WouterBant/GEVit-DL2-Project.
Symbols:  a layer is a convolution without padding, a norm, a rectifier, drop-out; the last one of
          "rotmnist" gives the classes' scores.  Then the mean over the pixels, the maximum over the
          poses.
Departs:  any group, with the width 20 / √|G| that gives P4CNN its 10 channels.  "pcam" is published
          with a wrong table for eight poses and is not equivariant; here it is.  Its norms are over
          the channels of each pose and pixel, not over the whole sample; and its read-out is linear
          after the pools, for one that flattens 6 × 6 pixels and knows where up is.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require, require_known
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size
from turnwise.layers.conv.conv import GroupConv, GroupPool, LiftingConv, MapNorm, maps_to_field
from turnwise.layers.normalise import Normalise
from turnwise.models.registry import Task, register

Field = Float[Tensor, "batch group row col channel"]


@dataclass(frozen=True)
class ConvLayout:
    """The kernels of the layers, after which of them the sides are halved, and what norms them."""

    width: float  # of a network without poses; it is divided by √|G|
    kernels: tuple[int, ...]
    pool_after: int
    norm: str
    last_is_head: bool

    @property
    def stages(self) -> tuple[Stage, ...]:
        convs = [Stage(kernel, 1) for kernel in self.kernels]
        if self.pool_after:
            convs.insert(self.pool_after, Stage(2, 2))
        return tuple(convs)


LAYOUTS = {
    "rotmnist": ConvLayout(20.0, (3, 3, 3, 3, 3, 3, 4), 2, "batch", last_is_head=True),
    "pcam": ConvLayout(8 * math.sqrt(8), (5,) * 8, 0, "layer", last_is_head=False),
}


@register("g_cnn")
class GroupConvNetwork(nn.Module):
    """G-CNN: group convolutions throughout, as Cohen & Welling's P4CNN for rotated MNIST."""

    def __init__(
        self, task: Task, *, data: str = "rotmnist", width: int = 0, dropout: float = 0.3
    ) -> None:
        super().__init__()
        require_known(data, LAYOUTS, "data")
        require(0 <= dropout < 1, f"dropout = {dropout} must be from 0 to below 1.")
        require(width >= 0, f"width = {width} must be positive, or 0: by the group.")
        layout = LAYOUTS[data]
        width = width or max(1, round(layout.width / math.sqrt(task.group.order)))
        self.group, self.stages = task.group, layout.stages
        require_exact_size(task.image_size, self.stages, f"the layers for {data}")
        self.preprocess = Normalise(task.in_chans)
        self.layers = _layers(task, layout, width, dropout)
        if layout.last_is_head:
            self.head: nn.Module = GroupConv(
                task.group, width, task.num_classes, layout.kernels[-1], padding=0
            )
        else:
            self.head = GroupConv(task.group, width, task.num_classes, 1)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """`size` if the network samples it symmetrically, else the nearest sizes that it does."""
        return exact_sizes(size, self.stages)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """A field on the group that turns with the picture, before the last layer."""
        self.preprocess.require_channels(images)
        for side in images.shape[2:]:
            require_exact_size(side, self.stages, "this network's layers")
        return maps_to_field(self.layers(images), self.group.order)

    def forward_head(self, field: Field) -> Float[Tensor, "batch num_classes"]:
        """Scores for each pose and pixel; over the pixels the mean, over the poses the maximum."""
        maps = field.permute(0, 1, 4, 2, 3).flatten(1, 2)
        scores = maps_to_field(self.head(maps), self.group.order).mean(dim=(2, 3))
        # not amax: its gradient compares with the maximum, which a compiled graph may compute again
        # in another precision, and 0 / 0 is not a number
        return scores.max(dim=1).values

    def forward(
        self, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _layers(task: Task, layout: ConvLayout, width: int, dropout: float) -> nn.Sequential:
    """All layers before the head."""
    kernels = layout.kernels[:-1] if layout.last_is_head else layout.kernels
    parts: list[nn.Module] = []
    for number, kernel in enumerate(kernels, start=1):
        if number == 1:
            parts.append(LiftingConv(task.group, task.in_chans, width, kernel, padding=0))
        else:
            parts.append(GroupConv(task.group, width, width, kernel, padding=0))
        parts += [MapNorm(task.group, width, layout.norm), nn.ReLU()]
        if number == layout.pool_after:
            parts.append(GroupPool("max", 2))
        parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts)
