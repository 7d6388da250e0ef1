"""Conditions under which a fault could hide: one image alone, other images, other sizes, training.

A certificate measures the group elements on batches of fixed images in eval mode.  A model may be
invariant there and not elsewhere.  These checks repeat the measurement where users run the model.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.evaluation.certificate.certificate import ConditionCheck
from turnwise.evaluation.certificate.comparison import logit_change, predict_logits
from turnwise.evaluation.certificate.controls import acting
from turnwise.groups import PlanarGroup
from turnwise.inference.exported import FileModel
from turnwise.inference.predictor import PRECISIONS, Predictor
from turnwise.models.contract import logits_of

FEW = 2  # images, where one forward pass for each is too many
THOROUGH_FRESH = 512
DISTANT = 32  # pixels; the total stride of most networks divides it

Images = Float[Tensor, "image channel row col"]
Predictors = Mapping[str, Predictor]


def measure_worst(predictors: Predictors, group: PlanarGroup, images: Images) -> dict[str, float]:
    """Return the worst error over the exact elements, in each precision."""
    worst = {}
    for name, predictor in predictors.items():
        before = predict_logits(predictor, images)
        worst[name] = max(
            logit_change(before, predict_logits(predictor, images, act, back), predictor.kind)
            for act, back in (acting(group, g) for g in group.grid_elements())
        )
    return worst


def check_condition(condition: str, measure: Callable[[], Mapping[str, float]]) -> ConditionCheck:
    """Return what `measure` finds; a model that refuses the condition is no failure."""
    try:
        errors: Mapping[str, Any] = measure()
    except Exception as error:  # foreign code may raise anything
        if "memory" in str(error):
            raise
        return ConditionCheck(condition, refusal=first_line(error))
    return ConditionCheck(condition, **errors)


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def one_at_a_time(
    predictors: Predictors, group: PlanarGroup, images: Images, together: Mapping[str, Tensor]
) -> ConditionCheck:
    """Measure images alone: transformed, and against their outputs in a batch."""

    def measure() -> dict[str, float]:
        worst = dict.fromkeys(predictors, 0.0)
        for i in range(FEW):
            alone = images[i : i + 1]
            errors = measure_worst(predictors, group, alone)
            for name, predictor in predictors.items():
                expected = together[name][i : i + 1]
                same = logit_change(expected, predict_logits(predictor, alone), predictor.kind)
                worst[name] = max(worst[name], errors[name], same)
        return worst

    return check_condition("one image at a time", measure)


def fresh_images(
    predictors: Predictors, group: PlanarGroup, like: Images, count: int, seed: int
) -> ConditionCheck:
    """Measure images drawn from a seed that nobody knew when the model was made."""
    images = random_images(count, tuple(like.shape[1:]), seed)
    words = f"{count} random images, dark to bright, of seed {seed}"
    return check_condition(words, partial(measure_worst, predictors, group, images))


def random_images(count: int, shape: tuple[int, ...], seed: int) -> Images:
    """Draw noise, smooth and sparse images, with a random brightness and contrast each."""
    draw = torch.Generator().manual_seed(seed)
    channels, rows, cols = shape
    noise = torch.rand(count, channels, rows, cols, generator=draw)
    coarse = torch.rand(count, channels, rows // 4 + 2, cols // 4 + 2, generator=draw)
    smooth = F.interpolate(coarse, (rows, cols), mode="bilinear")
    kinds = torch.stack([noise, smooth, (noise > 0.9).float(), (smooth > 0.5).float()])
    images = kinds[torch.arange(count) % len(kinds), torch.arange(count)]
    ends = torch.rand(2, count, 1, 1, 1, generator=draw).sort(dim=0).values
    ends[0, ::5], ends[1, ::5] = 0.0, 1.0  # every fifth has the full contrast
    ends[0, 1::5], ends[1, 1::5] = 0.9, 1.0
    ends[0, 2::5], ends[1, 2::5] = 0.0, 0.1
    return ends[0] + (ends[1] - ends[0]) * images


def the_model_itself(
    model: nn.Module, group: PlanarGroup, images: Images, finest: Predictor, before: Tensor
) -> ConditionCheck:
    """Call the model as a user does, not a copy of it, and compare it with the copy."""
    itself = Predictor(model, batch_size=len(images))
    name = next(name for name, kind in PRECISIONS.items() if kind == itself.precision)

    def measure() -> dict[str, float]:
        copied = logit_change(before, predict_logits(itself, images), itself.kind)
        return {name: max(copied, *measure_worst({name: itself}, group, images[:FEW]).values())}

    words = "the model itself" if itself.model is finest.model else "the model itself, not a copy"
    return check_condition(words, measure)


def in_training_mode(model: nn.Module, group: PlanarGroup, images: Images) -> ConditionCheck:
    """Measure a copy in training mode, without dropout, whose masks no image shares."""
    trained = copy.deepcopy(model).double()
    for module in trained.modules():
        for rate in ("p", "rate"):
            if "drop" in type(module).__name__.lower() and hasattr(module, rate):
                setattr(module, rate, 0.0)

    def measure() -> dict[str, float]:
        predictor = Predictor(_InTraining(trained), batch_size=len(images))
        return measure_worst({"float64": predictor}, group, images)

    return check_condition("training mode, without dropout", measure)


class _InTraining(nn.Module):
    """A model that stays in training mode when a predictor switches it to eval mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.train()
        self.preprocess = getattr(model, "preprocess", None)
        self.target = getattr(model, "target", None)

    def train(self, mode: bool = True) -> "_InTraining":
        return self

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.model(images))


def compiled(model: nn.Module, group: PlanarGroup, images: Images) -> ConditionCheck:
    """Measure the model compiled by torch.compile."""

    def measure() -> dict[str, float]:
        predictor = Predictor(model, batch_size=len(images))
        name = next(n for n, kind in PRECISIONS.items() if kind == predictor.precision)
        before = predict_logits(predictor, images)
        torch.compiler.reset()  # after eight models of a class torch would no longer compile it
        fast = Predictor(torch.compile(model), batch_size=len(images))  # type: ignore[arg-type]
        same = logit_change(before, predict_logits(fast, images), predictor.kind)
        return {name: max(same, *measure_worst({name: fast}, group, images).values())}

    return check_condition("compiled by torch.compile", measure)


def sizes_to_sweep(model: nn.Module, side: int, thorough: bool = False) -> tuple[int, ...]:
    """Return other sizes at which the model should be exact: its own, or that of equal strides."""
    if isinstance(model, FileModel) and model.shape[2] is not None:
        return ()
    factors: Sequence[float] = (0.5, 0.75, 1.25, 1.5) if thorough else (0.75, 1.25)
    exact = getattr(model, "exact_size", None)
    if exact is None:
        found = [side + DISTANT, side + 2 * DISTANT][: 2 if thorough else 1]
    else:
        found = [size for factor in factors for size in exact(max(2, round(factor * side)))[:1]]
    return tuple(dict.fromkeys(size for size in found if size not in (side, 1)))
