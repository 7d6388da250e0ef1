"""Measure the invariance of a classifier and its negative controls, and write the certificate."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from secrets import randbelow
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

import turnwise
from turnwise.data.targets import kind_of
from turnwise.errors import require, require_known, require_positive
from turnwise.evaluation.certificate.certificate import (
    AngleCheck,
    Certificate,
    ConditionCheck,
    ElementCheck,
    OriginalCheck,
    SizeCheck,
    TransformationCheck,
    WorstImage,
)
from turnwise.evaluation.certificate.comparison import (
    Decisions,
    compare_decisions,
    describe_meaning,
    hash_images,
    hash_weights,
    logit_change,
    most_probable,
    predict_logits,
    usable_precisions,
    with_noise,
)
from turnwise.evaluation.certificate.conditions import (
    FEW,
    THOROUGH_FRESH,
    check_condition,
    compiled,
    fresh_images,
    in_training_mode,
    measure_worst,
    one_at_a_time,
    sizes_to_sweep,
    the_model_itself,
)
from turnwise.evaluation.certificate.controls import acting, measure_controls
from turnwise.evaluation.layer_trace import find_error_source, trace_layers
from turnwise.evaluation.transformations import (
    corner_control,
    describe_element,
    equal_angles,
    unclaimed_transformations,
)
from turnwise.geometry.warps import AUTO, FILLS, choose_fill, rotate_image
from turnwise.groups import PlanarGroup
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE
from turnwise.inference.exported import FileModel
from turnwise.inference.predictor import PRECISIONS, Predictor, Transform

WORST_IMAGES = 5

Item = TypeVar("Item")
Images = Float[Tensor, "image channel row col"]


@dataclass(frozen=True)
class Scope:
    """What is measured beside the elements and angles, and how.

    shifts:      shifts by 1 to this many pixels, right and up
    sizes:       test the claim at these sizes, too, on resampled images
    precisions:  of "float64", "float32", "bfloat16", "float16"; a file has only its own
    layers:      measure every layer, to find where an error enters
    chunk:       images per forward pass, which bounds the memory
    fill:        the fill mode of rotations off the grid; "auto" is inferred from the images
    conditions:  measure one image at a time, other sizes, and the model itself beside its copy
    fresh:       random images drawn from fresh_seed; -1 draws the seed, too
    thorough:    also measure training mode, torch.compile, bfloat16, more images and sizes
    """

    shifts: int = 1
    sizes: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("float64", "float32")
    layers: bool = True
    chunk: int = 64
    progress: bool = False
    fill: str = AUTO
    conditions: bool = True
    fresh: int = 16
    fresh_seed: int = -1
    thorough: bool = False

    def __post_init__(self) -> None:
        require_positive(chunk=self.chunk)
        require(self.fresh >= 0, f"fresh = {self.fresh} images must be 0 or more.")
        require(-1 <= self.fresh_seed < 2**32, f"fresh_seed = {self.fresh_seed} is no seed.")
        require_known(self.fill, (AUTO, *FILLS), "fill mode")
        require(self.shifts >= 0, f"shifts = {self.shifts} must be 0 or more pixels.")
        require(
            all(size > 1 for size in self.sizes), f"sizes = {self.sizes} must be 2 pixels or more."
        )
        require(bool(self.precisions), "a certificate needs a precision; try float64.")
        for precision in self.precisions:
            require_known(precision, PRECISIONS, "precision")


def certify(
    model: nn.Module,
    group: PlanarGroup | str,
    images: Images,
    *,
    target: str = "model",
    images_from: str = "given images",
    angles: int = 24,
    scope: Scope | None = None,
    original: tuple[str, nn.Module] | None = None,
) -> Certificate:
    """Measure the invariance of a classifier, or the equivariance of maps, g⁻¹Φ(g f) = Φ(f).

    The model is not changed.

    Args:
        model: from images to one row of logits for each, or to one map of logits.
        group: the group whose pixel-exact elements are claimed.
        images: at least 2, in [0, 1].
        target: what is certified, in words.
        images_from: where the images come from, in words.
        angles: how many angles to measure, equally spaced over 360°.
        scope: what else to measure.
        original: the name and the model that a file was exported from, with which it must agree.
    """
    group, scope = PlanarGroup.named(group), scope or Scope()
    require(
        group.exact_subgroup().order > 1,
        f"{group.name} has no element but the identity that maps pixels to pixels, so there is "
        "nothing to certify; use C2, C4, D1, D2 or D4, or a group that contains one of them.",
    )
    require(
        len(images) >= 2,
        "a certificate needs 2 images or more, to see that different images give different "
        f"outputs; got {len(images)}.",
    )
    if scope.fresh_seed < 0:
        scope = replace(scope, fresh_seed=randbelow(2**32))
    measure = Measurement(model, group, images, scope)
    elements, rotated = measure.elements(), measure.angles(angles)
    transformations = measure.transformations()
    layers = trace_layers(measure.finest, group, images) if scope.layers else ()
    limit = TOLERANCE.get(measure.finest.precision, COARSE_TOLERANCE)
    return Certificate(
        target=target,
        group=group.name,
        exact_subgroup=group.exact_subgroup().name,
        images=f"{images_from}, {len(images)} of shape {tuple(images.shape[1:])}",
        elements=elements,
        angles=rotated,
        controls=measure_controls(measure.finest, group, images, measure.finest_before),
        weights_sha256=hash_weights(model),
        versions={
            "turnwise": turnwise.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        transformations=transformations,
        sizes=measure.sizes(),
        conditions=measure.conditions(),
        model=describe_meaning(model),
        worst_images=measure.worst_images(),
        layers=layers,
        error_source=find_error_source(layers, limit),
        original=None if original is None else measure.compare_original(*original),
        data_sha256=hash_images(images),
        fill=measure.fill,
    )


class Measurement:
    """Predict for transformed images, and keep the worst change of each image."""

    def __init__(self, model: nn.Module, group: PlanarGroup, images: Images, scope: Scope) -> None:
        wanted = (*scope.precisions, *(["bfloat16"] if scope.thorough else []))
        precisions = usable_precisions(model, wanted)
        self.model, self.scope = model, scope
        self.group, self.images = group, images
        self.kind = kind_of(model)
        self.fill = choose_fill(scope.fill, images)
        self.predictors = {
            p: Predictor(model, batch_size=scope.chunk, precision=p) for p in precisions
        }
        self.finest = self.predictors[precisions[0]]
        self.before = self._predict(images)
        self.finest_before = self.before[precisions[0]]
        self.noisy = with_noise(images)
        self.noisy_before = self._predict(self.noisy)
        self.usual = "float32" if "float32" in precisions else precisions[0]
        self._worst: dict[int, WorstImage] = {}

    def elements(self) -> tuple[ElementCheck, ...]:
        """Measure every element that maps pixels to pixels, in every precision.

        A second measurement uses images without blank regions and transforms every other one.  It
        finds a dependence on blank borders, and on what the images of a batch share.
        """
        checks = []
        for g in self._show(self.group.grid_elements(), "group elements"):
            transform, back = acting(self.group, g)
            after = self._predict(self.images, transform, back)
            mixed = self._predict_mixed(transform, back)
            errors: dict[str, Any] = {
                p: max(
                    logit_change(self.before[p], after[p], self.kind),
                    logit_change(self.noisy_before[p], mixed[p], self.kind),
                )
                for p in after
            }
            meaning = describe_element(self.group, g)
            decisions = self._decide(meaning, after[self.usual], claimed=True)
            checks.append(ElementCheck(g, meaning, **errors, **asdict(decisions)))
        return tuple(checks)

    def angles(self, count: int) -> tuple[AngleCheck, ...]:
        """Measure `count` angles, equally spaced over 360°."""
        checks = []
        for degrees in self._show(equal_angles(count), "angles"):
            rotate = partial(rotate_image, degrees=degrees, fill=self.fill)
            back = partial(rotate_image, degrees=-degrees, fill=self.fill)
            change, decisions = self._measure(f"rotate by {degrees:g}°", rotate, back)
            checks.append(AngleCheck(degrees, change, **asdict(decisions)))
        return tuple(checks)

    def transformations(self) -> tuple[TransformationCheck, ...]:
        """Measure flips that the group does not have, shifts, and the control of the corners."""
        checks = []
        unclaimed = unclaimed_transformations(self.group, self.scope.shifts)
        unclaimed.append(corner_control(self.fill))
        for each in self._show(unclaimed, "transformations"):
            change, decisions = self._measure(each.meaning, each.apply, each.undo)
            checks.append(TransformationCheck(each.kind, each.meaning, change, **asdict(decisions)))
        return tuple(checks)

    def sizes(self) -> tuple[SizeCheck, ...]:
        """Measure the sizes requested, and a few others on a few images."""
        given = [self.size(side, self.images) for side in self.scope.sizes]
        if not self.scope.conditions:
            return tuple(given)
        swept = sizes_to_sweep(self.model, self.images.shape[-1], self.scope.thorough)
        few = self.images[:FEW]
        return (*given, *(self.size(side, few) for side in swept if side not in self.scope.sizes))

    def size(self, side: int, images: Images) -> SizeCheck:
        """Measure the exact elements on the images resampled to side × side pixels."""
        resized = F.interpolate(images.double(), (side, side), mode="bilinear", antialias=True)
        check = check_condition("", partial(measure_worst, self.predictors, self.group, resized))
        return SizeCheck(side, **{k: v for k, v in asdict(check).items() if k != "condition"})

    def conditions(self) -> tuple[ConditionCheck, ...]:
        """Measure where a fault could hide from batches of fixed images in eval mode."""
        checks: list[ConditionCheck] = []
        scope = self.scope
        few = self.images[: 4 * FEW]
        if scope.conditions:
            checks.append(one_at_a_time(self.predictors, self.group, self.images, self.before))
            start = self.finest_before[: len(few)]
            if not isinstance(self.model, FileModel):
                checks.append(the_model_itself(self.model, self.group, few, self.finest, start))
        if scope.fresh:
            count = max(scope.fresh, THOROUGH_FRESH if scope.thorough else 0)
            seed = scope.fresh_seed
            checks.append(fresh_images(self.predictors, self.group, self.images, count, seed))
        if scope.thorough and not isinstance(self.model, FileModel):
            checks += [check(self.model, self.group, few) for check in (in_training_mode, compiled)]
        return tuple(checks)

    def compare_original(self, name: str, original: nn.Module) -> OriginalCheck:
        """Compare with the logits of the model that the file was exported from."""
        (precision,) = usable_precisions(original, (self.usual,))
        predictor = Predictor(original, batch_size=self.scope.chunk, precision=precision)
        theirs, ours = predict_logits(predictor, self.images), self.before[self.usual]
        require(
            theirs.shape == ours.shape,
            f"{name} returns {theirs.shape[1]} logits, the file {ours.shape[1]}; compare it with "
            "the model that it was exported from.",
        )
        return OriginalCheck(
            name, hash_weights(original), logit_change(theirs, ours, self.kind),
            compare_decisions(theirs, ours, self.kind).agreement,
        )  # fmt: skip

    def worst_images(self) -> tuple[WorstImage, ...]:
        """Return the images whose probabilities changed most, each under its worst case."""
        ranked = sorted(self._worst.values(), key=lambda w: (-w.probability, w.image))
        return tuple(ranked[:WORST_IMAGES])

    def _predict(
        self, images: Images, transform: Transform | None = None, back: Transform | None = None
    ) -> dict[str, Tensor]:
        return {
            p: predict_logits(each, images, transform, back) for p, each in self.predictors.items()
        }

    def _predict_mixed(self, transform: Transform, back: Transform) -> dict[str, Tensor]:
        """Transform every other noisy image, or all of them where their shape changes."""

        def every_other(how: Transform, images: Tensor) -> Tensor:
            transformed = how(images)
            if transformed.shape != images.shape:
                return transformed
            # batches are transformed one by one, logits all at once
            within = torch.arange(len(images), device=images.device) % self.scope.chunk
            kept = within % 2 == 1
            return torch.where(kept[:, None, None, None], images, transformed)

        return self._predict(
            self.noisy, partial(every_other, transform), partial(every_other, back)
        )

    def _measure(
        self, meaning: str, transform: Transform, back: Transform | None
    ) -> tuple[float, Decisions]:
        after = predict_logits(self.predictors[self.usual], self.images, transform, back)
        decisions = self._decide(meaning, after, claimed=False)
        return logit_change(self.before[self.usual], after, self.kind), decisions

    def _decide(self, meaning: str, after: Tensor, *, claimed: bool) -> Decisions:
        before = self.before[self.usual]
        change = self.kind.compare(before, after)
        old, new = (most_probable(self.kind, outputs) for outputs in (before, after))
        margins = change.margin.tolist()
        for i, size in enumerate(change.size.tolist()):
            if i not in self._worst or size > self._worst[i].probability:
                self._worst[i] = WorstImage(i, meaning, claimed, size, old[i], new[i], margins[i])
        return compare_decisions(before, after, self.kind)

    def _show(self, items: Sequence[Item], title: str) -> Iterable[Item]:
        return tqdm(items, desc=title, disable=not self.scope.progress, leave=False)
