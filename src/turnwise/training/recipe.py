"""A recipe: an experiment as data, read from YAML, checked, with every default filled in.

    model:        name, group, and the model's own options
    data:         name, and how its images are sized, split and augmented
    optimisation: loss, optimiser and schedule
    trainer:      how long and on what, as the Lightning Trainer takes it
    evaluation:   what `turnwise test` measures
    seed:         the one source of randomness

An unknown key is an error that suggests the right one; `key=value` overrides any key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from turnwise.data.augment import Augmentation, with_policy
from turnwise.data.reading import Reading
from turnwise.errors import InputError, require, require_known, shown
from turnwise.geometry.fitting import FITS
from turnwise.geometry.warps import AUTO, FILLS
from turnwise.groups import PlanarGroup
from turnwise.options import Options, from_plain, option, parse_value, to_plain
from turnwise.parsing import MAX_DEPTH, parse_yaml, read_text

OPTIMISERS = ("adamw", "sgd")
SAMPLING = ("uniform", "balanced")
SCHEDULES = ("cosine", "constant", "noam", "multistep")
# what recipes meant before a key existed; a stored recipe without the key still means it
EARLIER: dict[str, dict[str, Any]] = {
    "data": {"fill": "zeros"},
    "trainer": {"select": "accuracy"},
    "evaluation": {"calibrate": False},
}
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True)
class ModelPart(Options):
    """The model: its own options stand beside `name` and `group` in a file."""

    name: str = option(help="one of `turnwise models`")
    group: str = option("C4", "symmetry group: C1, C4, D4, …")
    options: dict[str, Any] = option(dict, "the model's own options")


@dataclass(frozen=True, kw_only=True)
class DataPart(Reading):
    """The data set, how images of one's own are read, and how all are prepared."""

    name: str = option(help="one of `turnwise datasets`, folder:PATH, or a .csv, .parquet or .npz")
    image_size: int | None = option(
        None, "side in pixels to resample to", at_least=1, at_most=16384
    )
    channels: int | None = option(None, "channels to convert to, 1 or 3", at_least=1, at_most=1024)
    crop: int | None = option(None, "side of a central crop before resampling", at_least=1)
    val_fraction: float | None = option(None, "share of the training images for validation")
    fraction: float = option(1.0, "share of the training images to use")
    repeat: int = option(1, "how often an epoch uses each training image", at_least=1)
    symmetry: str | None = option(
        None, "symmetry of the images, which a model without it learns from augmentation, and for "
        "which every model is tested; null is model.group",
    )  # fmt: skip
    fit: str | None = option(
        "pad", "how images of an inexact size are changed; null refuses them", choices=FITS
    )
    fill: str = option(
        AUTO, "what rotated images show outside their borders", choices=(AUTO, *FILLS)
    )
    sampling: str = option(
        "uniform", "how training images are drawn: uniform, or balanced over the classes",
        choices=SAMPLING,
    )  # fmt: skip
    augment: Augmentation = option(Augmentation, "random transformations of training images")

    @property
    def reading(self) -> Reading:
        return Reading(**{f.name: getattr(self, f.name) for f in fields(Reading)})


@dataclass(frozen=True)
class OptimisationPart(Options):
    """The loss, the optimiser and its schedule."""

    optimiser: str = option("adamw", "optimiser", choices=OPTIMISERS)
    learning_rate: float = option(1e-3, "peak learning rate", above=0)
    weight_decay: float = option(0.05, "weight decay of matrices and filters", at_least=0)
    batch_size: int = option(64, "images per step, over all processes", at_least=1)
    schedule: str = option("cosine", "learning-rate schedule", choices=SCHEDULES)
    milestones: tuple[int, ...] = option(
        (), "epochs after which the schedule multistep multiplies the rate by decay", at_least=1
    )
    decay: float = option(0.1, "factor of the schedule multistep", above=0, at_most=1)
    warmup_epochs: float = option(0.0, "epochs of linear warm-up", at_least=0)
    warmup_steps: int = option(0, "steps of linear warm-up, instead of epochs", at_least=0)
    class_weights: str | tuple[float, ...] | None = option(
        None, "weights of classes or labels in the loss: balanced, or a list",
        choices=("balanced",), above=0,
    )  # fmt: skip
    label_smoothing: float = option(0.0, "label smoothing", at_least=0, below=1)
    mixup: float = option(0.0, "mixup parameter α of Beta(α, α); 0 is none", at_least=0)
    cutmix: float = option(0.0, "cutmix parameter α of Beta(α, α); 0 is none", at_least=0)
    gradient_clip: float | None = option(1.0, "largest gradient norm; null is none", above=0)
    ema: float | None = option(
        None, "decay of averaged weights, e.g. 0.999; null is none", above=0, below=1
    )

    def validate(self) -> None:
        require(
            self.warmup_epochs == 0 or self.warmup_steps == 0,
            "give warmup_epochs or warmup_steps, not both.",
        )
        require(
            (self.schedule == "multistep") == bool(self.milestones),
            f"schedule = {self.schedule} and milestones = {list(self.milestones)}: milestones are "
            "for multistep, which needs some, such as [50, 75].",
        )
        require(
            self.schedule != "noam" or self.warmup_epochs + self.warmup_steps > 0,
            "schedule = noam decays from the end of its warm-up; set warmup_steps, e.g. 4000.",
        )


@dataclass(frozen=True)
class TrainerPart(Options):
    """How long to train, and on what; most keys are Lightning's."""

    max_epochs: int = option(20, "epochs", at_least=1)
    max_minutes: float | None = option(
        None, "minutes of training, then it stops before the next step; null is no limit", above=0
    )
    checkpoint_minutes: float | None = option(
        10.0, "minutes between checkpoints within an epoch; null stores whole epochs only", above=0
    )
    accelerator: str = option("auto", "auto, cpu, gpu")
    devices: int = option(1, "processes per node", at_least=1)
    num_nodes: int = option(1, "nodes", at_least=1)
    strategy: str = option("auto", "Lightning strategy")
    precision: str = option("32-true", "floating-point precision", choices=PRECISIONS)
    compile: bool = option(False, "use torch.compile")
    cuda_graphs: bool = option(False, "record the passes of a step as CUDA graphs")
    deterministic: bool = option(False, "use deterministic algorithms on GPUs")
    patience: int | None = option(
        None, "epochs without a better validation score before stopping; null is none", at_least=1
    )
    select: str = option(
        AUTO,
        "validation score that selects the best epoch: accuracy, balanced_accuracy, auc, loss, …",
    )

    def validate(self) -> None:
        require(
            self.compile or not self.cuda_graphs or self.devices * self.num_nodes == 1,
            f"trainer.cuda_graphs with {self.devices * self.num_nodes} processes needs "
            "trainer.compile; set both, or neither.",
        )


@dataclass(frozen=True)
class EvaluationPart(Options):
    """What `turnwise test` measures."""

    angles: int = option(24, "rotations over 360 degrees", at_least=1, at_most=3600)
    batch_size: int = option(256, "images per forward pass", at_least=1)
    calibrate: bool = option(True, "scale the logits by a temperature fitted on validation")
    sensitivity: float | None = option(
        None, "decide at the threshold that reaches this on validation", above=0, at_most=1
    )
    specificity: float | None = option(
        None, "decide at the threshold that reaches this on validation", above=0, at_most=1
    )
    positive: str | None = option(None, "the positive of two classes; null is the second")

    def validate(self) -> None:
        require(
            self.sensitivity is None or self.specificity is None,
            "give evaluation.sensitivity or evaluation.specificity, not both.",
        )
        require(
            self.positive is None or bool(self.sensitivity or self.specificity),
            "evaluation.positive needs evaluation.sensitivity or evaluation.specificity.",
        )


@dataclass(frozen=True)
class Recipe(Options):
    """A whole experiment."""

    model: ModelPart = option(help="the model")
    data: DataPart = option(help="the data set")
    optimisation: OptimisationPart = option(OptimisationPart, "loss, optimiser and schedule")
    trainer: TrainerPart = option(TrainerPart, "how long to train, and on what")
    evaluation: EvaluationPart = option(EvaluationPart, "what `turnwise test` measures")
    seed: int = option(0, "the one source of randomness", at_least=0, at_most=2**32 - 1)

    def validate(self) -> None:
        PlanarGroup.named(self.data.symmetry or "C1")
        require(
            self.optimisation.ema is None or self.trainer.precision != "64-true",
            "optimisation.ema cannot average in trainer.precision = 64-true; set one to null or "
            "32-true.",
        )

    def augmentation(self, group: PlanarGroup) -> Augmentation:
        """Return the augmentation of a model that is exact under `group`.

        The recipe names the symmetry of the images; a plain model learns it from augmentation.
        """
        return self.data.augment.for_group(group, self.symmetry)

    @property
    def symmetry(self) -> PlanarGroup:
        """The symmetry of the images, for which a model is tested."""
        return PlanarGroup.named(self.data.symmetry or self.model.group)

    def plain(self) -> dict[str, Any]:
        """Return nested dictionaries of plain values, with the model's defaults filled in.

        A stored recipe must mean the same when a default has changed.
        """
        from turnwise.models import model_options

        values = to_plain(self)
        own = values["model"].pop("options")
        values["model"] |= to_plain({**model_options(self.model.name), **own})
        return values

    def yaml(self) -> str:
        return yaml.safe_dump(self.plain(), sort_keys=False)


def read_recipe(path: str | Path, overrides: Sequence[str] = (), *, stored: bool = False) -> Recipe:
    """Read a YAML file and apply overrides such as `trainer.max_epochs=5`.

    A recipe that is `stored` with a run or with weights has every default filled in, so a key that
    it lacks is newer than the recipe.
    """
    try:
        values = parse_yaml(read_text(Path(path)))
    except InputError as error:
        raise InputError(f"cannot read the recipe {path}: {error}.") from error
    try:
        return make_recipe(values, overrides, stored=stored)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def make_recipe(values: Any, overrides: Sequence[str] = (), *, stored: bool = False) -> Recipe:
    """Build a recipe from nested dictionaries and overrides; `stored` as in `read_recipe`."""
    require(isinstance(values, dict), "a recipe has the parts model, data, optimisation, …")
    if stored:
        values = values | {
            part: {**keys, **(values.get(part) or {})}
            for part, keys in EARLIER.items() if isinstance(values.get(part, {}), dict | None)
        }  # fmt: skip
    for override in overrides:
        values = _override(values, override)
    values = dict(values)
    if isinstance(values.get("model"), dict):
        values["model"] = _gather_options(values["model"], stored)
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("augment"), dict):
        values["data"] = {**data, "augment": with_policy(data["augment"])}
    return from_plain(Recipe, values, "recipe")


def make_data_part(name: str, settings: Sequence[str]) -> DataPart:
    """Build the data part alone; settings are written `group_by=patient` or in full."""
    values: dict[str, Any] = {"name": name}
    for setting in settings:
        values = _override(values, setting.removeprefix("data."))
    return from_plain(DataPart, values, "data")


def _override(values: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Return a copy with `a.b=c` set; the value is read as YAML."""
    key, equals, text = override.partition("=")
    require(
        bool(equals and key),
        f"an override is written key=value, e.g. trainer.max_epochs=5, got {shown(override)}.",
    )
    require(key.count(".") < MAX_DEPTH, f"{shown(key)} has more parts than any key of a recipe.")
    first, _, rest = key.partition(".")
    if not rest:
        return {**values, first: parse_value(text, override)}
    inner = values.get(first) or {}
    require(isinstance(inner, dict), f"{first!r} has no parts, so {key!r} cannot be set.")
    return {**values, first: _override(inner, f"{rest}={text}")}


def _gather_options(model: Mapping[str, Any], stored: bool) -> dict[str, Any]:
    """Gather the model's own options, which stand beside its name in a file."""
    from turnwise.models.registry import check_options, list_models, stored_options

    name = model.get("name")
    require(isinstance(name, str), "model needs a name; `turnwise models` lists them.")
    require_known(str(name), list_models(), "model")
    shared = {key: model[key] for key in ("name", "group") if key in model}
    own = {str(key): value for key, value in model.items() if key not in shared}
    own = stored_options(str(name), own) if stored else own
    return {**shared, "options": check_options(str(name), own)}
