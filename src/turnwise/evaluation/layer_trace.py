"""Trace the layers of a model: their features, the layouts of these, and where an error enters.

An image and the transformed image go through the network in one batch.  For the input and the
output of every layer we measure whether the second half is the first half, transformed.  What that
means depends on the layout of the features.  A layer may declare it (`layers.declarations`);
otherwise every layout that fits the shape is tried, and the layer counts as equivariant if one of
them fits.  Only errors are kept, so the memory is that of one small batch.

A layer that breaks the equivariance need not be a fault: between two changes of basis, features may
transform in a way that no layout describes.  A break is therefore excused if the module around it
is equivariant, or if a later layer makes an equivariant output from a broken input.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from turnwise.errors import require
from turnwise.evaluation.feature_layouts import (
    Layout,
    act_on_features,
    declared_layouts,
    possible_layouts,
    relative_error,
)
from turnwise.geometry.layouts import to_field
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.inference.exported import FileModel
from turnwise.inference.predictor import Predictor
from turnwise.models.contract import feature_layers
from turnwise.models.orbits import Orbit

COUNT = 2  # images to trace: two, to find what depends on the image
FITS = 1e-4  # a layout with a larger error is not the right one
ROOT = "the model"

Images = Float[Tensor, "batch channel row col"]
Errors = dict[str, float]  # by the name of the layout


@dataclass(frozen=True)
class LayerCheck:
    """One call of a layer: the errors of its input and output; None if no layout fits the shape."""

    layer: str
    kind: str
    layout: str
    input_error: float | None
    output_error: float | None


@dataclass(frozen=True)
class Call:
    """One call of a layer, and what the layer declares."""

    layer: str
    kind: str
    given: Tensor | None
    output: Tensor
    layout: str = ""
    group: PlanarGroup | None = None
    rows_cols: tuple[int, int] | None = None


def visit_calls(predictor: Predictor, images: Images, visit: Callable[[Call], None]) -> None:
    """Predict in one batch and visit the call of every layer, or of every node of a file."""
    model, calls = predictor.model, Counter[str]()

    def record(name: str, kind: str, given: Tensor | None, output: Tensor, *declared: Any) -> None:
        calls[name] += 1
        number = f", call {calls[name]}" if calls[name] > 1 else ""
        visit(Call((name or ROOT) + number, kind, given, output, *declared))

    def hook(name: str, module: nn.Module, given: Any, output: Any) -> None:
        out = _first_tensor([output] if isinstance(output, Tensor) else output)
        grid = [side for side in given[1:3] if isinstance(side, int)]  # of layers that take tokens
        if out is not None:
            record(
                name, type(module).__name__, _first_tensor(given), out,
                getattr(module, "feature_layout", ""),
                _group_of(module),
                tuple(grid) if len(grid) == 2 else None,
            )  # fmt: skip

    if isinstance(model, FileModel) and model.trace is not None:
        model.trace(predictor.preprocess(images.to(predictor.precision)), record)
        return
    inside = model.inside if isinstance(model, FileModel) else model
    handles = [m.register_forward_hook(partial(hook, name)) for name, m in inside.named_modules()]
    try:
        one_batch = copy.copy(predictor)
        one_batch.batch_size = len(images)
        one_batch.logits(images)
    finally:
        for handle in handles:
            handle.remove()


def _group_of(module: nn.Module) -> PlanarGroup | None:
    group = getattr(module, "group", None)
    return group if isinstance(group, PlanarGroup) else None


def _first_tensor(values: Any) -> Tensor | None:
    if not isinstance(values, Iterable):
        return None
    return next((value for value in values if isinstance(value, Tensor)), None)


def layer_features(model: nn.Module, images: Images) -> dict[str, Tensor]:
    """Return the features of every layer that declares a layout, as fields, by name.

    A field has the axes (batch, group, row, col, channel).  An orbit's layers become fields by
    transforming the map of each view back: F(h) = h·φ(h⁻¹f).
    """
    orbit = model if isinstance(model, Orbit) else None
    require(
        orbit is None or orbit.design.chunk == 0,
        "the layers of an orbit can be shown only if all views are in one batch: chunk = 0.",
    )
    own = _group_of(model if orbit is None else orbit.model)
    chosen, found = {id(layer) for layer in feature_layers(model)}, dict[str, Tensor]()
    names = {name for name, module in model.named_modules() if id(module) in chosen}

    def keep(call: Call) -> None:
        if call.layer.split(", call ")[0] in names:
            group = call.group or own
            order = 1 if group is None else group.order
            features = to_field(call.output, call.layout, order, call.rows_cols).cpu()
            found[call.layer] = features if orbit is None else _orbit_field(features, orbit.group)

    visit_calls(Predictor(model), images, keep)
    require(bool(found), f"no layer of {type(model).__name__} declares the layout of its features.")
    return found


def _orbit_field(
    views: Float[Tensor, "views group row col width"], group: PlanarGroup
) -> Float[Tensor, "batch order row col channel"]:
    """Return F(h) = h·φ(h⁻¹f); the views h⁻¹f of all images are one batch, by h."""
    maps = views.movedim(1, -1).flatten(3).movedim(-1, 1).unflatten(0, (group.order, -1))
    back = [act_on_image(group, h, maps[h]) for h in range(group.order)]
    return torch.stack(back, dim=1).movedim(2, -1)


def layer_errors(
    model: nn.Module, group: PlanarGroup, images: Images, g: int
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Return, by layer, the fields F(g f) and g·F(f), and their relative difference."""
    before = layer_features(model, images)
    after = layer_features(model, act_on_image(group, g, images))
    expected = {name: act_on_features(group, g, features) for name, features in before.items()}
    return {
        name: (after[name], wanted, relative_error(wanted, after[name]))
        for name, wanted in expected.items()
    }


@dataclass
class _Errors:
    """The errors of one layer's input and output, and fingerprints of both for other images."""

    kind: str
    fingerprints: tuple[float, float]
    given: Errors = field(default_factory=dict)
    output: Errors = field(default_factory=dict)


def trace_layers(
    predictor: Predictor, group: PlanarGroup, images: Images
) -> tuple[LayerCheck, ...]:
    """Measure every layer; nothing for rectangles, whose shape a rotation by 90° changes."""
    model = predictor.model
    fixed = model.batch if isinstance(model, FileModel) else None
    count = (fixed or 2 * COUNT) // 2
    if images.shape[-1] != images.shape[-2] or not 2 <= count <= len(images):
        return ()
    few, groups, traced = images[:count], _groups_in(model, group), dict[str, _Errors]()

    def store_fingerprints(call: Call) -> None:
        prints = _fingerprint(call.given), _fingerprint(call.output)
        traced[call.layer] = _Errors(call.kind, prints)

    def measure(g: int, call: Call) -> None:
        layer = traced.setdefault(call.layer, _Errors(call.kind, (math.nan, math.nan)))
        given, output = call.given, call.output
        # what is the same for every image, such as a table of positions, says nothing
        if given is not None and _fingerprint(given) != layer.fingerprints[0]:
            _update(layer.given, possible_layouts(given, 2 * count, groups), group, g, given)
        if _fingerprint(output) != layer.fingerprints[1]:
            layouts = _layouts_of(call, 2 * count, _group_of(model), groups)
            _update(layer.output, layouts, group, g, output)

    visit_calls(predictor, torch.cat([1 - few, 1 - few]), store_fingerprints)
    for g in reversed(group.grid_elements()):  # the identity last: it fits every layout
        both = torch.cat([few, act_on_image(group, g, few)])
        visit_calls(predictor, both, partial(measure, g))
    return tuple(
        LayerCheck(
            name, layer.kind, _best_layout(layer.output),
            min(layer.given.values(), default=None), min(layer.output.values(), default=None),
        )
        for name, layer in traced.items()
    )  # fmt: skip


def _groups_in(model: nn.Module, group: PlanarGroup) -> tuple[PlanarGroup, ...]:
    """Return the groups that a group axis may be of: the claimed one, and those of the layers."""
    found = [group, group.exact_subgroup(), *map(_group_of, model.modules())]
    return tuple(dict.fromkeys(g for g in found if g is not None and g.order > 1))


def _layouts_of(
    call: Call, batch: int, own: PlanarGroup | None, groups: Sequence[PlanarGroup]
) -> Sequence[Layout]:
    """Return the layout that the layer declares, otherwise all that are possible."""
    group, found = call.group or own, list[Layout]()
    if call.layout:
        theirs = groups if group is None else (group,)
        found = list(declared_layouts(call.output, batch, theirs, call.layout, call.rows_cols))
    return found or list(possible_layouts(call.output, batch, groups))


def _update(
    errors: Errors, layouts: Iterable[Layout], group: PlanarGroup, g: int, x: Tensor
) -> None:
    """Measure the layouts that no earlier element refuted; if it refuted all, the best one."""
    kept = [name for name, error in errors.items() if error <= FITS]
    kept = kept or sorted(errors, key=errors.__getitem__)[:1]
    for name in errors.keys() - set(kept):
        del errors[name]
    for layout in layouts:
        if not kept or layout.name in kept:
            error = layout.error(group, g, x)
            errors[layout.name] = max(errors.get(layout.name, 0.0), error)


def _best_layout(errors: Errors) -> str:
    """Return the layout that fits; none if the best would mislead."""
    name = min(errors, key=errors.__getitem__, default="")
    return name if errors.get(name, 0.0) <= FITS else "none fits"


def _fingerprint(x: Tensor | None) -> float:
    """Return a number that differs between different tensors, so that none need be kept."""
    if x is None or not x.is_floating_point():
        return math.nan
    flat = x.detach().double().flatten()
    return float(flat @ torch.linspace(1, 2, len(flat), dtype=flat.dtype, device=flat.device))


def find_error_source(layers: Sequence[LayerCheck], tolerance: float) -> str:
    """Return where the error of the output enters, in words; empty if every break is excused.

    Errors a million times smaller than that of the output are not its source.
    """
    errors = [check.output_error for check in layers if check.output_error is not None]
    if not errors or errors[-1] <= tolerance:
        return ""
    tolerance = max(tolerance, 1e-6 * min(errors[-1], 1.0))
    source = _first_break(layers, tolerance)
    if source is None:
        return ""
    named = f"{source.layer} ({source.kind})"
    if source.input_error is not None and source.input_error <= tolerance:
        return f"{named}: its input is equivariant, its output is not"
    around = [
        f"{check.layer} ({check.kind})"
        for check in layers
        if check.layer in _ancestors(source.layer)
        and check.input_error is not None
        and check.input_error <= tolerance
    ]
    inside = f", inside {around[0]}, whose input is equivariant" if around else ""
    known = "is not equivariant" if source.input_error is not None else "has no known layout"
    return f"{named} or the code before it{inside}: the input of this layer {known}"


def _first_break(layers: Sequence[LayerCheck], tolerance: float) -> LayerCheck | None:
    def holds(error: float | None) -> bool:
        return error is not None and error <= tolerance

    excused = -1
    for index, check in enumerate(layers):
        broken = check.input_error is not None and not holds(check.input_error)
        if broken and holds(check.output_error):
            excused = index
    equivariant = {check.layer for check in layers if holds(check.output_error)}
    for check in layers[excused + 1 :]:
        broken = check.output_error is not None and not holds(check.output_error)
        if broken and not any(outer in equivariant for outer in _ancestors(check.layer)):
            return check
    return None


def _ancestors(layer: str) -> list[str]:
    """Return the modules around a layer: for "a.b.c" the model, a and a.b."""
    if layer == ROOT:
        return []
    parts = layer.split(", call ")[0].split(".")
    return [ROOT, *(".".join(parts[:i]) for i in range(1, len(parts)))]
