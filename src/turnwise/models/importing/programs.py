"""The programs whose checkpoints can be imported, by name; each importer states what it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from turnwise.errors import require, require_known
from turnwise.models.importing.gsa import ORIGINS, import_original
from turnwise.models.importing.modern import import_modern
from turnwise.models.importing.performer import import_performer
from turnwise.models.importing.roto import ROTO_ORIGINS, import_roto_original
from turnwise.models.importing.vit import import_posthoc, import_vit


@dataclass(frozen=True)
class Importer:
    """How to build a model from a file, and what a user may add that the file does not say."""

    build: Callable[..., nn.Module]
    takes: tuple[str, ...] = ()


PROGRAMS = {
    **{
        origin: Importer(partial(import_original, origin=origin), ("upright", "activation"))
        for origin in ORIGINS
    },
    **{
        origin: Importer(partial(import_roto_original, origin=origin), ("image_size", "classes"))
        for origin in ROTO_ORIGINS
    },
    "relative-performer": Importer(import_performer, ("image_size",)),
    "dl2-vit": Importer(import_vit, ("upright",)),
    "dl2-posthoc": Importer(import_posthoc, ("group", "combine", "upright")),
    "dl2-modern": Importer(import_modern, ("image_size",)),
}


def import_from(path: str | Path, program: str, **options: object) -> nn.Module:
    """Build the model in a checkpoint of `program`, in eval mode."""
    require_known(program, PROGRAMS, "program")
    importer = PROGRAMS[program]
    for name in options:
        require(
            name in importer.takes,
            f"{program} takes no {name}; it takes {', '.join(importer.takes)}.",
        )
    return importer.build(path, **options)
