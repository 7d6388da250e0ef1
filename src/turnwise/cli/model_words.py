"""turnwise train MODEL DATASET: a recipe in words, as the program of the Performers was called.

    turnwise train performer mnist --width 128 --image-size 32 epochs=5
    turnwise train model.name=performer data.name=mnist model.width=128 …      the same, spelled out

Options are the model's own and a few of the recipe's; `--width 128`, `--width=128` and `width=128`
say the same, as does the name that the published program has for it.  Whatever else a recipe holds
is set by its full name: optimisation.weight_decay=0.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.cli.option_help import option_texts
from turnwise.errors import InputError, require, require_known

RECIPE_WORDS = {
    "group": ("model.group", "C1, C4, D4, …"),
    "image_size": ("data.image_size", "pixels that pictures are resampled to"),
    "batch_size": ("optimisation.batch_size", ""),
    "learning_rate": ("optimisation.learning_rate", ""),
    "schedule": ("optimisation.schedule", "cosine, constant or noam"),
    "warmup": ("optimisation.warmup_steps", "steps in which the rate rises"),
    "epochs": ("trainer.max_epochs", ""),
    "patience": ("trainer.patience", "epochs without progress before it stops"),
    "seed": ("seed", ""),
}
PUBLISHED = {
    "dim": "width",
    "embedding_type": "embedding",
    "attn_dropout": "attention_dropout",
    "feature_redraw_interval": "redraw_interval",
    "clipping_dist": "clipping_distance",
}
IGNORED = ("content_rel_attn",)
RUN_FLAGS = {
    "output": ("FOLDER", "the run's folder (default: LOG/EXP/NAME)"),
    "log_path": ("LOG", "the folder of all experiments (default: runs)"),
    "exp_name": ("EXP", "the experiment in it (default: DATASET_MODEL)"),
    "version": ("NAME", "the run in that (default: version_N, the next number)"),
    "data_dir": ("FOLDER", "where the data sets are (default: $TURNWISE_DATA)"),
}


def hyphened(word: str) -> str:
    """--min_shift=8 as --min-shift=8: in the name of a flag both mean the same."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def spelled_out(words: Sequence[str]) -> list[str]:
    """What follows `turnwise train`, with MODEL DATASET and options as settings of a recipe.

    A recipe file, or nothing but settings, stays as it is.  MODEL decides which options there are;
    with --help behind it they are shown, and the program ends.
    """
    given, words = list(words), _model_first(words)
    first = words[0] if words else "-"
    if first.startswith("-") or any(sign in first for sign in "=./") or Path(first).is_file():
        return given
    model = _known_model(first)
    _refuse_ignored(words[1:])
    typed = {_as_ours(word): word for word in words[1:]}
    args, rest = _parser(model).parse_known_args([_as_ours(word) for word in words[1:]])
    strange = [typed.get(word, word) for word in rest if word.startswith("-") or "=" not in word]
    require(not strange, f"unknown to {model}: {' '.join(strange)}; see turnwise train {model} -h.")
    if args.dataset is None or ("=" in args.dataset and not args.dataset.startswith("folder:")):
        raise InputError(f"give a data set after {model}; `turnwise datasets` lists them.")
    chosen = vars(args)
    flags = [f"--{key.replace('_', '-')}={chosen[key]}" for key in RUN_FLAGS if chosen[key]]
    known = _recipe_keys(model)
    said = (key for key in known if key not in RUN_FLAGS and chosen[key] is not None)
    options = {"model.name": model, "data.name": _known_data(args.dataset)}
    options |= {known[key]: chosen[key] for key in said}
    settings = [said for word in (*args.settings, *rest) for said in _full_names(model, word)]
    _refuse_two_values(options, settings)
    return [*(f"{key}={value}" for key, value in options.items()), *settings, *flags]


def _model_first(words: Sequence[str]) -> list[str]:
    """The first word that is no flag, and no value of one, before those that stand ahead of it."""
    ahead = 0
    while ahead < len(words) and words[ahead].startswith("--"):
        alone = "=" in words[ahead] or hyphened(words[ahead]) in ("--help", "--no-projection")
        ahead += 1 if alone else 2
    first, after = words[ahead : ahead + 1], words[ahead + 1 :]
    return list(words) if "--resume" in words else [*first, *words[:ahead], *after]


def _refuse_two_values(options: Mapping[str, str], settings: Sequence[str]) -> None:
    """--width 32 width=16: either might be what is meant."""
    for setting in settings:
        key, _, value = setting.partition("=")
        require(
            options.get(key, value) == value,
            f"{key} is given twice, as {options.get(key)} and as {value}; leave one out.",
        )


def _known_model(word: str) -> str:
    """The model called `word`, which may be written as a class is: RelativePerformer."""
    from turnwise.models import list_models

    plain = {name.replace("_", ""): name for name in list_models()}
    found = plain.get(word.replace("_", "").lower(), word)
    if found not in plain.values():
        try:
            require_known(found, plain.values(), "model or recipe")
        except InputError as error:
            hint = str(error).partition(" Known:")[0]
            raise InputError(
                f"{hint} Give a recipe (recipes/*.yaml), or one of `turnwise models`."
            ) from None
    return found


def _known_data(word: str) -> str:
    """The data set as the catalogue spells it: MNIST is mnist; a path in quotes, as YAML needs."""
    return json.dumps(word) if word.startswith("folder:") else word.lower()


def _recipe_keys(model: str) -> dict[str, str]:
    """Each word that needs no prefix, and where a recipe has it."""
    from turnwise.models import model_options

    own = {option: f"model.{option}" for option in model_options(model)}
    return own | {word: key for word, (key, _) in RECIPE_WORDS.items()}


def _full_names(model: str, setting: str) -> list[str]:
    """`width=128` as `model.width=128`; a name with a dot is full already.

    The published switch may say nothing: `no_projection=false`.
    """
    key, equals, value = setting.partition("=")
    word = PUBLISHED.get(key.replace("-", "_"), key.replace("-", "_"))
    if "." in key or not equals:
        return [setting]
    known = _recipe_keys(model)
    if word == "no_projection" and _has_switch(model):
        switched = {"true": [f"{known['kernel']}=softmax"], "false": []}
        require(value.lower() in switched, f"{setting} must be true or false.")
        return switched[value.lower()]
    require_known(word, known, f"option of {model}")
    return [f"{known[word]}={value}"]


def _has_switch(model: str) -> bool:
    """Whether --no_projection is there: the published clipped model has it not."""
    from turnwise.models import model_options

    options = model_options(model)
    return "redraw_interval" in options and "clipping_distance" not in options


def _refuse_ignored(words: Sequence[str]) -> None:
    for word in words:
        key = word.partition("=")[0].removeprefix("--").replace("-", "_")
        require(
            key not in IGNORED,
            f"{word} is not there: the published program took it and ignored it; leave it out.",
        )


def _as_ours(word: str) -> str:
    """--attn_dropout=0 as --attention-dropout=0: one spelling, and our names."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word[2:].partition("=")
    said = flag.replace("-", "_")
    return hyphened(f"--{PUBLISHED.get(said, said)}{equals}{value}")


def _parser(model: str) -> argparse.ArgumentParser:
    """The command line of one model, with all its options in the help."""
    from turnwise.models import describe_model, model_options

    options, texts = model_options(model), option_texts(model)
    theirs = [f"--{said} is --{ours}" for said, ours in PUBLISHED.items() if ours in options]
    parser = argparse.ArgumentParser(
        prog=f"turnwise train {model}", allow_abbrev=False,
        usage="%(prog)s DATASET\n           [--option VALUE | key=value …]",
        description=f"{describe_model(model)} Options may also be written width=128; whatever "
        "else a recipe holds is set by its full name, e.g. optimisation.weight_decay=0.",
        epilog=f"As in the published program {', '.join(theirs)}."
        if "redraw_interval" in options else None,
    )  # fmt: skip
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="see turnwise datasets")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="e.g. seed=1")
    taken = [f"{option}=VALUE {_shown(options[option])}" for option in RUN_FLAGS & options.keys()]
    only = f"without dashes, which mean the run's: {', '.join(taken)}" if taken else None
    own = parser.add_argument_group(f"options of {model}", only)
    for option, default in options.items():
        if option not in RUN_FLAGS:
            _add(own, option, f"{texts.get(option, '')} {_shown(default)}")
    if _has_switch(model):
        own.add_argument("--no-projection", dest="kernel", action="store_const", const="softmax",
                         help="the same as --kernel softmax; relative_performer takes it with "
                         "--variant tep-2021")  # fmt: skip
    training = parser.add_argument_group("training")
    for word, (key, text) in RECIPE_WORDS.items():
        _add(training, word, f"{text} {_shown(_recipe_default(model, key))}")
    run = parser.add_argument_group("the run")
    for flag, (metavar, text) in RUN_FLAGS.items():
        _add(run, flag, text, metavar)
    return parser


def _recipe_default(model: str, key: str) -> Any:
    """What a recipe says that leaves `key` out."""
    from turnwise.training.recipe import make_recipe

    found: Any = make_recipe({"model": {"name": model}, "data": {"name": "digits"}}).plain()
    for part in key.split("."):
        found = found[part]
    return found


def _shown(default: Any) -> str:
    value = list(default) if isinstance(default, tuple) else default
    said = "none" if value is None or value == "" else value
    return f"(default: {said})"


def _add(group: Any, word: str, text: str, metavar: str = "VALUE") -> None:
    said = text.strip().replace("%", "%%")
    group.add_argument(f"--{word.replace('_', '-')}", dest=word, metavar=metavar, help=said)
