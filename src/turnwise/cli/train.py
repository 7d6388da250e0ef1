"""turnwise train: from a recipe, or a model and a data set, to a run folder."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.model_flags import (
    add_run_flags,
    find_model,
    hyphenate,
    is_model_command,
    model_first,
    parse_model_command,
)
from turnwise.cli.terminal import note
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.runs.run import Run
    from turnwise.training.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [-h] RECIPE [key=value …]\n"
        "       %(prog)s MODEL DATASET [--option VALUE | key=value …]\n"
        "       %(prog)s --resume RUN"
    )
    parser.add_argument(
        "settings", nargs="*", metavar="RECIPE key=value",
        help="a YAML file (recipes/) and settings such as trainer.max_epochs=5; or MODEL DATASET, "
        "see turnwise train MODEL -h",
    )  # fmt: skip
    add_run_flags(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.set_defaults(values=None)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse what follows `turnwise train`; MODEL decides which options there are."""
    first = list(words) if "--resume" in words else model_first(words)
    if is_model_command(first):
        args = parse_model_command(find_model(first[0]), first[1:])
        args.resume, args.settings = None, []
        args.command, args.perform = "train", train
        return args
    return parser.parse_intermixed_args([hyphenate(word) for word in words])


def train(args: argparse.Namespace) -> int:
    """Train a recipe, or a model on a data set. The run folder holds the recipe, the metrics and
    the best weights."""
    from turnwise.runs.train import train as run_training

    recipe, folder = _new(args) if args.resume is None else _resumed(args)
    is_first = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
    started: list[Run] = []

    def on_start(run: "Run") -> None:
        started.append(run)
        if is_first and recipe.data.fill == "auto":
            note(fill_note(run.recipe.data.fill))
        if is_first and sys.stderr.isatty():
            note(f"the run is in {run.path}")

    try:
        run = run_training(
            recipe, folder, data_dir=args.data_dir, resume=args.resume is not None,
            numbered=not (args.resume or args.output or args.version),
            command=shlex.join(["turnwise", *sys.argv[1:]]), on_start=on_start,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*stop.args, *_how_to_continue(started, args.data_dir)) from None
    if is_first:
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
    from turnwise.runs.train import FOLDER_VARIABLE
    from turnwise.training.recipe import make_recipe, read_recipe

    if args.values is not None:
        recipe = make_recipe(args.values)
        name = _default_name(recipe)
    elif not args.settings:
        raise InputError(
            "give a recipe (recipes/*.yaml), MODEL DATASET (turnwise models), or --resume RUN."
        )
    elif "=" in args.settings[0] and not Path(args.settings[0]).is_file():
        recipe = make_recipe({}, args.settings)
        name = _default_name(recipe)
    else:
        path, *settings = args.settings
        recipe, name = read_recipe(path, settings), Path(path).stem
    if args.output:
        require(
            args.log_path is None and args.exp_name is None and args.version is None,
            "--output is the run folder itself; leave --log-path, --exp-name and --version out.",
        )
        return recipe, Path(args.output)
    runs = Path(args.log_path or "runs") / (args.exp_name or name)
    if args.version is not None:
        plain = args.version == Path(args.version).name
        require(plain, f"--version {args.version} must be a name, not a path; give --output.")
        return recipe, runs / args.version
    require(
        "WORLD_SIZE" not in os.environ or FOLDER_VARIABLE in os.environ,
        "several processes share one run, so its folder must be named: give --output.",
    )
    return recipe, runs


def _default_name(recipe: "Recipe") -> str:
    from turnwise.data.sources import short_name

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
