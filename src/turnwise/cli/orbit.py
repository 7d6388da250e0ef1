"""turnwise orbit: a trained model, made invariant without training."""

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.models.orbits import Orbit


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run, a model folder or shipped weights")
    parser.add_argument("--group", default="C4", help="C4, D4, C16, … (default: C4)")
    parser.add_argument("--combine", default="mean", help="mean, max, most_certain, … (mean)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument("--mask", action="store_true", help="look at the disc in the picture alone")
    parser.add_argument(
        "--background", type=float, default=0.0, help="level outside the picture, 0 to 1 (0)"
    )
    parser.add_argument("--chunk", type=int, default=0, help="views at a time (default: all)")


def orbit(args: argparse.Namespace) -> int:
    """Make a trained model invariant under a group: its answers to all views of a picture are
    combined. A run becomes a run, which can be tested; a model folder becomes a model folder."""
    from turnwise.models import load, save
    from turnwise.models import orbit as wrap
    from turnwise.models.registry import config_of

    folder, origin = Path(args.output), Path(args.run)
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} exists and is not an empty folder; choose another --output.",
    )
    inner = load(origin)
    name = config_of(inner).name
    require(not name.startswith("orbit_"), f"{origin} is an orbit already ({name}).")
    model = wrap(
        inner, args.group, args.combine,
        mask=args.mask, background=args.background, chunk=args.chunk,
    )  # fmt: skip
    is_run = (origin / "recipe.yaml").is_file()
    try:
        classes = getattr(inner, "classes", ())
        save(model, folder / "model" if is_run else folder, classes=classes)
        if is_run:
            _write_run(model, origin, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what was not there, or empty, is not half full
        raise
    print(describe(model, name, origin))
    next_ = "test" if is_run else "certify"
    print(f"written to {folder}; measure it with: turnwise {next_} {folder}")
    return 0


def _write_run(model: "Orbit", origin: Path, folder: Path) -> None:
    """The recipe and data of the run, with the model as it is now; no training, so no metrics."""
    from dataclasses import asdict

    from turnwise.files import write_atomic, write_json
    from turnwise.models.registry import config_of
    from turnwise.training.recipe import make_recipe, read_recipe

    values, config = read_recipe(origin / "recipe.yaml").plain(), config_of(model)
    around = {"base_group": config.options["base_group"], **asdict(model.plan)}
    values["model"] |= {"name": config.name, "group": model.group.name, **around}
    path = origin / "environment.json"
    try:
        environment = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read, so {origin} is no whole run.") from error
    environment |= {
        "orbit_of": str(origin.resolve()),
        "command": shlex.join(["turnwise", *sys.argv[1:]]),
    }
    write_atomic(folder / "recipe.yaml", make_recipe(values).yaml().encode())
    write_json(folder / "environment.json", environment)


def describe(model: "Orbit", name: str, origin: Path) -> str:
    """What was made, where it is exact, and what it still needs, in one or two lines."""
    from turnwise.layers.orbit.combinations import LEARNED

    group = model.group
    exact = group.exact_subgroup()
    views = f"{name} in {group.order} views ({group.name}), combined by {model.plan.combine}"
    rest = "" if exact == group else ", the angles between are interpolated and approximate"
    lines = [f"{views}; exactly invariant under {exact.name}{rest}"]
    if model.plan.combine in LEARNED:
        lines.append(_how_to_train(model, origin))
    return "\n".join(lines)


def _how_to_train(model: "Orbit", origin: Path) -> str:
    """The command that trains what combines the views of a run; a bare model has no recipe."""
    from dataclasses import asdict, fields

    from turnwise.models.registry import config_of

    said = "not trained yet, the combination is the mean of the features; to train it"
    config = config_of(model)
    usual = {field.name: field.default for field in fields(model.plan)}
    plan = {key: value for key, value in asdict(model.plan).items() if value != usual[key]}
    around = {"base_group": config.options["base_group"], **plan, "tune": "none"}
    told = {"name": config.name, "group": model.group.name, **around, "weights": str(origin)}
    words = [f"model.{key}={value}" for key, value in told.items() if value != ""]
    if not (origin / "recipe.yaml").is_file():
        return f"{said}, write a recipe for your data with {' '.join(words)}"
    return f"{said}:\n  {shlex.join(['turnwise', 'train', f'{origin}/recipe.yaml', *words])}"
