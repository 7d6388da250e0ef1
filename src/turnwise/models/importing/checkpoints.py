"""Weights of other programs: read without executing anything, and assigned strictly.

A file that `torch.save` wrote is a pickle, which can run code when it is opened; here it may hold
tensors and plain values only.  Old Lightning wrote the classes of its callbacks, too: their names
are read as an empty class of ours.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.errors import InputError, require

WRAPPINGS = ("state_dict", "model", "model_state_dict")  # keys under which programs store weights
PARALLEL = "module."  # what nn.DataParallel puts before every key
SHOWN = 10  # keys listed of those that do not fit

Weights = dict[str, Tensor]


class _Inert:
    """Stands in for a class whose name a file holds; nothing is ever made of it."""


CALLBACKS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (_Inert, f"pytorch_lightning.callbacks.{name}")
    for name in (
        "model_checkpoint.ModelCheckpoint", "early_stopping.EarlyStopping",
        "lr_monitor.LearningRateMonitor",
    )
]  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """The weights in a file, and the options with which Lightning says they were trained."""

    weights: Weights
    options: Mapping[str, Any] = field(default_factory=dict)


def unchanged(values: Tensor) -> Tensor:
    """Return weights that both programs order alike."""
    return values


@dataclass(frozen=True)
class Counterpart:
    """The key of one of our parameters in another program, and how to reorder its values.

    Its shape is ours, or ours followed by ones: a 1 × 1 convolution is a linear map.
    """

    key: str
    arrange: Callable[[Tensor], Tensor] = unchanged


def import_weights(path: str | Path, build: Callable[[Weights], nn.Module]) -> nn.Module:
    """Build a model from the weights in a file; errors name the file."""
    return import_checkpoint(path, lambda checkpoint: build(checkpoint.weights))


def import_checkpoint(path: str | Path, build: Callable[[Checkpoint], nn.Module]) -> nn.Module:
    """Build a model from a file of weights and options; errors name the file."""
    checkpoint = read_checkpoint(path)
    try:
        return build(checkpoint)
    except InputError as error:
        raise InputError(f"{path} cannot be imported: {error}") from error


def read_checkpoint_weights(path: str | Path) -> Weights:
    """Read a state dict that `torch.save` wrote, by itself or inside a dict, parallel or not."""
    return read_checkpoint(path).weights


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a state dict and, from a checkpoint of Lightning, the options of the model."""
    try:
        with torch.serialization.safe_globals(CALLBACKS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot read {path}: {reason}; give a file that torch.save wrote."
        ) from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(
            f"{path} is damaged or holds more than tensors, and nothing in it was executed; "
            "give a state dict, as torch.save(model.state_dict(), path) writes it."
        ) from error
    inside = content if isinstance(content, Mapping) else {}
    options = inside.get("hyper_parameters")
    for candidate in (content, *(inside.get(name) for name in WRAPPINGS)):
        if _is_state(candidate):
            return Checkpoint(
                _without_prefix(candidate), options if isinstance(options, Mapping) else {}
            )
    raise InputError(
        f"{path} holds a {type(content).__name__} that is no state dict; give names with tensors, "
        f"or a dict that has them under {', '.join(WRAPPINGS[:-1])} or {WRAPPINGS[-1]}."
    )


def _is_state(content: object) -> bool:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    )


def _without_prefix(state: Mapping[str, Tensor]) -> Weights:
    parallel = all(key.startswith(PARALLEL) for key in state)
    return {key.removeprefix(PARALLEL) if parallel else key: v for key, v in state.items()}


def shape_of(
    weights: Weights, key: str, axes: Sequence[int], programs: Iterable[str]
) -> tuple[int, ...]:
    """Return the shape of the weights at `key`, which must exist and have so many axes."""
    require(
        key in weights and weights[key].ndim in axes,
        f"it has no {key} of {' or '.join(map(str, axes))} axes, but for instance "
        f"{next(iter(weights))}; give the state dict of a network of {' or '.join(programs)}.",
    )
    return tuple(weights[key].shape)


def fill_strictly(
    model: nn.Module,
    counterparts: Mapping[str, Counterpart],
    weights: Mapping[str, Tensor],
    ignored: Callable[[str], bool] = lambda key: False,
) -> None:
    """Assign every parameter the values of its counterpart, after all keys were checked.

    A buffer may have one, too.  `ignored` selects keys that are neither; any other unused key is an
    error.
    """
    parameters, state = dict(model.named_parameters()), model.state_dict(keep_vars=True)
    assert parameters.keys() <= counterparts.keys(), "every parameter needs a counterpart"
    ours = {name: state[name] for name in counterparts}
    used = [counterpart.key for counterpart in counterparts.values()]
    misfits = {
        "missing": [key for key in used if key not in weights],
        "unexpected": [key for key in weights if key not in set(used) and not ignored(key)],
        "of another shape": [
            f"{counterpart.key} ({_shape_text(weights[counterpart.key])}, "
            f"not {_shape_text(ours[name])})"
            for name, counterpart in counterparts.items()
            if counterpart.key in weights and not _fits(weights[counterpart.key], ours[name])
        ],
    }
    problems = [f"{problem} are {_shortened(keys)}" for problem, keys in misfits.items() if keys]
    require(
        not problems,
        f"its keys must be those of the published network, but {'; '.join(problems)}.",
    )
    with torch.no_grad():
        for name, counterpart in counterparts.items():
            values = weights[counterpart.key].reshape(ours[name].shape)
            ours[name].copy_(counterpart.arrange(values))


def _fits(theirs: Tensor, ours: Tensor) -> bool:
    """Return whether the shape is ours, possibly followed by ones."""
    rest = theirs.shape[ours.ndim :]
    return theirs.shape[: ours.ndim] == ours.shape and all(side == 1 for side in rest)


def _shape_text(values: Tensor) -> str:
    return " x ".join(map(str, values.shape)) or "one number"


def _shortened(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


def weight_and_bias(ours: str, theirs: str) -> dict[str, Counterpart]:
    """Return the counterparts of the weight and the bias of a layer."""
    return {f"{ours}.{name}": Counterpart(f"{theirs}.{name}") for name in ("weight", "bias")}
