"""turnwise import: from the weights of another program to a model folder."""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.checks import require, require_known

if TYPE_CHECKING:
    from torch import nn


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a state dict that torch.save wrote")
    parser.add_argument(
        "--from", dest="origin", required=True, metavar="PROGRAM", help="gsa-nets or ge-vit"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new model folder")


def import_(args: argparse.Namespace) -> int:
    """Turn weights that GSA-Nets or GE-ViT trained into a model folder that answers as they do.
    Group, window and sizes are read off the file, and nothing in it is executed."""
    from turnwise.models import save
    from turnwise.models.originals import ORIGINS, import_original

    require_known(args.origin, ORIGINS, "program")
    folder = Path(args.output)
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} exists and is not an empty folder; choose another --output.",
    )
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
    window = "global" if options["window"] == options["image_size"] else options["window"]
    return (
        f"{config.name} ({options['variant']}), group {group} ({group.aliases[0]}), "
        f"data {options['data']}, window {window}, {options['num_classes']} classes, "
        f"{weights} parameters"
    )
