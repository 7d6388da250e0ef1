"""Models are made by name: `create_model`, `list_models`, and the decorator that registers one.

A family is a class or function (task, *, option=default, …) -> module: the first line of its
docstring is the model's description, and its keyword-only arguments are the options a user may
give.  Every classifier has a twin `orbit_NAME` that is exactly invariant (models/orbits.py).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from turnwise.checks import InputError, require_kind, require_known, require_positive
from turnwise.groups import PlanarGroup
from turnwise.models.orbits import Orbit, orbit

Family = Callable[..., nn.Module]
ORBIT = "orbit_"

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
    return own | ({"combine": "mean"} if name.startswith(ORBIT) else {})


def create_model(
    name: str,
    group: str | PlanarGroup = "C4",
    num_classes: int = 10,
    in_chans: int = 1,
    image_size: int = 28,
    pretrained: bool | str = False,
    **options: Any,
) -> nn.Module:
    """Build the model called `name`; `list_models()` tells the names, `options` are its own.

    The module remembers how it was made in `model.config`, which `save` writes.
    """
    require_known(name, list_models(), "model")
    if pretrained:
        raise InputError(
            f"no weights of {name!r} are shipped; train one (turnwise train) and open its folder "
            "with turnwise.load(folder)."
        )
    own = model_options(name)
    for option, value in options.items():
        require_known(option, [*own, *(field.name for field in fields(Task))], f"option of {name}")
        require_kind(value, type(own[option]), option)
    task = Task(PlanarGroup.named(group), num_classes, in_chans, image_size)
    combine = options.pop("combine", "mean")
    model = _families[name.removeprefix(ORBIT)](task, **options)
    if name.startswith(ORBIT):
        model, options = orbit(model, task.group, combine), options | {"combine": combine}
    model.config = ModelConfig(name, task.options | options)  # type: ignore[assignment]
    return model


def config_of(model: nn.Module) -> ModelConfig:
    """How the model was made; an orbit around a made model was made as its `orbit_` twin."""
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        return config
    inner = getattr(getattr(model, "model", None), "config", None)
    if isinstance(model, Orbit) and isinstance(inner, ModelConfig):
        wrapped = {"group": model.group.name, "combine": model.combine}
        return ModelConfig(ORBIT + inner.name, {**inner.options, **wrapped})
    raise InputError(
        f"a {type(model).__name__} that create_model did not make cannot be saved by name; "
        "save its state dict yourself, or register its family (docs/tour.md)."
    )
