"""Models that start from weights that come with the package, by name and without a network.

Group, sizes and options are those of the weights.  Only the number of classes may be another: then
the body is kept, and what depends on that number, the head, is drawn anew.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from turnwise.errors import InputError, require, require_known
from turnwise.groups import PlanarGroup
from turnwise.models.registry import (
    Task,
    config_of,
    create_model,
    list_models,
    model_options,
    require_options,
)
from turnwise.models.shipped import list_pretrained, weights_folder
from turnwise.models.storage import load

USUAL = "rotmnist"  # the weights that pretrained=True means where a model has several
TASK = {field.name for field in fields(Task)}


def create_pretrained(name: str, pretrained: bool | str, given: Mapping[str, Any]) -> nn.Module:
    """The model `name` with its shipped weights; `given` is what the user says beside it.

    In training mode, as all that `create_model` makes; `load` opens the same in eval mode.
    """
    weights = chosen_weights(name, pretrained)
    model = load(weights_folder(weights))
    own = config_of(model)
    require_options(own.name, {key: v for key, v in given.items() if key not in TASK})
    count = given.get("num_classes", own.options["num_classes"])
    _require_agreement(weights, model, {k: v for k, v in given.items() if k != "num_classes"})
    if count != own.options["num_classes"]:
        model = with_new_head(model, count)
    return model.train()


def chosen_weights(name: str, pretrained: bool | str = True) -> str:
    """The full name, MODEL.DATA, of the weights that a model's name and `pretrained` ask for."""
    model, _, data = name.partition(".")
    require_known(model, list_models(), "model")
    asked = pretrained.removeprefix(f"{model}.") if isinstance(pretrained, str) else ""
    require(
        not data or asked in ("", data),
        f"{name} and pretrained = {pretrained!r} name different weights; leave one out.",
    )
    shipped = {n.removeprefix(f"{model}."): n for n in list_pretrained() if _is_of(n, model)}
    data, known = data or asked, " or ".join(map(repr, shipped))
    if not shipped:
        others = ", ".join(list_pretrained()) or "none"
        raise InputError(
            f"no weights of {model!r} are shipped (of others: {others}); train one (turnwise "
            "train) and open its folder with turnwise.load(folder)."
        )
    if not data:
        require(
            len(shipped) == 1 or USUAL in shipped,
            f"several weights of {model!r} are shipped; say pretrained = {known}.",
        )
        return shipped.get(USUAL) or next(iter(shipped.values()))
    require(
        data in shipped,
        f"no weights of {model!r} for {data!r} are shipped; say pretrained = {known}.",
    )
    return shipped[data]


def _is_of(weights: str, model: str) -> bool:
    return weights.partition(".")[0] == model


def _require_agreement(weights: str, model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raise if anything that is given is not as the weights were trained."""
    config = config_of(model)
    made = {**model_options(config.name), **config.options}
    for option, value in given.items():
        said = PlanarGroup.named(value).name if option == "group" else value
        require(
            _as_lists(said) == _as_lists(made[option]),
            f"{weights} has {option} = {made[option]}, not {said}; leave {option} out, or train a "
            "model of your own (turnwise train).",
        )


def _as_lists(value: Any) -> Any:
    """The same value as JSON keeps it."""
    return [_as_lists(part) for part in value] if isinstance(value, list | tuple) else value


def with_new_head(model: nn.Module, num_classes: int) -> nn.Module:
    """The same model for another number of classes: what depends on that number is drawn anew.

    A tensor depends on it exactly if its shape does.  The new classes have no names.
    """
    config = config_of(model)
    fresh = create_model(config.name, **{**config.options, "num_classes": num_classes})
    new, old = fresh.state_dict(), model.state_dict()
    assert new.keys() == old.keys(), "the number of classes changes shapes alone"
    body = {key: values for key, values in old.items() if values.shape == new[key].shape}
    require(
        len(body) < len(old),
        f"this {config.name} does not name classes, so it takes no num_classes = {num_classes}; "
        "leave it out.",
    )
    fresh.load_state_dict({**new, **body})
    return fresh
