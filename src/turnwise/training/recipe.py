"""A recipe: an experiment as data.  What a YAML file says, checked, with every default filled in.

    model:        name, group, and the model's own options
    data:         name, and how its pictures are sized, split and moved at random
    optimisation: how weights are changed
    trainer:      how long and on what, as the Lightning Trainer understands it
    evaluation:   what `turnwise test` measures
    seed:         the one source of randomness

Unknown keys are errors that suggest the right one; `key=value` on the command line overrides.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from turnwise.data.augment import Augmentation
from turnwise.errors import InputError, require, require_kind, require_known, require_positive


@dataclass(frozen=True)
class ModelPart:
    name: str
    group: str = "C4"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPart:
    name: str
    image_size: int | None = None
    channels: int | None = None
    crop: int | None = None
    val_fraction: float | None = None
    fraction: float = 1.0  # of the training pictures
    augment: Augmentation = field(default_factory=Augmentation)


@dataclass(frozen=True)
class OptimisationPart:
    optimiser: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    batch_size: int = 64
    schedule: str = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    gradient_clip: float | None = 1.0
    ema: float | None = None

    def __post_init__(self) -> None:
        require_known(self.optimiser, ("adamw", "sgd"), "optimiser")
        require_known(self.schedule, ("cosine", "constant", "noam"), "schedule")
        require(
            self.warmup_epochs == 0 or self.warmup_steps == 0,
            "give warmup_epochs or warmup_steps, not both.",
        )
        require(
            self.schedule != "noam" or self.warmup_epochs + self.warmup_steps > 0,
            "schedule = noam falls from the end of its warm-up; set warmup_steps, e.g. 4000.",
        )
        rate = self.learning_rate
        require(0 < rate < math.inf, f"learning_rate = {rate} must be positive and finite.")
        for what in ("weight_decay", "warmup_epochs", "warmup_steps", "mixup"):
            value = getattr(self, what)
            require(0 <= value < math.inf, f"{what} = {value} must be finite and not negative.")
        require_positive(batch_size=self.batch_size)
        clip = self.gradient_clip
        require(clip is None or clip > 0, f"gradient_clip = {clip} must be positive, or null.")
        require(
            0 <= self.label_smoothing < 1,
            f"label_smoothing = {self.label_smoothing} must be from 0 to below 1.",
        )
        require(
            self.ema is None or 0 < self.ema < 1,
            f"ema = {self.ema} is a decay between 0 and 1; try 0.999, or null for none.",
        )


@dataclass(frozen=True)
class TrainerPart:
    max_epochs: int = 20
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    compile: bool = False
    cuda_graphs: bool = False
    deterministic: bool = False
    patience: int | None = None  # epochs without a better validation accuracy

    def __post_init__(self) -> None:
        require(
            self.patience is None or self.patience >= 1,
            f"patience = {self.patience} must be at least 1 epoch, or null for no early stop.",
        )
        require(
            self.compile or not self.cuda_graphs,
            "trainer.cuda_graphs records what trainer.compile makes; set both, or neither.",
        )
        require_positive(max_epochs=self.max_epochs, devices=self.devices, num_nodes=self.num_nodes)
        known = ("32-true", "bf16-mixed", "16-mixed", "64-true")
        require_known(self.precision, known, "precision")


@dataclass(frozen=True)
class EvaluationPart:
    angles: int = 24
    batch_size: int = 256

    def __post_init__(self) -> None:
        require_positive(angles=self.angles, batch_size=self.batch_size)


@dataclass(frozen=True)
class Recipe:
    model: ModelPart
    data: DataPart
    optimisation: OptimisationPart = OptimisationPart()
    trainer: TrainerPart = TrainerPart()
    evaluation: EvaluationPart = EvaluationPart()
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, f"seed = {self.seed} must be from 0 to 2^32 − 1.")
        require(
            self.optimisation.ema is None or self.trainer.precision != "64-true",
            "optimisation.ema cannot average in trainer.precision = 64-true; set one to null or "
            "32-true.",
        )

    def plain(self) -> dict[str, Any]:
        """As nested dictionaries of plain values, the model's own defaults among them.

        What a run keeps must mean the same when a default has changed.
        """
        from turnwise.models import model_options

        values = dataclasses.asdict(self)
        own = values["model"].pop("options")
        values["model"] |= {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in {**model_options(self.model.name), **own}.items()
        }
        return values

    def yaml(self) -> str:
        return yaml.safe_dump(self.plain(), sort_keys=False)


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML file and apply overrides such as `trainer.max_epochs=5`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        _require_once(yaml.compose(text, Loader=yaml.SafeLoader), path)
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"cannot read the recipe {path}: {reason.lower()}.") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    try:
        return make_recipe(values, overrides)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _require_once(node: yaml.Node | None, path: str | Path) -> None:
    """Refuse a key that stands twice in one part: YAML would forget the first without a word."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        require(twice is None, f"{path} has {twice!r} twice in one part; leave one.")
        for _, value in node.value:
            _require_once(value, path)


def make_recipe(values: Any, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from nested dictionaries and overrides."""
    require(isinstance(values, dict), "a recipe has the parts model, data, optimisation, …")
    for override in overrides:
        values = _override(values, override)
    values = dict(values)
    if isinstance(values.get("model"), dict):
        values["model"] = _gather_options(values["model"])
    return _build(Recipe, values, "recipe")


def _override(values: dict[str, Any], override: str) -> dict[str, Any]:
    """`a.b=c` set in a copy; the value is read as YAML."""
    key, equals, text = override.partition("=")
    require(
        bool(equals and key),
        f"an override is written key=value, e.g. trainer.max_epochs=5, got {override!r}.",
    )
    first, _, rest = key.partition(".")
    if not rest:
        try:
            return {**values, first: yaml.safe_load(text)}
        except yaml.YAMLError:
            raise InputError(f"the value of {override!r} cannot be read as YAML.") from None
    inner = values.get(first) or {}
    require(isinstance(inner, dict), f"{first!r} has no parts, so {key!r} cannot be set.")
    return {**values, first: _override(inner, f"{rest}={text}")}


def _gather_options(model: dict[str, Any]) -> dict[str, Any]:
    """In a file the model's own options stand beside its name; here they are gathered."""
    from turnwise.models import list_models, model_options

    model = {str(key): value for key, value in model.items()}
    own = {key: value for key, value in model.items() if key not in ("name", "group")}
    name = model.get("name")
    require(isinstance(name, str), "model needs a name; `turnwise models` lists them.")
    require_known(str(name), list_models(), "model")
    usual = model_options(str(name))
    for key, value in own.items():
        require_known(key, ["name", "group", *usual], f"option of {name}")
        if isinstance(usual.get(key), float) and isinstance(value, str):
            own[key] = _convert(float, value, key)
    shared = {key: value for key, value in model.items() if key not in own}
    return {**shared, "options": own}


def _build(part: type, values: Any, where: str) -> Any:
    """An instance of the dataclass `part`, from a mapping whose every key and type is checked."""
    require(isinstance(values, Mapping), f"{where} must have keys and values, got {values!r}.")
    hints = typing.get_type_hints(part)
    for key in values:
        require_known(str(key), hints, f"{where} key")
    fields = dataclasses.fields(part)
    required = [
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for key in required:
        require(key in values, f"{where} needs {key!r}.")
    converted = {
        key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()
    }
    return part(**converted)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type that the field asks for; YAML reads 1e-3 as text, and 1 is also 1.0."""
    where = where.removeprefix("recipe.")
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return _build(hint, {} if value is None else value, where)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    kind = next(k for k in kinds if k is not types.NoneType)
    kind = typing.get_origin(kind) or kind
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    require_kind(value, kind, where)
    return value
