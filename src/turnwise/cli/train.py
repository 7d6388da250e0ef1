"""turnwise train: from a recipe, or a model and a data set, to a run folder."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.model_words import RUN_FLAGS
from turnwise.cli.notes import tell
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.training.recipe import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [-h] RECIPE [key=value …]\n"
        "       %(prog)s MODEL DATASET [--option VALUE | key=value …]\n"
        "       %(prog)s --resume RUN"
    )
    parser.add_argument(
        "recipe", nargs="?",
        help="a YAML file, see recipes/; or MODEL DATASET, see turnwise train MODEL -h",
    )  # fmt: skip
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="e.g. trainer.max_epochs=5 seed=1"
    )
    for flag, (metavar, text) in RUN_FLAGS.items():
        said = text.replace("DATASET_MODEL", "the recipe's name, or DATASET_MODEL")
        parser.add_argument(f"--{flag.replace('_', '-')}", metavar=metavar, help=said)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")


def train(args: argparse.Namespace) -> int:
    """Train a recipe, or a model on a data set. The run folder keeps the recipe, the metrics and
    the best weights."""
    from turnwise.runs.train import train as run

    recipe, folder = _new(args) if args.resume is None else _resumed(args)
    leads = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
    places: list[Path] = []

    def begins(place: Path) -> None:
        places.append(place)
        if leads and sys.stderr.isatty():
            tell(f"the run is in {place}")

    try:
        done = run(
            recipe, folder, data_dir=args.data_dir, resume=args.resume is not None,
            numbered=not (args.resume or args.output or args.version),
            command=shlex.join(["turnwise", *sys.argv[1:]]), begins=begins,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*_how_to_continue(places, args.data_dir)) from None
    if leads:
        print(f"the run is in {done}; test it with: turnwise test {done}")
    return 0


def _how_to_continue(places: list[Path], data_dir: str | None) -> list[str]:
    """The command, where training began and a whole epoch is there."""
    from turnwise.runs.train import last_checkpoint

    data = ["--data-dir", data_dir] if data_dir else []
    return [
        f"continue with: {shlex.join(['turnwise', 'train', '--resume', str(place), *data])}"
        for place in places
        if last_checkpoint(place).is_file()
    ]


def _new(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    """The recipe, from a file or from settings alone, and the run's folder, or that of all runs."""
    from turnwise.runs.train import FOLDER_VARIABLE
    from turnwise.training.recipe import make_recipe, read_recipe

    if args.recipe is None:
        raise InputError(
            "give a recipe (recipes/*.yaml), MODEL DATASET (turnwise models), or --resume RUN."
        )
    if "=" in args.recipe and not Path(args.recipe).is_file():
        recipe = make_recipe({}, [args.recipe, *args.settings])
        name = f"{Path(recipe.data.name).name}_{recipe.model.name}".replace("folder:", "")
    else:
        recipe, name = read_recipe(args.recipe, args.settings), Path(args.recipe).stem
    if args.output:
        require(
            args.log_path is None and args.exp_name is None and args.version is None,
            "--output is the run's folder itself; leave --log-path, --exp-name and --version out.",
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


def _resumed(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    """The run's own recipe and folder."""
    from turnwise.training.recipe import read_recipe

    for flag in ("output", "log_path", "exp_name", "version"):
        said = f"--{flag.replace('_', '-')}"
        require(
            getattr(args, flag) is None,
            f"--resume continues in its own folder; leave {said} out.",
        )
    settings = [*([args.recipe] if args.recipe else []), *args.settings]
    for setting in settings:
        require(
            setting.startswith("trainer."),
            f"a resumed run keeps its recipe; only trainer.* can be set anew, got {setting!r}.",
        )
    run = Path(args.resume)
    return read_recipe(run / "recipe.yaml", settings), run
