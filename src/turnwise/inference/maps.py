"""Maps of a slide, stitched from the probabilities of its tiles.

A map has one cell for each step between tiles, so that it rotates exactly with the slide.  TIFF and
Zarr hold the probabilities, (class, row, col), NaN on background; PNG shows the predicted class.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from turnwise.errors import import_extra, require_known
from turnwise.files import fill_atomic
from turnwise.geometry.tiles import TilePlan, stitch_tiles
from turnwise.inference.sources import SlideTiles, Source

FORMATS = ("png", "tif", "zarr")
COLOURS = np.asarray([  # background, then as many classes as have a colour of their own
    [255, 255, 255], [31, 119, 180], [255, 127, 14], [44, 160, 44], [214, 39, 40], [148, 103, 189],
    [140, 86, 75], [227, 119, 194], [127, 127, 127], [188, 189, 34], [23, 190, 207],
], dtype=np.uint8)  # fmt: skip

Map = Float[Tensor, "channel row col"]


def cells_of(plan: TilePlan) -> tuple[int, int]:
    """Return the size of a map, one cell for each step of the tiles."""
    step = plan.side - plan.overlap
    return max(1, round(plan.rows / step)), max(1, round(plan.cols / step))


def stitch_maps(
    sources: Sequence[Source], chunks: Iterable[Mapping[str, NDArray[Any]]]
) -> dict[str, Map]:
    """Return the map of each slide from the columns slide, tile and probabilities of a job."""
    plans = {source.path: source.plan for source in sources if isinstance(source, SlideTiles)}
    values = dict[str, Tensor]()
    for columns in chunks:
        if "probabilities" not in columns:
            continue
        found = torch.from_numpy(columns["probabilities"])
        tiles = torch.from_numpy(columns["tile"])
        for slide in set(columns["slide"].tolist()):
            own = torch.from_numpy(columns["slide"] == slide)
            blank = found.new_full((len(plans[slide]), found.shape[1]), torch.nan)
            values.setdefault(slide, blank)[tiles[own]] = found[own]
    return {
        slide: stitch_tiles(plans[slide], found, cells_of(plans[slide]))
        for slide, found in values.items()
    }


def require_map_format(kind: str) -> None:
    """Raise before any work if a map cannot be written in this format."""
    require_known(kind, FORMATS, "format of a map")
    if kind != "png":
        import_extra({"tif": "tifffile", "zarr": "zarr"}[kind], "slides", f"a map in {kind}")


def write_map(path: Path, probabilities: Map) -> None:
    """Write a map as PNG, TIFF or Zarr, by the suffix of the file."""
    kind = path.suffix.lower().removeprefix(".")
    require_map_format(kind)
    if kind == "png":
        fill_atomic(path, lambda file: Image.fromarray(class_colours(probabilities)).save(file))
    elif kind == "tif":
        tifffile = import_module("tifffile")
        fill_atomic(path, lambda file: tifffile.imwrite(file, probabilities.numpy()))
    else:
        zarr, temporary = import_module("zarr"), path.with_name(f".{path.name}")
        zarr.save_array(str(temporary), probabilities.numpy())
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)


def class_colours(probabilities: Map) -> NDArray[np.uint8]:
    """Return the colour of the most likely class in each cell; background is white."""
    known = ~probabilities.isnan().any(dim=0)
    classes = probabilities.nan_to_num(0.0).argmax(dim=0) % (len(COLOURS) - 1) + 1
    return COLOURS[torch.where(known, classes, 0).numpy()]
