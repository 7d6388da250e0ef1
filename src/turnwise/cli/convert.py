"""turnwise import and orbit: make a model folder from other weights, or from a trained model."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.model_flags import option_help
from turnwise.cli.terminal import MODEL_HELP
from turnwise.errors import require, require_known

if TYPE_CHECKING:
    from torch import nn

    from turnwise.models.orbits import Orbit
    from turnwise.runs.run import Run


IMPORT_FLAGS = {  # flag: (what it sets, its help)
    "size": ("image_size", "side of the images, where the weights do not determine it"),
    "classes": (
        "classes", "keep the first N outputs: the MetaFormer programs have 1,000 and use the first"
    ),
    "upright": (
        "upright", "it was trained on upright digits; else the images of a rotated-MNIST network "
        "are transposed first, as its program reads them"
    ),
    "activation": ("activation", "silu (their Swish, the default) or relu"),
    "group": ("group", "the rotations of an orbit: D4 (default), C4, C16, …"),
    "combine": ("combine", "how an orbit without learned weights combines its views"),
}  # fmt: skip


def import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a state dict or checkpoint that torch.save wrote")
    parser.add_argument(
        "--from", dest="origin", required=True, metavar="PROGRAM",
        help="gsa-nets, ge-vit, roto-metaformer, metaformer (of the same program), poolformer, "
        "relative-performer (its four Performers), dl2-vit, dl2-posthoc or dl2-modern (ViT, "
        "orbits, and fast GE-ViTs of GEVit-DL2-Project)",
    )  # fmt: skip
    for flag, (name, text) in IMPORT_FLAGS.items():
        kind: dict[str, Any] = {"metavar": "VALUE"}
        if name in ("image_size", "classes"):
            kind = {"type": int, "metavar": "PIXELS" if name == "image_size" else "N"}
        if name == "upright":
            kind = {"action": "store_const", "const": True}
        parser.add_argument(f"--{flag}", dest=name, help=text, **kind)
    _add_output(parser)


def import_weights(args: argparse.Namespace) -> int:
    """Convert weights that another program trained into a model folder with the same predictions.
    Group, window and sizes are inferred from the file. Nothing in it is executed."""
    from turnwise.models import save
    from turnwise.models.importing.programs import PROGRAMS, import_from

    require_known(args.origin, PROGRAMS, "program")
    given = {name: getattr(args, name) for name, _ in IMPORT_FLAGS.values()}
    options = {name: value for name, value in given.items() if value is not None}
    for flag, (name, _) in IMPORT_FLAGS.items():
        takers = [program for program, importer in PROGRAMS.items() if name in importer.takes]
        require(
            name not in options or args.origin in takers,
            f"--{flag} is for {', '.join(takers)}; leave it out for {args.origin}.",
        )
    with new_folder(args.output) as folder:
        model = import_from(args.file, args.origin, **options)
        save(model, folder)
    print(f"{args.file} is {describe_import(model)}")
    print(f"written to {folder}; measure it with: turnwise certify {shlex.quote(str(folder))}")
    return 0


def describe_import(model: "nn.Module") -> str:
    """Return what was recognised in the file, in one line."""
    from turnwise.groups import PlanarGroup
    from turnwise.models.registry import config_of

    config = config_of(model)
    options, group = config.options, PlanarGroup.named(config.options["group"])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = [f"group {group} ({group.aliases[0]})" if group.aliases else f"group {group}"]
    if "window" in options and "data" in options:
        window = "global" if options["window"] == options["image_size"] else options["window"]
        facts += [f"data {options['data']}", f"window {window}"]
    name = f"{config.name} ({options['variant']})" if "variant" in options else config.name
    if options.get("transposed"):
        facts.append("images transposed first (--upright: not)")
    return ", ".join([name, *facts, f"{options['num_classes']} classes, {parameters} parameters"])


def orbit_arguments(parser: argparse.ArgumentParser) -> None:
    from turnwise.models.orbits import OrbitDesign
    from turnwise.options import describe

    texts = {o.name: option_help(o) for o in describe(OrbitDesign)}
    parser.add_argument("model", metavar="RUN", help=MODEL_HELP)
    parser.add_argument("--group", default="C4", help="C4, D4, C16, … (default: C4)")
    parser.add_argument("--combine", default="mean", help=texts["combine"])
    parser.add_argument("--mask", action="store_true", help=texts["mask"])
    parser.add_argument("--background", type=float, default=0.0, help=texts["background"])
    parser.add_argument("--chunk", type=int, default=0, help=texts["chunk"])
    _add_output(parser)


def make_orbit(args: argparse.Namespace) -> int:
    """Make a trained model invariant under a group: run it on all transformed copies of an image
    and combine the outputs. A run becomes a run, which can be tested; a model folder becomes a
    model folder."""
    from turnwise.data.targets import kind_of
    from turnwise.inference.loading import open_trained
    from turnwise.models import orbit, save
    from turnwise.models.registry import config_of
    from turnwise.runs.run import Run

    origin = Run(args.model)
    with new_folder(args.output) as folder:
        inner = open_trained(args.model)
        name = config_of(inner).name
        require(not name.startswith("orbit_"), f"{origin.path} is an orbit already ({name}).")
        model = orbit(
            inner, args.group, args.combine,
            mask=args.mask, background=args.background, chunk=args.chunk,
        )  # fmt: skip
        classes = getattr(inner, "classes", ())
        model.target = kind_of(inner).without_decisions().plain()
        if origin.exists:
            _write_run(model, classes, origin, Run(folder))
        else:
            save(model, folder, classes=classes)
    print(describe_orbit(model, name, origin))
    next_command = "test" if origin.exists else "certify"
    print(f"written to {folder}; measure it with: turnwise {next_command} {folder}")
    return 0


def _write_run(model: "Orbit", classes: tuple[str, ...], origin: "Run", run: "Run") -> None:
    """Write a run with the same recipe and data, and the new model; it has no metrics."""
    from dataclasses import asdict

    from turnwise.models.registry import config_of
    from turnwise.training.recipe import make_recipe

    values, config = origin.recipe.plain(), config_of(model)
    around = {"base_group": config.options["base_group"], **asdict(model.design)}
    values["model"] |= {"name": config.name, "group": model.group.name, **around}
    run.save_model(model, classes)
    run.write_environment(
        origin.environment
        | {
            "orbit_of": str(origin.path.resolve()),
            "command": shlex.join(["turnwise", *sys.argv[1:]]),
        }
    )
    run.write_recipe(make_recipe(values))


def describe_orbit(model: "Orbit", name: str, origin: "Run") -> str:
    """Return what was made, where it is exact, and how to train it if it must be trained."""
    from turnwise.layers.orbit.combinations import LEARNED

    group, combine = model.group, model.design.combine
    exact = group.exact_subgroup()
    rest = "" if exact == group else "; other angles are interpolated and approximate"
    lines = [
        f"{name} on {group.order} transformed copies ({group.name}), combined by {combine}; "
        f"exactly invariant under {exact.name}{rest}"
    ]
    if combine in LEARNED:
        lines.append(_how_to_train(model, origin))
    return "\n".join(lines)


def _how_to_train(model: "Orbit", origin: "Run") -> str:
    """Return the command that trains the combination; a model folder has no recipe for it."""
    from turnwise.models.registry import config_of
    from turnwise.options import describe

    start = "the combination is not trained yet and is the mean of the features; to train it"
    config = config_of(model)
    defaults = {o.name: o.default for o in describe(type(model.design))}
    chosen = {key: getattr(model.design, key) for key in defaults}
    changed = {key: value for key, value in chosen.items() if value != defaults[key]}
    settings = {
        "name": config.name,
        "group": model.group.name,
        "base_group": config.options["base_group"],
        **changed,
        "tune": "none",
        "weights": str(origin.path),
    }
    words = [f"model.{key}={value}" for key, value in settings.items() if value != ""]
    if not origin.exists:
        return f"{start}, write a recipe for your data with {' '.join(words)}"
    return f"{start}:\n  {shlex.join(['turnwise', 'train', str(origin.recipe_file), *words])}"


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new folder")


@contextmanager
def new_folder(path: str) -> Iterator[Path]:
    """Yield a folder to fill, which must be missing or empty; remove it if filling it fails."""
    folder = Path(path)
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} exists and is not an empty folder; choose another --output.",
    )
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
