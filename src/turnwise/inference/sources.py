"""Where images come from, as coordinates: a file, an array in a file, or a tile of a slide.

A source is small and can be sent to another process.  Pixels are read by `read`, in the worker.
"""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.readers.image_files import SUFFIXES, decode, image_files_below
from turnwise.data.readers.manifests import PATHS, read_csv, read_parquet
from turnwise.data.readers.npz import read_arrays
from turnwise.data.slides import Slide, is_slide, open_slide, slides_below
from turnwise.errors import InputError, require, require_known
from turnwise.geometry.tiles import TilePlan

BACKGROUNDS = ("none", "white", "black")
BRIGHT, DARK = 220, 15  # a pixel is white above the first in all channels, black below the second
GLOB = "*?["
TABLES = ("csv", "tsv", "parquet")  # which list files

Image = UInt8[Tensor, "channel row col"]


@runtime_checkable
class Source(Protocol):
    """Images by number."""

    def __len__(self) -> int: ...
    def read(self, index: int) -> Image | None:
        """Return the pixels; None for a tile of background."""

    def columns(self, index: int) -> Mapping[str, Any]:
        """Return what identifies the image, as columns of the output."""

    def name(self, index: int) -> str:
        """Return the same in words, for a list of what could not be read."""

    def identity(self) -> list[Any]:
        """Return what must be unchanged for an interrupted job to be continued."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files, one image each."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Image:
        return decode(Path(self.paths[index]))

    def columns(self, index: int) -> Mapping[str, Any]:
        return {"image": self.paths[index]}

    def name(self, index: int) -> str:
        return self.paths[index]

    def identity(self) -> list[Any]:
        return [[path, Path(path).stat().st_size] for path in self.paths]


@dataclass(frozen=True)
class ArrayImages:
    """The images of one array of an .npz file: (image, row, col) or (image, row, col, channel)."""

    path: str
    key: str
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> Image:
        pixels = torch.from_numpy(_arrays(self.path, _changed(self.path))[self.key][index])
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()

    def columns(self, index: int) -> Mapping[str, Any]:
        return {"image": self.name(index)}

    def name(self, index: int) -> str:
        return f"{self.path}:{self.key}:{index}"

    def identity(self) -> list[Any]:
        return [self.path, self.key, self.count, Path(self.path).stat().st_size]


@dataclass(frozen=True)
class Tiling:
    """How slides are cut into tiles.

    side        pixels of a tile, at `mpp` microns per pixel or at `level`
    overlap     pixels shared by neighbours, or more
    background  "white" or "black" tiles are left out; "none" keeps all
    foreground  the share of other pixels that a tile must have to be kept
    """

    side: int
    overlap: int = 0
    mpp: float = 0.0
    level: int = 0
    background: str = "none"
    foreground: float = 0.1

    def __post_init__(self) -> None:
        require(self.side >= 1, f"a tile of {self.side} pixels is too small; try 224.")
        require(
            0 <= self.overlap < self.side,
            f"an overlap of {self.overlap} pixels must be from 0 to below the tile's {self.side}.",
        )
        require_known(self.background, BACKGROUNDS, "background")
        require(
            0 <= self.foreground <= 1, f"foreground = {self.foreground} must be a share, 0 to 1."
        )
        require(self.mpp >= 0, f"{self.mpp} microns per pixel must be positive.")


@dataclass(frozen=True)
class SlideTiles:
    """The tiles of one slide.

    Args:
        path: the slide.
        plan: the tiles, in pixels of the level that is read.
        level: which level that is.
        downsample: of that level.
        mpp: microns per pixel of the tile as described by `tiling`; NaN if unknown.
    """

    path: str
    plan: TilePlan
    level: int
    downsample: float
    mpp: float
    tiling: Tiling

    def __len__(self) -> int:
        return len(self.plan)

    def read(self, index: int) -> Image | None:
        row, col = self.plan[index]
        side = self.plan.side
        pixels = _slide(self.path, os.getpid()).read(self.level, row, col, side, side)
        return pixels if self.is_foreground(pixels) else None

    def is_foreground(self, pixels: Image) -> bool:
        """Return whether enough pixels are not background; no rotation changes their number."""
        kind, least = self.tiling.background, self.tiling.foreground
        if kind == "none":
            return True
        other = pixels.amin(dim=0) < BRIGHT if kind == "white" else pixels.amax(dim=0) > DARK
        return int(other.sum()) >= least * other.numel()

    def columns(self, index: int) -> Mapping[str, Any]:
        row, col = self.plan[index]
        x, y = (round(start * self.downsample) for start in (col, row))
        return {"slide": self.path, "x": x, "y": y, "level": self.level, "mpp": self.mpp,
                "tile": index}  # fmt: skip

    def name(self, index: int) -> str:
        return f"{self.path}, tile {index}"

    def identity(self) -> list[Any]:
        return [
            self.path,
            Path(self.path).stat().st_size,
            repr(self.plan),
            self.level,
            repr(self.tiling),
        ]


def plan_tiles(path: str, tiling: Tiling) -> SlideTiles:
    """Open a slide, choose the level and place the tiles."""
    slide = open_slide(path)
    level = slide.level_for(tiling.mpp) if tiling.mpp else tiling.level
    require(
        0 <= level < len(slide.levels),
        f"{path} has the levels 0 to {len(slide.levels) - 1}, and no level {level}.",
    )
    found = slide.levels[level]
    scale = tiling.mpp / found.mpp if tiling.mpp and found.mpp else 1.0
    side, overlap = max(1, round(tiling.side * scale)), round(tiling.overlap * scale)
    return SlideTiles(
        path=path,
        plan=TilePlan(found.rows, found.cols, side, min(overlap, side - 1)),
        level=level,
        downsample=found.downsample,
        mpp=float("nan") if found.mpp is None else found.mpp * side / tiling.side,
        tiling=tiling,
    )


@lru_cache(maxsize=4)
def _slide(path: str, process: int) -> Slide:
    """Open a slide; a process must not share open files with the one that it was forked from."""
    return open_slide(path)


def _changed(path: str) -> int:
    return Path(path).stat().st_mtime_ns


@lru_cache(maxsize=1)
def _arrays(path: str, changed: int) -> dict[str, NDArray[np.uint8]]:
    return {
        key: array
        for key, array in read_arrays(Path(path)).items()
        if array.dtype == np.uint8 and (array.ndim == 3 or array.shape[3:] in ((1,), (3,)))
    }


def find_sources(
    given: Sequence[str], tiling: Tiling | None = None
) -> tuple[list[Source], dict[str, str]]:
    """Return the sources that paths and patterns name, and what could not be opened, with reasons.

    Args:
        given: files, folders, patterns such as "scans/*.png", .npz files.
        tiling: cut every image into tiles; None takes images whole.
    """
    paths = [path for name in given for path in _paths_of(name, tiling is not None)]
    if tiling is None:
        whole = [path for path in paths if is_slide(Path(path))]
        require(not whole, f"{whole[0] if whole else ''} is a slide; choose a side for its tiles.")
        arrays = [path for path in paths if path.endswith(".npz")]
        files = tuple(path for path in paths if not path.endswith(".npz"))
        return [*([ImageFiles(files)] if files else []), *_array_sources(arrays)], {}
    sources, broken = list[Source](), dict[str, str]()
    for path in paths:
        try:
            sources.append(plan_tiles(path, tiling))
        except InputError as error:
            broken[path] = str(error)
    if not sources:
        raise InputError(next(iter(broken.values())))
    return sources, broken


def _array_sources(paths: Sequence[str]) -> list[ArrayImages]:
    found = [
        ArrayImages(path, key, len(array))
        for path in paths
        for key, array in _arrays(path, _changed(path)).items()
    ]
    for path in paths:
        require(
            any(source.path == path for source in found),
            f"{path} holds no images: arrays of uint8, (image, row, col) or with channels last.",
        )
    return found


def _listed(table: Path) -> list[str]:
    """Return the files in the column of paths of a table; they are relative to the table."""
    is_parquet = table.suffix.lower() == ".parquet"
    sheet = read_parquet(table) if is_parquet else read_csv(table)
    found = [name for name in sheet if name.lower() in (*PATHS, "slide")]
    require(
        len(found) == 1,
        f"{table} must have one column of paths (called path, file, image or slide); it has "
        f"{', '.join(map(repr, sheet))}.",
    )
    return [str(table.parent / name) for name in dict.fromkeys(sheet[found[0]])]


def _paths_of(name: str, tiles: bool) -> list[str]:
    """Return the files that one word names, sorted where the order is ours."""
    path = Path(name)
    if path.is_dir() and path.suffix != ".zarr":
        slides = slides_below(path) if tiles else []
        found = sorted([*map(str, slides), *map(str, image_files_below(path))])
        require(bool(found), f"{path} holds no images ({', '.join(SUFFIXES)}).")
        return found
    if path.suffix.lower().removeprefix(".") in TABLES and path.is_file():
        return _listed(path)
    if path.exists():
        return [name]
    if set(GLOB) & set(name):
        found = sorted(found for found in glob.glob(name, recursive=True))  # noqa: PTH207
        require(bool(found), f"nothing matches {name}; check the pattern.")
        return found
    raise InputError(f"{path} does not exist; give an image or a folder of images.")
