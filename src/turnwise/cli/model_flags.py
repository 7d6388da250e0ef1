"""The command line of `turnwise train MODEL DATASET`: flags made from the options of the model.

    turnwise train performer mnist --width 128 --image-size 32 epochs=5

`--width 128`, `--width=128` and `width=128` mean the same, as does the name that a published
program has for the option.  Any other key of a recipe is set by its full name, as in
`optimisation.weight_decay=0`.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.cli.published import (
    published_names,
    published_switches,
    refuse_ignored,
    takes_no_value,
)
from turnwise.cli.terminal import Parser
from turnwise.data.sources import own_reader
from turnwise.errors import InputError, require, require_known
from turnwise.options import Option, describe, parse_value

SHORTCUTS = {
    "group": "model.group",
    "image_size": "data.image_size",
    "group_by": "data.group_by",
    "layout": "data.layout",
    "target": "data.target",
    "on_error": "data.on_error",
    "fit": "data.fit",
    "batch_size": "optimisation.batch_size",
    "learning_rate": "optimisation.learning_rate",
    "schedule": "optimisation.schedule",
    "warmup": "optimisation.warmup_steps",
    "epochs": "trainer.max_epochs",
    "patience": "trainer.patience",
    "seed": "seed",
}
RUN_FLAGS = {
    "output": ("FOLDER", "the run folder (default: LOG/EXP/NAME)"),
    "log_path": ("LOG", "the folder of all experiments (default: runs)"),
    "exp_name": ("EXP", "the experiment in it (default: DATASET_MODEL)"),
    "version": ("NAME", "the run in the experiment (default: version_N, the next number)"),
    "data_dir": ("FOLDER", "where the data sets are (default: $TURNWISE_DATA)"),
}


def alone(data: str) -> str:
    """Return the message for a data set without anything that says what to train on it."""
    return f"{data} is a data set; add --minutes 10, or give a recipe or a model before it."


def find_model(word: str) -> str:
    """Return the model called `word`, which may be written as a class: RelativePerformer."""
    from turnwise.data import CATALOGUE
    from turnwise.data.sources import own_reader
    from turnwise.models import list_models

    require(word not in CATALOGUE and own_reader(word) is None, alone(word))
    plain = {name.replace("_", ""): name for name in list_models()}
    found = plain.get(word.replace("_", "").lower(), word)
    try:
        require_known(found, plain.values(), "model or recipe")
    except InputError as error:
        hint = str(error).partition(" Known:")[0]
        raise InputError(
            f"{hint} Give a recipe (recipes/*.yaml), or one of `turnwise models`."
        ) from None
    return found


def parse_model_command(model: str, words: Sequence[str]) -> argparse.Namespace:
    """Parse what follows MODEL; `values` of the result is the recipe as nested dictionaries."""
    from turnwise.models import describe_options

    refuse_ignored(model, list(words))
    typed = {hyphenate(word): word for word in words}
    parser = model_parser(model)
    args, rest = parser.parse_known_intermixed_args([hyphenate(word) for word in words])
    unknown = [typed.get(word, word) for word in rest]
    require(
        not unknown,
        f"unknown to {model}: {' '.join(unknown)}; `turnwise train {model} -h` lists the options.",
    )
    data, *settings = args.settings or [""]
    is_own = own_reader(data) is not None
    if not data or ("=" in data and not is_own):
        raise InputError(f"give a data set after {model}; `turnwise datasets` lists them.")
    name = data if is_own else data.lower()
    values = {"model.name": model, "data.name": name}
    flags = ((key, parse_value(text, f"{key}={text}"))
             for key, texts in vars(args).items() if key not in ("settings", *RUN_FLAGS)
             for text in texts or ())  # fmt: skip
    switches = {f"model.{o.name}" for o in describe_options(model) if o.hint is bool}
    for key, value in (*flags, *_read_settings(model, settings)):
        if key in switches and value in (0, 1):
            value = bool(value)  # --roto 0, which Roto-MetaFormer's program takes for true
        require(
            values.get(key, value) == value,
            f"{key} is given twice, as {values.get(key)} and as {value}; leave one out.",
        )
        values[key] = value
    args.values = _nested(values)
    return args


def model_parser(model: str) -> argparse.ArgumentParser:
    """Return the command line of one model, with all its options in the help."""
    from turnwise.models import describe_model, describe_options

    theirs, switches = published_names(model), published_switches(model)
    parser = Parser(
        prog=f"turnwise train {model}", allow_abbrev=False,
        usage="%(prog)s DATASET\n           [--option VALUE | key=value …]",
        description=f"{describe_model(model)} Options may also be written width=128; any other key "
        "of a recipe is set by its full name, e.g. optimisation.weight_decay=0.",
    )  # fmt: skip
    parser.add_argument("settings", nargs="*", metavar="DATASET key=value",
                        help="a data set (turnwise datasets), and settings")  # fmt: skip
    options = describe_options(model)
    hidden = [o for o in options if o.name in RUN_FLAGS]
    only = f"Only as {', '.join(f'{o.name}=VALUE' for o in hidden)}, without dashes: {{}}"
    own = parser.add_argument_group(
        f"options of {model}",
        only.format("; ".join(option_help(o) for o in hidden)) if hidden else None,
    )
    for o in options:
        also = [name for name, ours in theirs.items() if ours == o.name]
        if o not in hidden:
            _add(own, (o.name, *also), f"model.{o.name}", option_help(o))
    for name, switch in switches.items():
        text = f"the published name of --{switch.option} {switch.value}"
        own.add_argument(
            f"--{name.replace('_', '-')}", dest=f"model.{switch.option}", action="append_const",
            const=switch.value, help=f"{text}; {switch.note}" if switch.note else text,
        )  # fmt: skip
    training = parser.add_argument_group("training")
    for name, key in SHORTCUTS.items():
        _add(training, (name,), key, option_help(_recipe_option(key)))
    add_run_flags(parser.add_argument_group("the run"))
    return parser


def add_run_flags(group: Any) -> None:
    """Add the flags that say where the run goes and where its data are."""
    for flag, (metavar, text) in RUN_FLAGS.items():
        group.add_argument(f"--{flag.replace('_', '-')}", metavar=metavar, help=text)


def hyphenate(word: str) -> str:
    """Return --min_shift=8 as --min-shift=8: in the name of a flag both mean the same."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def model_first(words: Sequence[str]) -> list[str]:
    """Move the first word that is no flag, and no value of a flag, to the front."""
    ahead = 0
    while ahead < len(words) and words[ahead].startswith("--"):
        alone = "=" in words[ahead] or words[ahead] == "--help" or takes_no_value(words[ahead])
        ahead += 1 if alone else 2
    return [*words[ahead : ahead + 1], *words[:ahead], *words[ahead + 1 :]]


def is_model_command(words: Sequence[str]) -> bool:
    """Return whether the first word can only be a model: no path, no file, no setting."""
    first = words[0] if words else "-"
    path = first.startswith("-") or any(sign in first for sign in "=./")
    return not path and not Path(first).is_file()


def _read_settings(model: str, settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the full key and the value of each `width=128`; a key with a dot is full already."""
    from turnwise.models import model_options

    known = {name: f"model.{name}" for name in model_options(model)} | SHORTCUTS
    known |= {theirs: f"model.{ours}" for theirs, ours in published_names(model).items()}
    switches = published_switches(model)
    for setting in settings:
        key, equals, text = setting.partition("=")
        name = key.replace("-", "_")
        require(bool(equals), f"unknown to {model}: {setting}; write key=value.")
        if name in switches:
            value = parse_value(text, setting)
            require(isinstance(value, bool), f"{setting} must be true or false.")
            if value:
                yield f"model.{switches[name].option}", switches[name].value
            continue
        if "." not in key:
            require_known(name, known, f"option of {model}")
        yield known.get(name, key), parse_value(text, setting)


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return {"model.name": …} as {"model": {"name": …}}."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        inner = nested
        for step in path:
            inner = inner.setdefault(step, {})
            require(isinstance(inner, dict), f"{step!r} has no parts, so {key!r} cannot be set.")
        require(
            not isinstance(inner.get(last), dict), f"{key!r} has parts, and is no value itself."
        )
        inner[last] = value
    return nested


def _recipe_option(key: str) -> Option:
    from turnwise.training.recipe import Recipe

    kind: Any = Recipe
    *path, last = key.split(".")
    for step in path:
        kind = next(o.hint for o in describe(kind) if o.name == step)
    return next(o for o in describe(kind) if o.name == last)


def option_help(option: Option) -> str:
    """Return the help text of an option, with its choices and its default value."""
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    shown = "none" if default is None or default == "" else default
    choices = [c for c in option.choices if c and c not in option.help]
    words = f"{option.help}: {', '.join(choices)}" if choices else option.help
    return f"{words} (default: {shown})"


def _add(group: Any, names: Sequence[str], key: str, text: str) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    group.add_argument(
        *flags, dest=key, action="append", metavar="VALUE", help=text.replace("%", "%%")
    )
