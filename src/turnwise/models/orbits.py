"""Any classifier, made exactly invariant: run it on every view of the picture and combine.

    Φ(f) = combine { φ(h⁻¹f) : h ∈ G },  for maps  combine { h φ(h⁻¹f) : h ∈ G }

Turning f only reorders the views, so a combination that sees a set cannot change, whatever φ is.
Under groups finer than the grid, views are interpolated: quarter turns and mirrors stay exact, the
other angles are approximate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnwise.errors import require, require_known
from turnwise.groups import PlanarGroup, require_grid_group
from turnwise.layers.orbit.combinations import (
    COMBINATIONS,
    OF_LOGITS,
    orbit_readout,
    takes_features,
)
from turnwise.layers.orbit.views import OrbitViews, ViewSampler
from turnwise.layers.performer.block import RandomProjection, Redraw
from turnwise.models.heads import HeadListener, find_head, head_width, logits_of

OUTPUTS = ("class", "map")
REGIMES = ("none", "head", "all")

Images = Float[Tensor, "batch channel row col"]
Answers = Float[Tensor, "batch group width *space"]


@dataclass(frozen=True)
class OrbitPlan:
    """How an orbit is run and combined.

    combine:     one of `layers.orbit_readouts.COMBINATIONS`
    output:      "class", a vector of logits, or "map", logits for each pixel, which turn with f
    chunk:       how many views at a time, 0 for all; in training, activations are computed again
    mask:        views show the disc inside the picture alone
    background:  the level, in pictures from 0 to 1, of what lies outside the picture
    head:        the path of the model's last part, where it is not found by itself
    tune:        what training changes: "none" of the model (learned combinations still learn), its
                 "head", or "all"; what is frozen stays in eval mode
    """

    combine: str = "mean"
    output: str = "class"
    chunk: int = 0
    mask: bool = False
    background: float = 0.0
    head: str = ""
    tune: str = "all"

    def __post_init__(self) -> None:
        require_known(self.combine, COMBINATIONS, "combination")
        require_known(self.output, OUTPUTS, "output")
        require_known(self.tune, REGIMES, "tuning")
        require(self.chunk >= 0, f"chunk = {self.chunk} must be a number of views, or 0 for all.")
        require(
            0 <= self.background <= 1,  # which nan is not, either
            f"background = {self.background} must be from 0, black, to 1, white.",
        )
        require(
            self.output == "class" or self.combine in OF_LOGITS,
            f"combine = {self.combine!r} needs the vector before a head, which a map has not; "
            f"for maps use {', '.join(OF_LOGITS)}.",
        )


class Decision(NamedTuple):
    """The class of each picture, and how many views were looked at to be sure of it."""

    classes: Int64[Tensor, " batch"]
    views: Int64[Tensor, " batch"]


class Orbit(nn.Module):
    """A classifier's answers to the orbit of the picture, combined.

    Symbols:  φ is `model`; φ(h⁻¹f), or the vector before its head, is `forward_features(f)[:, h]`,
              a function on the group: F(h) becomes F(g⁻¹h) when the picture turns by g.
    """

    def __init__(self, model: nn.Module, group: PlanarGroup, plan: OrbitPlan) -> None:
        super().__init__()
        if plan.output == "map":
            require_grid_group(group)  # turned back between pixels, borders would be made up
        self.model, self.group, self.plan = model, group, plan
        self.views, self.sampler = OrbitViews(group, plan.mask), ViewSampler(group, plan.mask)
        needs_head = takes_features(plan.combine) or plan.tune == "head"
        self.head_path = find_head(model, plan.head) if needs_head else plan.head
        width = head_width(self.head) if takes_features(plan.combine) else 0
        self.readout = orbit_readout(plan.combine, width)
        self.listener: HeadListener | None = None
        if width:  # where the head is, and as precise
            self.listener = HeadListener(self.head)
            self.readout.to(next(self.head.parameters()))
        self.training = model.training
        if plan.tune != "all":
            self.tune(plan.tune)

    @property
    def head(self) -> nn.Module:
        """The last part of the model inside; it may be replaced."""
        return self.model.get_submodule(self.head_path or find_head(self.model, self.plan.head))

    def __setattr__(self, name: str, value: Any) -> None:
        """`orbit.head = …` puts the new head where the model inside has it."""
        if name != "head":
            super().__setattr__(name, value)
            return
        path = self.head_path or find_head(self.model, self.plan.head)
        around, _, last = f"model.{path}".rstrip(".").rpartition(".")
        setattr(self.get_submodule(around), last, value)

    def tune(self, regime: str) -> "Orbit":
        """Choose what training changes, "none" of the model, its "head" or "all"; returns self."""
        require_known(regime, REGIMES, "tuning")
        self.plan = replace(self.plan, tune=regime)
        self.model.requires_grad_(regime == "all")
        if regime == "head":
            self.head_path = self.head_path or find_head(self.model, self.plan.head)
            self.head.requires_grad_()
        return self.train(self.training)

    def train(self, mode: bool = True) -> "Orbit":
        """As usual, but what is frozen answers as in evaluation: no drop-out, no new statistics."""
        super().train(mode)
        if self.plan.tune != "all":
            self.model.eval()
        if self.plan.tune == "head":
            self.head.train(mode)
        return self

    def preprocess(self, images: Images) -> Images:
        """What the classifier inside expects, or the pictures as they are if it does not say."""
        prepare = getattr(self.model, "preprocess", None)
        return images if prepare is None else prepare(images)

    def exact_size(self, size: int) -> tuple[int, ...]:
        """The sizes that the classifier inside takes; the orbit itself is exact at every size."""
        inner = getattr(self.model, "exact_size", None)
        return (size,) if inner is None else inner(size)

    def forward_features(self, images: Images) -> Answers:
        """The answers to all views, or the vectors before the head; in one batch, or in chunks."""
        self.views.require_fitting(images)
        outside, step = self.outside(images), self.plan.chunk or self.group.order
        parts = [range(self.group.order)[i : i + step] for i in range(0, self.group.order, step)]
        if len(parts) == 1:
            return self._answers(images, outside, parts[0])
        if not torch.is_grad_enabled():
            return torch.cat([self._answers(images, outside, part) for part in parts], dim=1)
        self._require_repeatable()
        return torch.cat(
            [checkpoint(self._answers, images, outside, p, use_reentrant=False) for p in parts],
            dim=1,
        )

    def forward_head(self, answers: Answers) -> Float[Tensor, "batch num_classes *space"]:
        combined = self.readout(answers)
        return self.head(combined) if takes_features(self.plan.combine) else combined

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes *space"]:
        return self.forward_head(self.forward_features(images))

    def answers(self, views: Images) -> Float[Tensor, "batch width *space"]:
        """What is combined, for one view of each picture: logits, or the vector before the head."""
        if takes_features(self.plan.combine):
            if self.listener is None or self.listener.head is not self.head:  # it was replaced
                self.listener = HeadListener(self.head)
            return self.listener.features(self.model, views)
        return logits_of(self.model(views))

    def outside(self, images: Images) -> Float[Tensor, " channel"]:
        """The background as the model sees it: black is not 0 after normalisation."""
        if not self.views.fills:
            return images.new_zeros(images.shape[1])
        blank = images.new_full((1, *images.shape[1:]), self.plan.background)
        return self.preprocess(blank)[0, :, 0, 0]

    @torch.no_grad()
    def decide(self, images: Images) -> Decision:
        """The class alone; for "mean_probability", as soon as no view that is left can change it.

        A view adds at most 1 to the runner-up and takes nothing from the leader, so a lead of more
        than the number of views left is final.  Other combinations have no such bound: they look at
        all views.
        """
        if self.plan.combine != "mean_probability" or self.plan.output == "map":
            classes = self(images).argmax(dim=1)
            return Decision(classes, torch.full_like(classes, self.group.order))
        self.views.require_fitting(images)
        return self._decide_early(images, self.outside(images))

    def _decide_early(self, images: Images, outside: Tensor) -> Decision:
        order, step = self.group.order, self.plan.chunk or 1
        open_ = torch.arange(len(images), device=images.device)
        classes, views, total = torch.zeros_like(open_), torch.full_like(open_, order), None
        for start in range(0, order, step):
            part = range(order)[start : start + step]
            new = self._answers(images[open_], outside, part).softmax(dim=2).sum(dim=1)
            total = new if total is None else total + new
            classes[open_] = total.argmax(dim=1)
            ranked = total.sort(dim=1, descending=True).values
            lead = ranked[:, 0] - ranked[:, 1] if ranked.shape[1] > 1 else ranked[:, 0] + order
            slack = 8 * order * torch.finfo(total.dtype).eps  # sums are rounded
            final = lead > order - part.stop + slack
            views[open_[final]] = part.stop
            open_, total = open_[~final], total[~final]
            if len(open_) == 0:
                break
        return Decision(classes, views)

    def _answers(self, images: Images, outside: Tensor, elements: Sequence[int]) -> Answers:
        """(batch, view, …) for some of the views, in one batch."""
        answers = self.answers(self.sampler.look(images, elements, outside))
        split = answers.unflatten(0, (len(elements), images.shape[0]))
        if self.plan.output == "map":
            require(split.ndim == 5, f"a map is (batch, class, row, col), got {answers.shape}.")
            back = zip(split, elements, strict=True)
            return torch.stack([self.views.turn_back(maps, h) for maps, h in back], dim=1)
        require(
            split.ndim == 3,
            f"logits are (batch, class), got {tuple(answers.shape)}; maps must be turned back "
            'before they are combined: say output="map".',
        )
        return split.transpose(0, 1)

    def _require_repeatable(self) -> None:
        """Chunks are computed twice in training, and must not leave traces twice."""
        batch_norm = nn.modules.batchnorm._BatchNorm
        parts = [part for part in self.model.modules() if part.training]
        counting = any(isinstance(part, batch_norm) for part in parts)
        drawn = any(isinstance(part, RandomProjection) and part.redrawn for part in parts)
        require(
            not (drawn and any(isinstance(part, Redraw) and part.interval for part in parts)),
            f"chunk = {self.plan.chunk} would count the redraws of random features twice; use "
            "chunk = 0, or redraw_interval = 0.",
        )
        require(
            not counting,
            f"chunk = {self.plan.chunk} would count the statistics of batch norms in training "
            'twice; use chunk = 0, or freeze the model with tune = "head".',
        )

    def extra_repr(self) -> str:
        return f"{self.group.name}, combine={self.plan.combine!r}"


def orbit(
    model: nn.Module, group: str | PlanarGroup = "C4", combine: str = "mean", **options: Any
) -> Orbit:
    """Wrap any classifier (pictures in, logits out) so that `group` cannot change its answer.

    `options` are those of `OrbitPlan`: output, chunk, mask, background, head, tune.
    """
    for option in options:
        require_known(option, [f.name for f in fields(OrbitPlan)], "option of an orbit")
    return Orbit(model, PlanarGroup.named(group), OrbitPlan(combine=combine, **options))
