"""The command lines of published programs: their names for our options, in one table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.errors import require


@dataclass(frozen=True)
class Switch:
    """A flag without a value: our option, the value it sets, and what else to say in the help."""

    option: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Program:
    """The command line of a published program.

    models:    the models that it trains, by our names
    names:     its name of an option -> ours
    values:    its word for a value -> ours
    switches:  its flags without a value
    without:   models that lack a switch
    ignored:   flags that it accepts and ignores
    """

    models: tuple[str, ...]
    names: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Switch] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


PROGRAMS = (
    Program(  # Horn et al. 2021, "Translational Equivariance in Kernelizable Attention"
        models=(
            "performer", "nopos_performer", "relative_performer", "clipped_relative_performer",
        ),
        names={
            "dim": "width",
            "embedding_type": "embedding",
            "attn_dropout": "attention_dropout",
            "feature_redraw_interval": "redraw_interval",
            "clipping_dist": "clipping_distance",
        },
        switches={
            "no_projection": Switch(
                "kernel", "softmax", "relative_performer takes it with --variant tep-2021"
            )
        },
        without=("clipped_relative_performer",),
        ignored=("content_rel_attn",),
    ),
    Program(  # GSA-Nets and GE-ViT
        models=("gsa_net", "ge_vit"),
        names={
            "patch_size": "window",
            "dropout_att": "attention_dropout",
            "dropout_values": "value_dropout",
            "norm_type": "norm",
            "activation_function": "activation",
        },
        values={"LayerNorm": "layer", "BatchNorm": "batch", "Swish": "silu", "ReLU": "relu"},
        ignored=("pretrained",),
    ),
)  # fmt: skip
PREFIX = "--config."  # before every flag of GSA-Nets and GE-ViT
RENAMED = {"--lr": "--learning-rate"}  # of training, in the same programs
GSA_NAME = re.compile(r"(z2|mz2|p\d+m?)sa")  # p4sa: their network with the group p4


def in_our_words(words: Sequence[str]) -> list[str]:
    """Return a command of GSA-Nets, GE-ViT or Roto-MetaFormer as MODEL DATASET and flags.

    Their flags for the model and the data set become the first two words, and p4sa is the group p4
    of gsa_net; the rest keeps its order.
    """
    ours = [word.replace(PREFIX, "--", 1) if word.startswith(PREFIX) else word for word in words]
    if ours == list(words) and not any(word.startswith("--model") for word in words):
        theirs = [word for word in words[:1] if GSA_NAME.fullmatch(word)]
        return [*_network(theirs[0], words[1:2]), *words[2:]] if theirs else list(words)
    ours = [part for word in ours for part in _split_flag(word)]
    found = {}
    for flag in ("--model", "--dataset", "--name"):
        if flag in ours[:-1]:
            at = ours.index(flag)
            found[flag] = ours[at + 1]
            del ours[at : at + 2]
    values = {theirs: value for p in PROGRAMS for theirs, value in p.values.items()}
    ours = [RENAMED.get(word, values.get(word, word)) for word in ours]
    data = [found[flag] for flag in ("--dataset", "--name") if flag in found]
    require("--validate" not in ours, "--validate tests a trained model; use turnwise test RUN.")
    if "--model" not in found:
        return ours
    return [*_network(found["--model"], data), *ours]


def _split_flag(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and word.startswith("--") else [word]


def _network(name: str, data: Sequence[str]) -> list[str]:
    """Return our name of a network and its data set, with the group that the name holds."""
    match = GSA_NAME.fullmatch(name)
    return ["gsa_net", *data, "--group", match[1]] if match else [name, *data]


def published_names(model: str) -> dict[str, str]:
    """Return the published names of the model's options, each with ours."""
    return {k: v for p in PROGRAMS if model in p.models for k, v in p.names.items()}


def published_switches(model: str) -> dict[str, Switch]:
    """Return the published flags without a value that the model has."""
    programs = [p for p in PROGRAMS if model in p.models and model not in p.without]
    return {name: switch for p in programs for name, switch in p.switches.items()}


def takes_no_value(flag: str) -> bool:
    """Return whether a published program has this flag without a value."""
    return any(flag.removeprefix("--").replace("-", "_") in p.switches for p in PROGRAMS)


def refuse_ignored(model: str, words: list[str]) -> None:
    """Raise if a word is a flag that the published program accepts and ignores."""
    ignored = {name for p in PROGRAMS if model in p.models for name in p.ignored}
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        require(
            name not in ignored,
            f"{word} does not exist: the published program accepts and ignores it; leave it out.",
        )
