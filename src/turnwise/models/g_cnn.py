"""Group-equivariant convolutional networks: the baseline before attention.

Paper:    Cohen & Welling 2016, "Group Equivariant Convolutional Networks": P4CNN, seven layers for
          rotated MNIST; and, as "pcam", the one before GE-ViT in WouterBant/GEVit-DL2-Project.
Symbols:  a layer is a convolution without padding, a norm, ReLU and dropout; the last one of
          "rotmnist" gives the logits.  Then the mean over the pixels, the maximum over the group.
Departs:  any group, with the width 20 / √|G| that gives P4CNN its 10 channels.  "pcam" is published
          with a wrong table for eight group elements and is not equivariant; here it is.  Its norms
          are over the channels of each group element and pixel, not over the whole sample; and its
          classifier is linear after pooling, where the published one flattens 6 × 6 pixels and so
          is not invariant.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from turnwise.geometry.layouts import field_to_regular, for_convolutions, regular_to_field
from turnwise.geometry.sizes import Stage, exact_sizes, require_exact_size
from turnwise.layers.conv.conv import GroupConv2d, LiftingConv2d
from turnwise.layers.conv.stem import NORMS, GroupPool2d
from turnwise.layers.normalise import Normalise
from turnwise.models.contract import ImageModel
from turnwise.models.registry import Task, register
from turnwise.options import Options, option

Field = Float[Tensor, "batch group row col channel"]


@dataclass(frozen=True)
class ConvLayout:
    """The kernels of the layers, after which of them to pool, and which norm to use."""

    width: float  # of a network without a group axis; it is divided by √|G|
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


@dataclass(frozen=True)
class GCNNDesign(Options):
    """The options of the group convolutional network."""

    data: str = option("rotmnist", "the published layout to use", choices=LAYOUTS)
    width: int = option(
        0, "channels per group element; 0 chooses by the group order", at_least=0, at_most=16384
    )
    dropout: float = option(
        0.3, "dropout rate after each layer", at_least=0, below=1, changes_output=False
    )


@register("g_cnn", GCNNDesign, "G-CNN: group convolutions throughout, as P4CNN for rotated MNIST.")
class GroupConvNetwork(ImageModel):
    """Lifting convolution, group convolutions, and an invariant pooling of the logits."""

    def __init__(self, task: Task, design: GCNNDesign) -> None:
        super().__init__()
        layout, group = LAYOUTS[design.data], task.group
        width = design.width or max(1, round(layout.width / math.sqrt(group.order)))
        self.group, self.num_classes, self.num_features = group, task.num_classes, width
        self.stages, self.head_kernel = layout.stages, layout.kernels[-1] * layout.last_is_head
        require_exact_size(task.image_size, self.stages, f"the layers for {design.data}")
        self.preprocess = Normalise(task.in_chans)
        self.layers = _layers(task, layout, width, design.dropout)
        self.head = self.make_head(task.num_classes)

    def make_head(self, num_classes: int) -> nn.Module:
        if num_classes == 0:
            return nn.Identity()
        kernel, padding = (self.head_kernel, 0) if self.head_kernel else (1, None)
        return GroupConv2d(self.group, self.num_features, num_classes, kernel, padding=padding)

    def exact_size(self, size: int) -> tuple[int, ...]:
        return exact_sizes(size, self.stages)

    def forward_features(self, images: Float[Tensor, "batch in_chans rows cols"]) -> Field:
        """Return the features on the group before the last layer."""
        self.require_images(images, "this network's layers")
        return regular_to_field(self.layers(for_convolutions(images, self.training)))

    def pool(self, features: Field) -> Float[Tensor, "batch channel"]:
        """Return the mean over the pixels, then the maximum over the group."""
        # not amax: its gradient compares with the maximum, which a compiled graph may recompute in
        # another precision, and 0 / 0 is not a number
        return features.mean(dim=(2, 3)).max(dim=1).values

    def forward_head(
        self, features: Field, pre_logits: bool = False
    ) -> Float[Tensor, "batch num_classes"]:
        """Return the pooled logits of all group elements and pixels."""
        if pre_logits or self.num_classes == 0:
            return self.pool(features)
        return self.pool(regular_to_field(self.head(field_to_regular(features))))


def _layers(task: Task, layout: ConvLayout, width: int, dropout: float) -> nn.Sequential:
    """Return all layers before the classifier."""
    kernels = layout.kernels[:-1] if layout.last_is_head else layout.kernels
    parts: list[nn.Module] = []
    for number, kernel in enumerate(kernels, start=1):
        if number == 1:
            parts.append(LiftingConv2d(task.group, task.in_chans, width, kernel, padding=0))
        else:
            parts.append(GroupConv2d(task.group, width, width, kernel, padding=0))
        parts += [NORMS[layout.norm](task.group, width), nn.ReLU()]
        parts[-1].feature_layout = "regular"  # type: ignore[assignment]
        if number == layout.pool_after:
            parts.append(GroupPool2d(task.group, 2))
        parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts)
