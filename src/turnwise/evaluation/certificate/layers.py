"""Where the error enters: the law measured at every layer, and the first layer that breaks it.

A picture and the moved picture go through the network in one batch.  Of each layer's input and
output it is asked whether the second half is the first half moved, under any reading of the shape
(`readings`).  Only numbers are kept, so memory is that of one small batch.

Not every break is a fault: a layer between two changes of basis may turn in a way that no reading
knows.  A break is therefore excused where the module around it holds, or where a later layer makes
of a broken input an output that holds.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.evaluation.certificate.layouts import reading_error, readings
from turnwise.evaluation.certificate.scores import Answerer
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.exported import FileModel, See
from turnwise.inference.precision import full_precision

PICTURES = 2  # that are followed through the network: two, to tell what depends on the picture
HELD = 1e-4  # a reading with an error above this is not the right one
ROOT = "the model"

Errors = dict[str, float]  # by the name of the reading


@dataclass(frozen=True)
class LayerCheck:
    """One call of a layer: the error of its input and output; None where nothing can be read."""

    layer: str
    kind: str
    reading: str
    before: float | None
    error: float | None


@dataclass
class _Seen:
    """One call of a layer: what its input and output were on other pictures, and their errors."""

    kind: str
    elsewhere: tuple[float, float]
    given: Errors = field(default_factory=dict)
    gave: Errors = field(default_factory=dict)


class Watch:
    """Collects the errors of every layer, over all elements of the group."""

    def __init__(self, group: PlanarGroup, pose_groups: tuple[PlanarGroup, ...], batch: int):
        self.group, self.pose_groups, self.batch = group, pose_groups, batch
        self.seen: dict[tuple[str, int], _Seen] = {}
        self.calls: Counter[str] = Counter()
        self.element: int | None = None

    def begin(self, element: int | None) -> None:
        """Next come pictures moved by this element; None: other pictures, to compare with."""
        self.element = element
        self.calls.clear()

    def see(self, layer: str, kind: str, given: Tensor | None, gave: Tensor) -> None:
        """One layer was called: the worst error over the elements, reading by reading."""
        key = (layer, self.calls[layer])
        self.calls[layer] += 1
        if self.element is None:
            self.seen[key] = _Seen(kind, (_trait(given), _trait(gave)))
            return
        seen = self.seen.setdefault(key, _Seen(kind, (math.nan, math.nan)))
        sides = zip((given, gave), (seen.given, seen.gave), seen.elsewhere, strict=True)
        for tensor, errors, elsewhere in sides:
            # a table of positions is the same for every picture, and says nothing
            if tensor is not None and _trait(tensor) != elsewhere:
                self._measure(tensor, errors, self.element)

    def _measure(self, tensor: Tensor, errors: Errors, element: int) -> None:
        """Readings that an earlier element refuted are out; if it refuted all, the best stays."""
        kept = [name for name, error in errors.items() if error <= HELD]
        kept = kept or sorted(errors, key=errors.__getitem__)[:1]
        for name in errors.keys() - set(kept):
            del errors[name]
        for reading in readings(tensor, self.batch, self.pose_groups):
            name = reading.name + (f" of {reading.poses}" if reading.poses else "")
            if not kept or name in kept:
                error = reading_error(reading, self.group, element, tensor)
                errors[name] = max(errors.get(name, 0.0), error)

    def checks(self) -> tuple[LayerCheck, ...]:
        return tuple(
            LayerCheck(
                (layer or ROOT) + (f", call {call + 1}" if call else ""),
                seen.kind,
                _best(seen.gave),
                min(seen.given.values(), default=None),
                min(seen.gave.values(), default=None),
            )
            for (layer, call), seen in self.seen.items()
        )


@torch.no_grad()
@full_precision()
def trace_layers(
    answer: Answerer, group: PlanarGroup, images: Float[Tensor, "batch channel row col"]
) -> tuple[LayerCheck, ...]:
    """The law at every layer that can be read; none for rectangles, which quarter turns reshape."""
    model, device = answer.model, next(answer.model.parameters(), images).device
    fixed = model.batch if isinstance(model, FileModel) else None
    count = (fixed or 2 * PICTURES) // 2
    if images.shape[-1] != images.shape[-2] or not 2 <= count <= len(images):
        return ()
    few = images[:count].to(device, answer.precision)
    watch = Watch(group, _pose_groups(model, group), 2 * count)
    watch.begin(None)
    _run(model, answer.prepare, torch.cat([1 - few, 1 - few]), watch.see)
    for g in reversed(group.grid_elements()):  # the identity last: every reading agrees with it
        watch.begin(g)
        both = torch.cat([few, act_on_image(group, g, few)])
        _run(model, answer.prepare, both, watch.see)
    return watch.checks()


def _best(errors: Errors) -> str:
    """The reading that fits; of a broken layer none does, and the least bad would mislead."""
    name = min(errors, key=errors.__getitem__, default="")
    return name if errors.get(name, 0.0) <= HELD else "none fits"


def _trait(x: Tensor | None) -> float:
    """One number that differs for tensors that differ, so that the tensor need not be kept."""
    if x is None or not x.is_floating_point():
        return math.nan
    flat = x.detach().double().flatten()
    return float(flat @ torch.linspace(1, 2, len(flat), dtype=flat.dtype, device=flat.device))


def _pose_groups(model: nn.Module, group: PlanarGroup) -> tuple[PlanarGroup, ...]:
    """Whose elements may the poses be: the group's, its exact part's, or the model's own."""
    own = getattr(model, "group", None)
    named = [group, group.exact_subgroup(), *([own] if isinstance(own, PlanarGroup) else [])]
    return tuple(dict.fromkeys(g for g in named if g.order > 1))


def _run(model: nn.Module, prepare: Callable[[Tensor], Tensor], both: Tensor, see: See) -> None:
    """A file shows its nodes itself; a module's layers are watched as they are called."""
    if isinstance(model, FileModel) and model.show is not None:
        model.show(prepare(both), see)
        return
    inside = model.inside if isinstance(model, FileModel) else model
    handles = [
        module.register_forward_hook(_hook(name, see)) for name, module in inside.named_modules()
    ]
    try:
        model(prepare(both))
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, see: See) -> Callable[[nn.Module, Any, Any], None]:
    def look(module: nn.Module, given: Any, gave: Any) -> None:
        out = _first_tensor([gave] if isinstance(gave, Tensor) else gave)
        if out is not None:
            see(name, type(module).__name__, _first_tensor(given), out)

    return look


def _first_tensor(values: Any) -> Tensor | None:
    if not isinstance(values, Iterable):
        return None
    return next((value for value in values if isinstance(value, Tensor)), None)


def find_entry(layers: Sequence[LayerCheck], tolerance: float) -> str:
    """Where the error enters, in words; empty if every break is excused.

    Errors a million times smaller than that of the answer are not where it comes from.
    """
    answer = next((check.error for check in reversed(layers) if check.error is not None), None)
    if answer is None or answer <= tolerance:
        return ""
    tolerance = max(tolerance, 1e-6 * min(answer, 1.0))
    guilty = _first_break(layers, tolerance)
    if guilty is None:
        return ""
    named = f"{guilty.layer} ({guilty.kind})"
    if guilty.before is not None and guilty.before <= tolerance:
        return f"{named}: what it is given holds, what it gives does not"
    around = [
        f"{check.layer} ({check.kind})"
        for check in layers
        if check.layer in _ancestors(guilty.layer)
        and check.before is not None
        and check.before <= tolerance
    ]
    known = "already breaks" if guilty.before is not None else "cannot be read"
    inside = f", inside {around[0]}, whose input holds" if around else ""
    return f"{named} or the code before it{inside}: what this layer is given {known}"


def _first_break(layers: Sequence[LayerCheck], tolerance: float) -> LayerCheck | None:
    def holds(error: float | None) -> bool:
        return error is not None and error <= tolerance

    excused = -1
    for place, check in enumerate(layers):
        if holds(check.error) and check.before is not None and not holds(check.before):
            excused = place
    around = {check.layer for check in layers if holds(check.error)}
    for check in layers[excused + 1 :]:
        broken = check.error is not None and not holds(check.error)
        if broken and not any(outer in around for outer in _ancestors(check.layer)):
            return check
    return None


def _ancestors(layer: str) -> list[str]:
    """ "a.b.c" stands in a.b, in a and in the model."""
    if layer == ROOT:
        return []
    parts = layer.split(", call ")[0].split(".")
    return [ROOT, *(".".join(parts[:i]) for i in range(1, len(parts)))]
