"""turnwise train: from a recipe, or a model and a data set, to a run folder."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.model_flags import (
    add_run_flags,
    alone,
    find_model,
    hyphenate,
    is_model_command,
    model_first,
    parse_model_command,
)
from turnwise.cli.published import in_our_words
from turnwise.cli.terminal import note
from turnwise.data.sources import FOLDER, own_reader, short_name
from turnwise.errors import InputError, require
from turnwise.training.shipped import find_recipe

if TYPE_CHECKING:
    from turnwise.data import Dataset
    from turnwise.runs.run import Run
    from turnwise.training.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [-h] RECIPE [DATASET] [key=value …]\n"
        "       %(prog)s DATASET --minutes M [key=value …]\n"
        "       %(prog)s MODEL DATASET [--option VALUE | key=value …]\n"
        "       %(prog)s --resume RUN"
    )
    parser.add_argument(
        "settings", nargs="*", metavar="RECIPE key=value",
        help="a YAML file or the name of a recipe that ships with turnwise, and settings such as "
        "trainer.max_epochs=5; or a data set and --minutes; or MODEL DATASET, see turnwise train "
        "MODEL -h",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float, metavar="M",
        help="choose model, size, epochs and augmentation for a data set (folder:PATH, a table, or "
        "one of turnwise datasets), so that training ends within M minutes",
    )  # fmt: skip
    add_run_flags(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.set_defaults(values=None)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse what follows `turnwise train`; MODEL decides which options there are."""
    first = list(words) if "--resume" in words else model_first(in_our_words(words))
    if is_model_command(first) and not _has_minutes(words) and find_recipe(first[0]) is None:
        args = parse_model_command(find_model(first[0]), first[1:])
        args.resume, args.minutes, args.settings = None, None, []
        args.command, args.perform = "train", train
        return args
    return parser.parse_intermixed_args([hyphenate(word) for word in words])


def _has_minutes(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--minutes" for word in words)


def train(args: argparse.Namespace) -> int:
    """Train a recipe, a model on a data set, or what suits a data set in some minutes. The run
    folder holds the recipe, the metrics and the best weights."""
    began = time.monotonic()
    from turnwise.runs.train import train as run_training

    dataset = None
    if args.minutes is not None:
        recipe, folder, dataset = _planned(args, began)
    else:
        recipe, folder = _new(args) if args.resume is None else _resumed(args)
    is_first = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
    started: list[Run] = []

    def on_start(run: "Run") -> None:
        started.append(run)
        if is_first and sys.stderr.isatty():
            note(f"the run is in {run.path}")

    try:
        run = run_training(
            recipe, folder, data_dir=args.data_dir, dataset=dataset, resume=args.resume is not None,
            numbered=not (args.resume or args.output or args.version),
            command=shlex.join(["turnwise", *sys.argv[1:]]), on_start=on_start,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*stop.args, *_how_to_continue(started, args.data_dir)) from None
    if is_first:
        if recipe.data.fill == "auto":
            note(fill_note(run.recipe.data.fill))
        if args.minutes is not None:
            print(f"the recipe is {run.recipe_file}; with it the training can be repeated")
        print(f"the run is in {run.path}; test it with: turnwise test {shlex.quote(str(run.path))}")
    return 0


def fill_note(fill: str) -> str:
    """Return what the fill mode was inferred from, and how to change it."""
    reason = "most borders are black" if fill == "zeros" else "the borders are not black"
    return f"rotated images are filled with data.fill={fill}, because {reason}; set it to change it"


def _how_to_continue(started: "list[Run]", data_dir: str | None) -> list[str]:
    """Return the command that continues the run, if an epoch is stored."""
    data = ["--data-dir", data_dir] if data_dir else []
    return [
        f"continue with: {shlex.join(['turnwise', 'train', '--resume', str(run.path), *data])}"
        for run in started
        if run.is_resumable
    ]


def _new(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    """Return the recipe, and the run folder or the folder of numbered runs."""
    from turnwise.training.recipe import make_recipe, read_recipe

    if args.values is not None:
        recipe = make_recipe(args.values)
        name = _default_name(recipe)
    elif not args.settings:
        raise InputError(
            "give a recipe (a file or a name), DATASET --minutes M, MODEL DATASET (turnwise "
            "models), or --resume RUN."
        )
    elif "=" in args.settings[0] and not Path(args.settings[0]).is_file():
        recipe = make_recipe({}, args.settings)
        name = _default_name(recipe)
    else:
        path, *settings = args.settings
        require(own_reader(path) is None, alone(path))
        shipped = None if Path(path).is_file() else find_recipe(path)
        source = settings.pop(0) if settings and _is_source(settings[0]) else None
        recipe, name = read_recipe(shipped or path, settings), Path(path).stem
        if source is not None:
            recipe = replace(recipe, data=replace(recipe.data, name=source))
            name = f"{short_name(source)}_{name}"
    return recipe, _folder(args, name)


def _is_source(word: str) -> bool:
    """Return whether a word after a recipe names a data set; others are settings."""
    from turnwise.data import CATALOGUE

    is_own = own_reader(word) is not None and ("=" not in word or word.startswith(FOLDER))
    return is_own or word in CATALOGUE


def _planned(args: argparse.Namespace, began: float) -> "tuple[Recipe, Path, Dataset]":
    """Choose what to train on a data set in the given minutes, and print the choice."""
    from turnwise.runs.planning import plan_training

    require(args.resume is None, "--minutes starts a new run; leave --resume out.")
    require(bool(args.settings), "give a data set before --minutes, such as folder:PATH.")
    source, *settings = args.settings
    for setting in settings:
        require(
            "=" in setting,
            f"with --minutes only settings such as model.group=D1 may follow {source}, got "
            f"{setting!r}; the model is chosen.",
        )
    plan = plan_training(source, args.minutes, settings, data_dir=args.data_dir, began=began)
    print("\n".join(plan.reasons), flush=True)
    return plan.recipe, _folder(args, f"{short_name(source)}_chosen"), plan.dataset


def _folder(args: argparse.Namespace, name: str) -> Path:
    """Return the run folder, or the folder of numbered runs called `name`."""
    from turnwise.runs.train import FOLDER_VARIABLE

    if args.output:
        require(
            args.log_path is None and args.exp_name is None and args.version is None,
            "--output is the run folder itself; leave --log-path, --exp-name and --version out.",
        )
        return Path(args.output)
    runs = Path(args.log_path or "runs") / (args.exp_name or name)
    if args.version is not None:
        plain = args.version == Path(args.version).name
        require(plain, f"--version {args.version} must be a name, not a path; give --output.")
        return runs / args.version
    require(
        "WORLD_SIZE" not in os.environ or FOLDER_VARIABLE in os.environ,
        "several processes share one run, so its folder must be named: give --output.",
    )
    return runs


def _default_name(recipe: "Recipe") -> str:
    return f"{short_name(recipe.data.name)}_{recipe.model.name}"


def _resumed(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    """Return the recipe and the folder of the run to continue."""
    from turnwise.runs.run import Run

    for flag in ("output", "log_path", "exp_name", "version"):
        require(
            getattr(args, flag) is None,
            f"--resume continues in its own folder; leave --{flag.replace('_', '-')} out.",
        )
    for setting in args.settings:
        require(
            setting.startswith("trainer."),
            f"a resumed run keeps its recipe; only trainer.* can be changed, got {setting!r}.",
        )
    run = Run(args.resume)
    return run.read_recipe(tuple(args.settings)), run.path
