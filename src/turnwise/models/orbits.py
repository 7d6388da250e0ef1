"""Make any classifier exactly invariant: run it on every view of the image and combine.

    Φ(f) = combine { φ(h⁻¹f) : h ∈ G },  for maps  combine { h φ(h⁻¹f) : h ∈ G }

Transforming f only permutes the views, so a combination that ignores their order cannot change,
whatever φ is.  Under groups finer than the grid, views are interpolated: 90° rotations and flips
stay exact, other angles are approximate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnwise.errors import InputError, require, require_known
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.orbit.combinations import (
    COMBINATIONS,
    OF_LOGITS,
    make_combination,
    takes_features,
)
from turnwise.layers.orbit.views import OrbitViews, ViewSampler
from turnwise.layers.performer.block import RandomProjection, Redraw
from turnwise.models.contract import (
    HeadInputs,
    ImageModel,
    Model,
    find_head,
    head_width,
    logits_of,
    output_of,
    small_linear,
)
from turnwise.options import Options, describe, option

OUTPUTS = ("auto", "class", "map")
REGIMES = ("none", "head", "all")

Images = Float[Tensor, "batch channel row col"]
Outputs = Float[Tensor, "batch group width *space"]


@dataclass(frozen=True)
class OrbitDesign(Options):
    """How an orbit is run and combined."""

    combine: str = option("mean", "how the outputs of all views are combined", choices=COMBINATIONS)
    output: str = option(
        "auto",
        "class: one vector of logits; map: logits per pixel; auto: as the model says",
        choices=OUTPUTS,
    )
    chunk: int = option(
        0, "views per forward pass, 0 for all; training then recomputes activations",
        at_least=0, changes_output=False,
    )  # fmt: skip
    mask: bool = option(False, "show only the disc inside the image")
    background: float = option(
        0.0, "grey level outside the image, from 0 (black) to 1 (white)", at_least=0, at_most=1
    )
    head: str = option("", "path of the classifier inside the model, where it is not found")
    tune: str = option(
        "all", "what training changes: nothing inside, the head, or all", choices=REGIMES,
        changes_output=False,
    )  # fmt: skip

    def validate(self) -> None:
        require(
            self.output != "map" or self.combine in OF_LOGITS,
            f"combine = {self.combine!r} needs the vector before a classifier, which a map has "
            f"not; for maps use {', '.join(OF_LOGITS)}.",
        )


class Decision(NamedTuple):
    """The class of each image, and how many views were needed to be sure of it."""

    classes: Int64[Tensor, " batch"]
    views: Int64[Tensor, " batch"]


class Orbit(ImageModel):
    """The outputs of a model on the orbit of the image, combined.

    Symbols:  φ is `model`.  Its outputs φ(h⁻¹f) are a function F(h) on the group, which becomes
              F(g⁻¹h) when g acts on the image.
    """

    def __init__(self, model: nn.Module, group: PlanarGroup, design: OrbitDesign) -> None:
        super().__init__()
        design = replace(design, output=output_of(model, design.output))
        if design.output == "map":
            require_grid_group(group)  # rotating back between pixels would invent borders
        self.model, self.group, self.design, self.output = model, group, design, design.output
        self.views, self.sampler = OrbitViews(group, design.mask), ViewSampler(group, design.mask)
        needs_head = takes_features(design.combine) or design.tune == "head"
        self.head_path = find_head(model, design.head) if needs_head else design.head
        width = self.num_features if takes_features(design.combine) else 0
        self.readout = make_combination(design.combine, width)
        self.inputs: HeadInputs | None = None
        if width:  # on the device and in the precision of the model
            self.inputs = HeadInputs(self.head)
            self.readout.to(next(self.model.parameters(), torch.zeros(())))
        self.training = model.training
        if design.tune != "all":
            self.tune(design.tune)

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """The classes of the model inside."""
        inner = getattr(self.model, "num_classes", None)
        return int(inner if inner is not None else getattr(self.head, "out_features", 0))

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """The width of the vector before the classifier of the model inside."""
        return self.model.num_features if isinstance(self.model, Model) else head_width(self.head)

    @property
    def head(self) -> nn.Module:  # type: ignore[override]
        """The classifier of the model inside; it may be replaced (see `__setattr__`)."""
        return self.model.get_submodule(self.head_path or find_head(self.model, self.design.head))

    def __setattr__(self, name: str, value: Any) -> None:
        """Let `orbit.head = …` replace the classifier of the model inside."""
        if name != "head":
            super().__setattr__(name, value)
            return
        path = self.head_path or find_head(self.model, self.design.head)
        around, _, last = f"model.{path}".rstrip(".").rpartition(".")
        setattr(self.get_submodule(around), last, value)

    def get_classifier(self) -> nn.Module:
        return self.model.get_classifier() if isinstance(self.model, Model) else self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier of the model inside; 0 removes it."""
        if isinstance(self.model, Model):
            self.model.reset_classifier(num_classes)
        else:
            self.head_path = self.head_path or find_head(self.model, self.design.head)
            new = small_linear(head_width(self.head), num_classes)
            setattr(self, "head", new.to(next(self.head.parameters())))  # noqa: B010
        self.forget_classes()

    def tune(self, regime: str) -> "Orbit":
        """Choose what training changes: "none" of the model, its "head" or "all"; return self."""
        require_known(regime, REGIMES, "tuning")
        self.design = replace(self.design, tune=regime)
        self.model.requires_grad_(regime == "all")
        if regime == "head":
            self.head_path = self.head_path or find_head(self.model, self.design.head)
            self.head.requires_grad_()
        return self.train(self.training)

    def train(self, mode: bool = True) -> "Orbit":
        """Set the training mode; frozen parts stay in eval mode."""
        super().train(mode)
        if self.design.tune != "all":
            self.model.eval()
        if self.design.tune == "head":
            self.head.train(mode)
        return self

    def preprocess(self, images: Images) -> Tensor:  # type: ignore[override]
        """Apply the preprocessing of the model inside, if it has any."""
        inner = getattr(self.model, "preprocess", None)
        return images if inner is None else inner(images)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """Return the sizes that the model inside takes; the orbit is exact at every size."""
        inner = getattr(self.model, "exact_size", None)
        return (size,) if inner is None else inner(size)

    def forward_features(self, images: Images) -> Float[Tensor, "batch group ..."]:
        """Return the features of the model inside for every view of the image."""
        views = self._all_views(images)
        run = self.model.forward_features if isinstance(self.model, Model) else self._head_inputs
        return self._by_image(run(views))

    def forward_intermediates(
        self, images: Images, indices: int | Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the features and the inner maps of the model inside: (batch, view, …)."""
        if not isinstance(self.model, Model):
            raise InputError(f"a {type(self.model).__name__} has no forward_intermediates.")
        features, maps = self.model.forward_intermediates(self._all_views(images), indices)
        return self._by_image(features), [self._by_image(x) for x in maps]

    def _all_views(self, images: Images) -> Float[Tensor, "views channel row col"]:
        self.views.require_fitting(images)
        return self.sampler.views(images, range(self.group.order), self.outside(images))

    def _by_image(self, outputs: Float[Tensor, "views ..."]) -> Float[Tensor, "batch group ..."]:
        return outputs.unflatten(0, (self.group.order, -1)).transpose(0, 1)

    def forward_head(
        self, features: Float[Tensor, "batch group ..."], pre_logits: bool = False
    ) -> Tensor:
        """Return the combined logits, or with `pre_logits` the mean of the pooled features."""
        flat = features.transpose(0, 1).flatten(0, 1)
        needs_vector = pre_logits or takes_features(self.design.combine)
        if isinstance(self.model, Model):
            flat = self.model.forward_head(flat, pre_logits=needs_vector)
        elif not needs_vector:
            flat = self.head(flat)
        outputs = self._by_view(flat, range(self.group.order))
        return outputs.mean(dim=1) if pre_logits else self._combine(outputs)

    def pool(self, features: Float[Tensor, "batch group ..."]) -> Tensor:
        return self.forward_head(features, pre_logits=True)

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes *space"]:
        return self._combine(self.view_outputs(images))

    def view_outputs(self, images: Images) -> Outputs:
        """Return what is combined: the output for every view, in one batch or in chunks."""
        self.views.require_fitting(images)
        outside, step = self.outside(images), self.design.chunk or self.group.order
        chunks = [range(self.group.order)[i : i + step] for i in range(0, self.group.order, step)]
        run: Callable[..., Tensor] = self._outputs
        if len(chunks) > 1 and torch.is_grad_enabled():
            self._require_repeatable()
            return torch.cat(
                [checkpoint(run, images, outside, c, use_reentrant=False) for c in chunks], dim=1
            )
        return torch.cat([run(images, outside, chunk) for chunk in chunks], dim=1)

    def output_of(self, views: Images) -> Float[Tensor, "batch width *space"]:
        """Return what is combined for one view of each image: logits, or the vector before them."""
        if takes_features(self.design.combine):
            return self._head_inputs(views)
        return logits_of(self.model(views))

    def combine_one(self, output: Float[Tensor, "batch width"]) -> Float[Tensor, "batch classes"]:
        """Return what the combination makes of a single view."""
        return self._combine(output[:, None])

    def outside(self, images: Images) -> Float[Tensor, " channel"]:
        """Return the background as the model sees it: black is not 0 after normalisation."""
        if not self.views.fills:
            return images.new_zeros(images.shape[1])
        blank = images.new_full((1, *images.shape[1:]), self.design.background)
        return self.preprocess(blank)[0, :, 0, 0]

    @torch.no_grad()
    def decide(self, images: Images) -> Decision:
        """Return the class alone, as soon as no remaining view can change it.

        For "mean_probability" a view adds at most 1 to the runner-up and takes nothing from the
        leader, so a lead of more than the number of views left is final.  Other combinations have
        no such bound: they use all views.
        """
        if self.design.combine != "mean_probability" or self.design.output == "map":
            classes = self(images).argmax(dim=1)
            return Decision(classes, torch.full_like(classes, self.group.order))
        self.views.require_fitting(images)
        return self._decide_early(images, self.outside(images))

    def _decide_early(self, images: Images, outside: Tensor) -> Decision:
        order, step = self.group.order, self.design.chunk or 1
        open_ = torch.arange(len(images), device=images.device)
        classes, views, total = torch.zeros_like(open_), torch.full_like(open_, order), None
        for start in range(0, order, step):
            chunk = range(order)[start : start + step]
            new = self._outputs(images[open_], outside, chunk).softmax(dim=2).sum(dim=1)
            total = new if total is None else total + new
            classes[open_] = total.argmax(dim=1)
            ranked = total.sort(dim=1, descending=True).values
            lead = ranked[:, 0] - ranked[:, 1] if ranked.shape[1] > 1 else ranked[:, 0] + order
            slack = 8 * order * torch.finfo(total.dtype).eps  # sums are rounded
            final = lead > order - chunk.stop + slack
            views[open_[final]] = chunk.stop
            open_, total = open_[~final], total[~final]
            if len(open_) == 0:
                break
        return Decision(classes, views)

    def _combine(self, outputs: Outputs) -> Float[Tensor, "batch num_classes *space"]:
        combined = self.readout(outputs)
        return self.head(combined) if takes_features(self.design.combine) else combined

    def _head_inputs(self, views: Images) -> Float[Tensor, "batch width"]:
        if self.inputs is None or self.inputs.head is not self.head:  # it was replaced
            self.inputs = HeadInputs(self.head)
        return self.inputs.features(self.model, views)

    def _outputs(self, images: Images, outside: Tensor, elements: Sequence[int]) -> Outputs:
        outputs = self.output_of(self.sampler.views(images, elements, outside))
        return self._by_view(outputs, elements)

    def _by_view(self, outputs: Tensor, elements: Sequence[int]) -> Outputs:
        """Return (batch, view, …); maps are rotated back."""
        split = outputs.unflatten(0, (len(elements), -1))
        if self.design.output == "map":
            require(split.ndim == 5, f"a map is (batch, class, row, col), got {outputs.shape}.")
            back = zip(split, elements, strict=True)
            return torch.stack([self.views.rotate_back(maps, h) for maps, h in back], dim=1)
        require(
            split.ndim == 3,
            f"logits are (batch, class), got {tuple(outputs.shape)}; maps must be rotated back "
            'before they are combined: set output="map".',
        )
        return split.transpose(0, 1)

    def _require_repeatable(self) -> None:
        """Raise unless running a chunk twice, as training does, leaves no trace twice."""
        batch_norm = nn.modules.batchnorm._BatchNorm
        parts = [part for part in self.model.modules() if part.training]
        counting = any(isinstance(part, batch_norm) for part in parts)
        drawn = any(isinstance(part, RandomProjection) and part.redrawn for part in parts)
        require(
            not (drawn and any(isinstance(part, Redraw) and part.interval for part in parts)),
            f"chunk = {self.design.chunk} would count the redraws of random features twice; use "
            "chunk = 0, or redraw_interval = 0.",
        )
        require(
            not counting,
            f"chunk = {self.design.chunk} would update the statistics of batch norms twice; use "
            'chunk = 0, or freeze the model with tune = "head".',
        )

    def extra_repr(self) -> str:
        return f"{self.group.name}, combine={self.design.combine!r}"


def orbit(
    model: nn.Module, group: str | PlanarGroup = "C4", combine: str = "mean", **options: Any
) -> Orbit:
    """Wrap any classifier (images in, logits out) so that `group` cannot change its output.

    Args:
        model: any module; one without `preprocess` takes images as they are.
        group: the symmetry group, e.g. "C4" or "D4".
        combine: how the outputs of all views are combined, e.g. "mean", "max", "mean_features".
        options: `OrbitDesign`'s: output, chunk, mask, background, head, tune.

    >>> invariant = orbit(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "C4").eval()
    >>> image = torch.rand(1, 1, 8, 8)
    >>> bool((invariant(image) - invariant(image.rot90(1, (2, 3)))).abs().max() < 1e-6)
    True
    """
    for key in options:
        require_known(key, [o.name for o in describe(OrbitDesign)], "option of an orbit")
    return Orbit(model, PlanarGroup.named(group), OrbitDesign(combine=combine, **options))
