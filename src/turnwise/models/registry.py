"""Models are made by name: `create_model`, `list_models`, and the decorator that registers one.

A family is a class or function (task, *, option=default, …) -> module: the first line of its
docstring is the model's description, and its keyword-only arguments are the options a user may
give.  Every classifier has a twin `orbit_NAME` that is exactly invariant (models/orbits.py).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from turnwise.errors import InputError, require, require_kind, require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.layers.orbit.combinations import LEARNED
from turnwise.models.orbits import Orbit, OrbitPlan, orbit

Family = Callable[..., nn.Module]
ORBIT = "orbit_"
HARMLESS = ("algorithm", "backend", "redraw_interval")  # options that change no answer
LONGEST_REASON = 300  # letters of what torch says where weights do not fit
# beside the plan: the group that the model inside was made for, if another, and the folder of a
# trained one to start from
ORBIT_OPTIONS = {f.name: f.default for f in fields(OrbitPlan)} | {"base_group": "", "weights": ""}

LEFT_OUT = {"group": "C4", "num_classes": 10, "in_chans": 1, "image_size": 28}

_families: dict[str, Family] = {}


@dataclass(frozen=True)
class Task:
    """What every family is told: the symmetry that is asked for, the classes, the pictures."""

    group: PlanarGroup
    num_classes: int
    in_chans: int
    image_size: int

    def __post_init__(self) -> None:
        counts = {k: getattr(self, k) for k in ("num_classes", "in_chans", "image_size")}
        for what, value in counts.items():
            require_kind(value, int, what)
        require_positive(**counts)

    @property
    def options(self) -> dict[str, Any]:
        return asdict(self) | {"group": self.group.name}


@dataclass(frozen=True)
class ModelConfig:
    """All that is needed to build a model again: `create_model(config.name, **config.options)`."""

    name: str
    options: Mapping[str, Any]


def register(name: str) -> Callable[[Family], Family]:
    """Make the decorated family known as `name`."""

    def remember(family: Family) -> Family:
        assert name not in _families, f"two model families are called {name}"
        assert not name.startswith(ORBIT), f"{ORBIT}* names are made by wrapping"
        assert family.__doc__, f"{name} has no docstring, and the docstring is its description"
        _families[name] = family
        return family

    return remember


def list_models(pattern: str = "*") -> list[str]:
    """The names of all models that match `pattern`, e.g. "orbit_*"."""
    names = sorted([*_families, *(ORBIT + name for name in _families)])
    return [name for name in names if fnmatchcase(name, pattern)]


def describe_model(name: str) -> str:
    """One line on what the model is."""
    require_known(name, list_models(), "model")
    line = (_families[name.removeprefix(ORBIT)].__doc__ or "").splitlines()[0]
    return f"Mean over the orbit, exactly invariant, of: {line}" if name.startswith(ORBIT) else line


def model_options(name: str) -> dict[str, Any]:
    """The model's own options and their defaults, beside those that all models share."""
    require_known(name, list_models(), "model")
    parameters = inspect.signature(_families[name.removeprefix(ORBIT)]).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return own | (ORBIT_OPTIONS if name.startswith(ORBIT) else {})


def require_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise unless these are options of the model's own, each of the kind it must have."""
    own = model_options(name)
    for option, value in options.items():
        require_known(option, [*own, *(field.name for field in fields(Task))], f"option of {name}")
        require_kind(value, type(own[option]), option)


def create_model(
    name: str,
    group: str | PlanarGroup | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | None = None,
    pretrained: bool | str = False,
    **options: Any,
) -> nn.Module:
    """Build the model called `name`; `list_models()` tells the names, `options` are its own.

    What is left out is C4, 10 classes, 1 channel, 28 pixels.  With `pretrained` (True, or the name
    of the data, "rotmnist"; `name` may also be "MODEL.rotmnist") the weights are those that come
    with the package, and so is all that is left out: see `models.pretrained`.

    The module remembers how it was made in `model.config`, which `save` writes.
    """
    asked = (group, num_classes, in_chans, image_size)
    given = {key: v for key, v in zip(LEFT_OUT, asked, strict=True) if v is not None}
    if pretrained or "." in name:
        from turnwise.models.pretrained import create_pretrained

        return create_pretrained(name, pretrained, {**given, **options})
    require_options(name, options)
    told: dict[str, Any] = {**LEFT_OUT, **given}
    task = Task(**{**told, "group": PlanarGroup.named(told["group"])})
    if name.startswith(ORBIT):
        return _create_orbit(name.removeprefix(ORBIT), task, options)
    model = _families[name](task, **options)
    model.config = ModelConfig(name, task.options | options)  # type: ignore[assignment]
    return model


def _create_orbit(name: str, task: Task, options: dict[str, Any]) -> Orbit:
    """The model `name` in an orbit; the weights it starts from are its own from then on."""
    own = {key: value for key, value in options.items() if key not in ORBIT_OPTIONS}
    around = {key: options.get(key, default) for key, default in ORBIT_OPTIONS.items()}
    base_group, weights = around.pop("base_group"), around.pop("weights")
    inner_task = replace(task, group=PlanarGroup.named(base_group or task.group))
    inner = create_model(name, **inner_task.options, **own)
    if weights:
        require(
            around["tune"] != "none" or around["combine"] in LEARNED,
            f'tune = "none" and combine = {around["combine"]!r} leave nothing to train; it '
            f"needs no training: turnwise orbit {weights} --output FOLDER.",
        )
        start_from(inner, weights)
    model = orbit(inner, task.group, **around)
    model.config = config_of(model)
    return model


def start_from(model: nn.Module, folder: str) -> None:
    """Fill a model with the weights of a trained one of the same family, from its folder."""
    from turnwise.models.storage import load

    trained, name = load(folder), config_of(model).name
    found = config_of(trained).name
    require(found == name, f"weights = {folder} holds a {found}, but a {name} is to be wrapped.")
    _require_alike(model, trained, folder)
    try:
        model.load_state_dict(trained.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
        raise InputError(f"weights = {folder} do not fit this {name}: {reason}") from error


def _require_alike(model: nn.Module, trained: nn.Module, folder: str) -> None:
    """Raise unless the weights mean the same: two heads and four may have equal shapes."""
    name = config_of(model).name
    ours, theirs = (
        {**model_options(name), **config_of(made).options, "group": _promise(made)}
        for made in (model, trained)
    )
    for option in (*model_options(name), "group"):
        said = [list(v) if isinstance(v, tuple) else v for v in (theirs[option], ours[option])]
        word = "base_group" if option == "group" else option
        require(
            said[0] == said[1] or option in HARMLESS or "drop" in option,
            f"weights = {folder} were trained with {option} = {said[0]}, and this {name} has "
            f"{said[1]}; say {word}={said[0]}.",
        )


def _promise(model: nn.Module) -> str:
    group = getattr(model, "group", None)
    return group.name if isinstance(group, PlanarGroup) else ""


def config_of(model: nn.Module) -> ModelConfig:
    """How the model was made; an orbit around a made model was made as its `orbit_` twin."""
    config = getattr(getattr(model, "model", None), "config", None)
    if isinstance(model, Orbit) and isinstance(config, ModelConfig) and config.name in _families:
        inside = config.options["group"]
        around = {"base_group": "" if inside == model.group.name else inside, **asdict(model.plan)}
        options = {**config.options, "group": model.group.name, **around}
        return ModelConfig(ORBIT + config.name, options)
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        return config
    raise InputError(
        f"a {type(model).__name__} that create_model did not make cannot be saved by name; "
        "save its state dict yourself, or register its family (docs/tour.md)."
    )
