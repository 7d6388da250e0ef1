"""turnwise import: from the weights of another program to a model folder."""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import require, require_known

if TYPE_CHECKING:
    from torch import nn


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a state dict that torch.save wrote")
    parser.add_argument(
        "--from",
        dest="origin",
        required=True,
        metavar="PROGRAM",
        help="gsa-nets, ge-vit, roto-metaformer, metaformer (of the same program) or poolformer",
    )
    parser.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="the side of the pictures, which a MetaFormer's weights do not tell",
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new model folder")


def import_(args: argparse.Namespace) -> int:
    """Turn weights that another program trained into a model folder that answers as it does.
    Group, window and sizes are read off the file, and nothing in it is executed."""
    from turnwise.models import save
    from turnwise.models.importing.gsa import ORIGINS, import_original
    from turnwise.models.importing.roto import ROTO_ORIGINS, import_roto_original

    require_known(args.origin, [*ORIGINS, *ROTO_ORIGINS], "program")
    require(
        args.size is None or args.origin in ROTO_ORIGINS,
        f"--size goes with {', '.join(ROTO_ORIGINS)}: a file of {args.origin} tells its own.",
    )
    folder = Path(args.output)
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} exists and is not an empty folder; choose another --output.",
    )
    if args.origin in ROTO_ORIGINS:
        model = import_roto_original(args.file, args.origin, args.size)
    else:
        model = import_original(args.file, args.origin)
    try:
        save(model, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what was not there, or empty, is not half full
        raise
    print(f"{args.file} is {describe(model)}")
    print(f"written to {folder}; measure it with: turnwise certify {folder}")
    return 0


import_.__name__ = "import"  # the command's name, which Python keeps for itself


def describe(model: "nn.Module") -> str:
    """What was recognised, in one line."""
    from turnwise.groups import PlanarGroup
    from turnwise.models.registry import config_of

    config = config_of(model)
    options, group = config.options, PlanarGroup.named(config.options["group"])
    weights = sum(parameter.numel() for parameter in model.parameters())
    facts = [f"group {group} ({group.aliases[0]})" if group.aliases else f"group {group}"]
    if "variant" in options:
        window = "global" if options["window"] == options["image_size"] else options["window"]
        facts += [f"data {options['data']}", f"window {window}"]
    name = f"{config.name} ({options['variant']})" if "variant" in options else config.name
    return ", ".join([name, *facts, f"{options['num_classes']} classes, {weights} parameters"])
