"""The command lines of published programs: their names for our options, in one table."""

from collections.abc import Mapping
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
    switches:  its flags without a value
    without:   models that lack a switch
    ignored:   flags that it accepts and ignores
    """

    models: tuple[str, ...]
    names: Mapping[str, str]
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
)  # fmt: skip


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
