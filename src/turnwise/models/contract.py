"""What every model offers, and the base class that provides most of it.

The names are timm's: `num_classes`, `num_features`, `forward_features`, `forward_head`,
`forward_intermediates`, `get_classifier`, `reset_classifier`, `no_weight_decay`.  Four more are
ours: `group` (the symmetry under which the model is exact), `preprocess` (from images in [0, 1] to
what the network takes) and `exact_size` (the image sizes at which the symmetry is exact).
`output` names what the model returns, and how that transforms with the image:

    class     (batch, class)             invariant
    map       (batch, class, row, col)   rotates with the image, as do the pooled features
    vector    (batch, 2, row, col)       directions, whose components rotate, too
    axis      (batch, 2, row, col)       lines, as (cos 2φ, sin 2φ)
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import InputError, require
from turnwise.geometry.layouts import to_field
from turnwise.geometry.sizes import advise_sizes
from turnwise.groups import PlanarGroup
from turnwise.layers.declarations import undecayed_parameters
from turnwise.layers.normalise import Normalise
from turnwise.models.pooled import pool_output

Images = Float[Tensor, "batch channel row col"]
TRIVIAL = PlanarGroup(1)
HEAD_NAMES = ("head", "fc", "classifier")
HEAD_HINT = 'name the layer that maps vectors to logits, as in orbit(model, "C4", head="fc")'


@dataclass(frozen=True)
class ModelConfig:
    """How to build a model again: `create_model(config.name, **config.options)`."""

    name: str
    options: Mapping[str, Any]


@runtime_checkable
class Model(Protocol):
    """The model contract; a test holds every registered model against it.

    A model with `num_classes=0` has no classifier and returns the pooled features, which are
    invariant wherever the logits are.
    """

    group: PlanarGroup
    num_classes: int
    num_features: int
    output: str

    def __call__(self, images: Images) -> Tensor: ...
    def preprocess(self, images: Images) -> Images: ...
    def exact_size(self, size: int) -> tuple[int, ...]: ...
    def forward_features(self, images: Images) -> Tensor: ...
    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor: ...
    def forward_intermediates(
        self, images: Images, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]: ...
    def get_classifier(self) -> nn.Module: ...
    def reset_classifier(self, num_classes: int) -> None: ...
    def no_weight_decay(self) -> set[str]: ...


class ImageModel(nn.Module, ABC):
    """Base class of the registered models.

    A subclass sets `group`, `num_classes`, `num_features`, `preprocess` and `head`, and defines
    `exact_size`, `forward_features` and `pool` (from features to what `head` takes).  Where the
    head comes before the pooling it overrides `forward_head`.
    """

    group: PlanarGroup = TRIVIAL
    output: str = "class"
    num_classes: int
    num_features: int
    preprocess: Normalise
    head: nn.Module
    config: ModelConfig
    classes: tuple[str, ...] = ()

    @abstractmethod
    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return `size` if the model is exact there, else the nearest sizes at which it is."""

    @abstractmethod
    def forward_features(self, images: Images) -> Tensor:
        """Return the features before pooling; they transform with the image."""

    @abstractmethod
    def pool(self, features: Tensor) -> Tensor:
        """Return what the classifier takes: a vector per image, or per pixel if `output` is a map.

        It is invariant under the group, or rotates with the image.
        """

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of features, or with `pre_logits` the pooled features."""
        pooled = self.pool(features)
        return pooled if pre_logits else self.head(pooled)

    def forward(self, images: Images) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self, images: Images, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the final features and those of inner layers, in the order of the network.

        Args:
            images: preprocessed images.
            indices: which layers: None for all, n for the last n, or a list of numbers.

        Returns:
            The output of `forward_features`, and a list of maps: (batch, channel, group, row, col)
            where a layer has features on the group, else (batch, channel, row, col).
        """
        found: list[Tensor] = []
        layers = feature_layers(self)
        hooks = [
            layer.register_forward_hook(_keep_features(found, self.group.order)) for layer in layers
        ]
        try:
            features = self.forward_features(images)
        finally:
            for hook in hooks:
                hook.remove()
        return features, [found[i] for i in chosen_indices(indices, len(found))]

    def get_classifier(self) -> nn.Module:
        """Return the layer that maps features to logits."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a fresh one for `num_classes`; 0 removes it."""
        require(num_classes >= 0, f"num_classes = {num_classes} must be at least 0.")
        like = next(self.parameters(), torch.zeros(()))
        self.head, self.num_classes = self.make_head(num_classes).to(like), num_classes
        self.forget_classes()

    def forget_classes(self) -> None:
        """Drop the names of the classes after the classifier was replaced; update `config`."""
        self.classes = ()
        config: ModelConfig | None = getattr(self, "config", None)
        if config is not None:
            options = {**config.options, "num_classes": self.num_classes}
            self.config = ModelConfig(config.name, options)

    def make_head(self, num_classes: int) -> nn.Module:
        """Return a fresh classifier, or `nn.Identity` for 0 classes."""
        return small_linear(self.num_features, num_classes)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters, positions above all, that weight decay must not touch."""
        return undecayed(self)

    def require_shape(self, images: Images, size: int) -> None:
        """Raise unless the images have the model's channels and sides of `size` pixels."""
        expected = (self.preprocess.mean.numel(), size, size)
        require(
            tuple(images.shape[1:]) == expected,
            f"the model takes images of shape {expected} (channel, row, col), "
            f"got {tuple(images.shape[1:])}.",
        )

    def require_images(self, images: Images, what: str) -> None:
        """Raise unless the images have the model's channels and a size at which it is exact."""
        self.preprocess.require_channels(images)
        for side in images.shape[-2:]:
            nearest = self.exact_size(side)
            require(
                side in nearest,
                f"image_size = {side} cannot be exact in {what} (a stage would sample it "
                f"off-centre); {advise_sizes(nearest)}.",
            )


def small_linear(in_features: int, num_classes: int, *, bias: bool = True) -> nn.Module:
    """Return a linear classifier with small weights, so that the first loss is that of a guess."""
    if num_classes == 0:
        return nn.Identity()
    head = nn.Linear(in_features, num_classes, bias=bias)
    nn.init.normal_(head.weight, std=0.02)
    if bias:
        nn.init.zeros_(head.bias)
    return head


def undecayed(model: nn.Module) -> set[str]:
    """Return the names of parameters that layers, and models inside `model`, exclude from decay.

    A layer declares names in an attribute `no_weight_decay`; a model returns them from a method.
    """
    names = set(undecayed_parameters(model))
    for prefix, module in model.named_modules():
        declared = getattr(module, "no_weight_decay", None)
        if module is not model and callable(declared):
            names |= {f"{prefix}.{name}" for name in declared()}
    return names & {name for name, _ in model.named_parameters()}


def feature_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that declare a `feature_layout` and are in no other such layer."""
    found, inside = [], ""
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if getattr(module, "feature_layout", ""):
            found.append(module)
            inside = f"{name}."
    return found


def chosen_indices(indices: int | Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers that `indices` names, as timm reads it."""
    if indices is None:
        return list(range(count))
    if isinstance(indices, int):
        require(0 < indices <= count, f"indices = {indices} must be from 1 to {count}.")
        return list(range(count - indices, count))
    for index in indices:
        require(-count <= index < count, f"index {index} must be from {-count} to {count - 1}.")
    return [index % count for index in indices]


def _keep_features(found: list[Tensor], order: int) -> Callable[..., None]:
    def keep(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        layout: str = layer.feature_layout  # type: ignore[assignment]
        grid = [side for side in given[1:3] if isinstance(side, int)]  # of layers that take tokens
        field = to_field(output, layout, order, (grid[0], grid[1]) if grid else None)
        maps = field.permute(0, 4, 1, 2, 3)  # (batch, channel, group, row, col)
        found.append(maps if maps.shape[2] > 1 else maps[:, :, 0])

    return keep


# Models that do not follow the contract, as `orbit` takes them: their classifier is searched for.


def find_head(model: nn.Module, path: str = "") -> str:
    """Return the path of the classifier: given, declared, named, or else the last linear layer."""
    if path:
        known = {name for name, _ in model.named_modules()}
        require(path in known, f"a {type(model).__name__} has no layer {path!r}; {HEAD_HINT}.")
        return path
    declared = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
    if isinstance(declared, nn.Module):
        return next(name for name, part in model.named_modules() if part is declared)
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    require(bool(linear), f"no linear layer was found in a {type(model).__name__}; {HEAD_HINT}.")
    return next((name for name in HEAD_NAMES if name in linear), linear[-1])


def head_width(head: nn.Module) -> int:
    """Return the number of features that the classifier takes."""
    for part in head.modules():
        if isinstance(part, nn.Linear):
            return part.in_features
        if isinstance(part, nn.LayerNorm):
            return int(part.normalized_shape[0])
    raise InputError(f"the input width of a {type(head).__name__} is unknown; {HEAD_HINT}.")


class HeadInputs:
    """Records what a classifier is given while its model runs: the vector before the logits.

    The hook stays on the classifier and does nothing unless `features` runs: hooks that come and go
    cannot be compiled.  Threads that run at the same time record separately.
    """

    def __init__(self, head: nn.Module) -> None:
        self.head = head
        self.recorded: dict[int, list[Tensor]] = {}
        head.register_forward_pre_hook(self)

    def __call__(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        record = self.recorded.get(_thread())
        if record is not None:
            record.append(inputs[0])

    def features(
        self, model: nn.Module, images: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch width"]:
        """Run the model and return the vector that its classifier is given for each image."""
        self.recorded[_thread()] = []
        try:
            model(images)
        finally:
            found = self.recorded.pop(_thread())
        shapes, count = [tuple(features.shape) for features in found], images.shape[0]
        require(
            len(shapes) == 1 and len(shapes[0]) == 2 and bool(shapes[0][0] == count),
            f"the classifier must take one vector for each of {count} images, got {shapes}; "
            f"{HEAD_HINT}, or combine logits.",
        )
        return found[0]


def _thread() -> int:
    """Return the id of this thread; a compiler traces for all threads."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def logits_of(output: object) -> Tensor:
    """Return a tensor of logits, or the logits in the output of a Hugging Face model.

    The class token of an output without logits, that of a backbone, takes their place.
    """
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None and hasattr(output, "last_hidden_state"):
        return pool_output(output)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model must return a tensor of logits, got a {type(output).__name__}."
        )
    return logits


def output_of(model: nn.Module, given: str = "auto") -> str:
    """Return "class" or "map": as given, or as the model says; a foreign one is a classifier."""
    output = str(getattr(model, "output", "class")) if given == "auto" else given
    require(
        output in ("class", "map"),
        f"the model returns a field, output = {output!r}, whose components an orbit does not "
        'rotate; use one with readout = "classes".',
    )
    return output
