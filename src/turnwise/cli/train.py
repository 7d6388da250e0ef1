"""turnwise train: from a recipe to a run folder."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from turnwise.checks import InputError, require


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", help="a YAML file; see recipes/")
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="e.g. trainer.max_epochs=5 seed=1"
    )
    parser.add_argument("--output", help="the run's folder (default: runs/RECIPE/version_N)")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")


def train(args: argparse.Namespace) -> int:
    """Train a recipe; the run folder keeps the recipe, the metrics and the best weights."""
    from turnwise.training.recipe import read_recipe
    from turnwise.training.run import FOLDER_VARIABLE, next_folder
    from turnwise.training.run import train as run

    path, overrides, folder = _sources(args)
    recipe = read_recipe(path, overrides)
    if folder is None:
        require(
            "WORLD_SIZE" not in os.environ or FOLDER_VARIABLE in os.environ,
            "several processes share one run, so its folder must be named: give --output.",
        )
        folder = next_folder(Path("runs") / Path(path).stem)
    command = shlex.join(["turnwise", *sys.argv[1:]])
    done = run(
        recipe, folder, data_dir=args.data_dir, resume=args.resume is not None, command=command
    )
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0:
        print(f"the run is in {done}; test it with: turnwise test {done}")
    return 0


def _sources(args: argparse.Namespace) -> tuple[str, list[str], Path | None]:
    """Recipe file, overrides and folder; with --resume the recipe is the run's own."""
    if args.resume is None:
        if args.recipe is None:
            raise InputError("give a recipe (recipes/*.yaml), or --resume RUN.")
        return args.recipe, args.settings, Path(args.output) if args.output else None
    require(args.output is None, "--resume continues in its own folder; leave --output out.")
    settings = [*([args.recipe] if args.recipe else []), *args.settings]
    for setting in settings:
        require(
            setting.startswith("trainer."),
            f"a resumed run keeps its recipe; only trainer.* can be set anew, got {setting!r}.",
        )
    run = Path(args.resume)
    return str(run / "recipe.yaml"), settings, run
