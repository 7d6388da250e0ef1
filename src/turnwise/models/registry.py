"""Models by name: `create_model`, `list_models`, and the decorator that registers a family.

    @register("vit", ViTDesign, "Plain vision transformer.")
    class VisionTransformer(ImageModel):
        def __init__(self, task: Task, design: ViTDesign) -> None: ...

A design is a frozen dataclass of options (`turnwise.options`).  Flags, help, recipe keys, storage
and the exactly invariant `orbit_NAME` variant (models/orbits.py) follow from it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import Any

from torch import nn

from turnwise.errors import InputError, require, require_known
from turnwise.geometry.fitting import fitting_sizes
from turnwise.geometry.sizes import InexactSizeError
from turnwise.groups import PlanarGroup
from turnwise.layers.normalise import Normalise
from turnwise.layers.orbit.combinations import LEARNED
from turnwise.models.contract import ModelConfig
from turnwise.models.orbits import Orbit, OrbitDesign, orbit
from turnwise.options import (
    Option,
    Options,
    convert,
    describe,
    option,
    rename_aliases,
    to_plain,
)

Builder = Callable[[Any, Any], nn.Module]
ORBIT = "orbit_"
DEFAULTS = {"group": "C4", "num_classes": 10, "in_chans": 1, "image_size": 28}


@dataclass(frozen=True)
class Task(Options):
    """What every model is built for: the symmetry, the classes and the images."""

    group: PlanarGroup
    num_classes: int = option(help="classes; 0 for pooled features", at_least=0)
    in_chans: int = option(help="channels of the images", at_least=1, at_most=1024)
    image_size: int = option(help="side of the images in pixels", at_least=1, at_most=16384)

    @property
    def options(self) -> dict[str, Any]:
        return asdict(self) | {"group": self.group.name}


@dataclass(frozen=True)
class OrbitOptions(OrbitDesign):
    """The options of an `orbit_NAME` model beside those of the model inside."""

    base_group: str = option("", "group of the model inside, if it is another one")
    weights: str = option("", "folder of a trained model to start from")


@dataclass(frozen=True)
class Family:
    """A registered model: what it is called, its default design, and what builds it."""

    name: str
    design: Options
    build: Builder
    description: str
    fixed: tuple[str, ...] = ()  # options that belong to the name

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(o for o in describe(self.design) if o.name not in self.fixed)

    def make(self, task: Task, values: Mapping[str, Any]) -> nn.Module:
        return self.build(task, replace(self.design, **values))  # type: ignore[type-var]


_families: dict[str, Family] = {}


def register(
    name: str,
    design: type[Options] | Options,
    description: str,
    fixed: tuple[str, ...] = (),
) -> Callable[[Builder], Builder]:
    """Register the decorated class or function `(task, design) -> model` under `name`.

    Args:
        name: what `create_model` is given.
        design: a class of options, or an instance whose values are the defaults.
        description: one line for `turnwise models`.
        fixed: options that users cannot set, because the name implies their value.
    """
    default = design() if isinstance(design, type) else design

    def remember(build: Builder) -> Builder:
        require(name not in _families, f"a model called {name!r} is registered already.")
        require(not name.startswith(ORBIT), f"{name!r}: names {ORBIT}* are made automatically.")
        _families[name] = Family(name, default, build, description, fixed)
        return build

    return remember


def unregister(name: str) -> None:
    """Forget a registered model, for example after a test."""
    _families.pop(name, None)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of all models that match `pattern`, e.g. "orbit_*"."""
    names = sorted([*_families, *(ORBIT + name for name in _families)])
    return [name for name in names if fnmatchcase(name, pattern)]


def describe_model(name: str) -> str:
    """Return one line that describes the model."""
    line = _family(name).description
    return f"Exactly invariant orbit of: {line}" if name.startswith(ORBIT) else line


def family_of(name: str) -> str:
    """Return the title of the family: the first line of the docstring of its module."""
    if name.startswith(ORBIT):
        return "Exactly invariant orbits: the model runs on every view of the image."
    text = (sys.modules[_family(name).build.__module__].__doc__ or "").strip()
    return text.partition("\n\n")[0].replace("\n", " ")


def describe_options(name: str) -> tuple[Option, ...]:
    """Return the options of the model, beside those of `create_model` that all models share."""
    around = describe(OrbitOptions) if name.startswith(ORBIT) else ()
    return (*_family(name).options, *around)


def model_options(name: str) -> dict[str, Any]:
    """Return the default values of the model's own options."""
    return {o.name: o.default for o in describe_options(name)}


def check_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's options, converted to their types; unknown names raise an error."""
    options = {o.name: o for o in describe_options(name)}
    renamed = rename_aliases(options.values(), values, f"options of {name}")
    for key in renamed:
        require_known(key, [*options, *DEFAULTS, "fit"], f"option of {name}")
        require(key in options, f"{key} is an argument of create_model, not an option of {name}.")
    return {key: convert(options[key].hint, value, key) for key, value in renamed.items()}


def stored_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a stored model, and those that did not exist when it was stored."""
    known = describe_options(name)
    return {o.name: o.absent for o in known if o.absent is not None} | dict(values)


def create_model(
    name: str,
    group: str | PlanarGroup | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | None = None,
    pretrained: bool | str = False,
    fit: str | None = None,
    **options: Any,
) -> nn.Module:
    """Build a model by name.

    Args:
        name: one of `list_models()`, or "MODEL.DATA" for pretrained weights.
        group: the symmetry group, e.g. "C4" or "D4" (default C4).
        num_classes: number of classes (default 10); with 0 the model returns pooled features.
        in_chans: number of image channels (default 1).
        image_size: side of the images in pixels (default 28).
        pretrained: load pretrained weights: True, or the name of their data set, "rotmnist".
            Arguments that are left out are then those of the weights.
        fit: how `preprocess` changes images of a size at which the model cannot be exact: "pad",
            "crop" or "resize" (default: such a size is an error).
        options: the model's own options; `turnwise models NAME` lists them.

    The model remembers how it was built in `model.config`, which `save` writes.
    """
    arguments = (group, num_classes, in_chans, image_size)
    given = {k: v for k, v in zip(DEFAULTS, arguments, strict=True) if v is not None}
    if pretrained or "." in name:
        from turnwise.models.weights import create_pretrained

        return create_pretrained(name, pretrained, {**given, **options})
    family, values = _family(name), check_options(name, options)
    merged: dict[str, Any] = {**DEFAULTS, **given}
    task = Task(**{**merged, "group": PlanarGroup.named(merged["group"])})
    if name.startswith(ORBIT):
        return _create_orbit(family, task, values, fit)
    model = family.make(task, values) if fit is None else _make_fitted(family, task, values, fit)
    # with all defaults, so that a stored model stays the same when a default changes
    every = task.options | to_plain({**model_options(name), **values})
    if fit is not None and model.preprocess.fit_size is not None:  # type: ignore[union-attr]
        every["fit"] = fit
    model.config = ModelConfig(name, every)  # type: ignore[assignment]
    return model


def _family(name: str) -> Family:
    require_known(name, list_models(), "model")
    return _families[name.removeprefix(ORBIT)]


def _make_fitted(family: Family, task: Task, values: dict[str, Any], fit: str) -> nn.Module:
    """Build the model for the nearest exact size to which `fit` can change the images.

    Where padding or cropping reaches no exact size, because all differ by an odd number of pixels,
    images are resampled.
    """
    try:
        return family.make(task, values)
    except InexactSizeError as error:
        reason = error
    for mode in dict.fromkeys((fit, "resize")):
        for size in fitting_sizes(task.image_size, mode):
            try:
                model = family.make(replace(task, image_size=size), values)
            except InputError:
                continue
            preprocess = getattr(model, "preprocess", None)
            if not isinstance(preprocess, Normalise) or getattr(model, "output", "") != "class":
                raise reason  # a map would have another size than the image
            preprocess.fit_size, preprocess.fit_mode = size, mode
            return model
    raise reason


def _create_orbit(
    family: Family, task: Task, values: dict[str, Any], fit: str | None = None
) -> Orbit:
    """Build the family's model inside an orbit, from the weights of a trained one if given."""
    names = {o.name for o in describe(OrbitOptions)}
    around = OrbitOptions(**{key: value for key, value in values.items() if key in names})
    own = {key: value for key, value in values.items() if key not in names}
    inner_task = replace(task, group=PlanarGroup.named(around.base_group or task.group))
    inner = create_model(family.name, **inner_task.options, fit=fit, **own)
    if around.weights:
        require(
            around.tune != "none" or around.combine in LEARNED,
            f'tune = "none" and combine = {around.combine!r} leave nothing to train; wrap the '
            f"trained model instead: turnwise.orbit(turnwise.load({around.weights!r})).",
        )
        start_from(inner, around.weights)
    plan = {f.name: getattr(around, f.name) for f in fields(OrbitDesign)}
    model = orbit(inner, task.group, **plan)
    model.config = config_of(model)
    return model


def start_from(model: nn.Module, folder: str) -> None:
    """Load the weights of a trained model of the same family into `model`."""
    from turnwise.models.storage import load

    trained, name = load(folder), config_of(model).name
    found = config_of(trained).name
    require(found == name, f"weights = {folder} holds a {found}, not a {name}.")
    _require_same_options(model, trained, folder)
    try:
        model.load_state_dict(trained.state_dict())
    except RuntimeError as error:
        reason = shorten(str(error), 300, placeholder=" …")
        raise InputError(f"weights = {folder} do not fit this {name}: {reason}") from error


def _require_same_options(model: nn.Module, trained: nn.Module, folder: str) -> None:
    """Raise unless the weights mean the same: 2 heads and 4 heads have equal shapes."""
    name = config_of(model).name
    ours, theirs = ({**config_of(m).options, "group": _group_name(m)} for m in (model, trained))
    for key in (*(o.name for o in describe_options(name) if o.changes_output), "group"):
        before, now = to_plain(theirs[key]), to_plain(ours[key])
        word = "base_group" if key == "group" else key
        require(
            before == now,
            f"weights = {folder} were trained with {key} = {before}, and this {name} has {now}; "
            f"set {word}={before}.",
        )


def _group_name(model: nn.Module) -> str:
    group = getattr(model, "group", None)
    return group.name if isinstance(group, PlanarGroup) else ""


def config_of(model: nn.Module) -> ModelConfig:
    """Return how the model was built; an orbit around a registered model is an `orbit_NAME`."""
    config = getattr(getattr(model, "model", None), "config", None)
    if isinstance(model, Orbit) and isinstance(config, ModelConfig) and config.name in _families:
        inside = config.options["group"]
        around = {"base_group": "" if inside == model.group.name else inside}
        options = {**config.options, "group": model.group.name, **around, **asdict(model.design)}
        return ModelConfig(ORBIT + config.name, options)
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        return config
    raise InputError(
        f"a {type(model).__name__} that create_model did not build cannot be saved by name; save "
        "its state dict yourself, or register its family (docs/contributing/tour.md)."
    )
