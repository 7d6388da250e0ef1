"""Large images, read by region: plain images, tiled TIFF and pyramids (tiffslide), OME-Zarr (zarr).

Rows and columns count pixels of the level that is read.  Level 0 is the finest.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from turnwise.data.readers.image_files import SUFFIXES, decode
from turnwise.errors import InputError, import_extra, require

TIFF = (".tif", ".tiff")
SLIDES = (".svs", ".ndpi", ".scn", ".bif", ".btf", ".gtiff")  # TIFF under the names of scanners
MICRONS = {"micrometer": 1.0, "nanometer": 1e-3, "millimeter": 1e3}  # OME-Zarr's units
TOLERANCE = 1.01  # a level whose pixels are this much coarser than requested still counts

Region = Callable[[int, int, int, int, int], NDArray[Any]]


@dataclass(frozen=True)
class Level:
    """One resolution of a slide; `downsample` is relative to level 0, `mpp` microns per pixel."""

    rows: int
    cols: int
    downsample: float = 1.0
    mpp: float | None = None


class Slide:
    """A large image at several resolutions.

    Args:
        path: the file, or the folder of an OME-Zarr image.
        levels: finest first.
        region: (level, row, col, rows, cols) -> (row, col, channel), for regions inside the image.
    """

    def __init__(self, path: Path, levels: tuple[Level, ...], region: Region) -> None:
        self.path, self.levels, self._region = path, levels, region

    def read(
        self, level: int, row: int, col: int, rows: int, cols: int
    ) -> UInt8[Tensor, "channel {rows} {cols}"]:
        """Read a region; pixels outside the image are black."""
        size = self.levels[level]
        top, left = max(0, row), max(0, col)
        bottom, right = min(size.rows, row + rows), min(size.cols, col + cols)
        try:
            found = self._region(level, top, left, max(0, bottom - top), max(0, right - left))
        except Exception as error:  # the parsers raise many kinds of exceptions
            raise unreadable(self.path, error) from error
        pixels = torch.from_numpy(np.ascontiguousarray(to_bytes(found, self.path)))
        whole = pixels.new_zeros(pixels.shape[2], rows, cols)
        inside = whole[:, top - row :, left - col :]
        inside[:, : pixels.shape[0], : pixels.shape[1]] = pixels.permute(2, 0, 1)
        return whole

    def level_for(self, mpp: float) -> int:
        """Return the coarsest level that is not coarser than `mpp` microns per pixel."""
        known = [level.mpp for level in self.levels]
        if known[0] is None:
            raise InputError(
                f"{self.path} does not state its microns per pixel; choose a level instead."
            )
        fine = [
            i for i, found in enumerate(known) if found is not None and found <= mpp * TOLERANCE
        ]
        require(
            bool(fine),
            f"{self.path} has {known[0]:g} microns per pixel at its finest, more than {mpp:g}.",
        )
        return fine[-1]


def open_slide(path: str | Path) -> Slide:
    """Open a large image by its suffix, and a TIFF file by whether it is tiled."""
    path = Path(path)
    require(path.exists(), f"there is no slide {path}; give a file or an OME-Zarr folder.")
    suffix = path.suffix.lower()
    if path.is_dir():
        return _open_zarr(path)
    if suffix in SLIDES or (suffix in TIFF and _is_tiled(path)):
        return _open_tiff(path)
    require(
        suffix in SUFFIXES,
        f"{path} is no slide; give one of {', '.join((*SUFFIXES, *SLIDES, '.zarr'))}.",
    )
    return _open_plain(path)


def is_slide(path: Path) -> bool:
    """Return whether the name is one that only large images have."""
    return path.suffix.lower() in (*SLIDES, ".zarr")


def slides_below(folder: Path) -> list[Path]:
    """List the large images in and below a folder, without hidden ones."""
    found = sorted(path for path in folder.rglob("*") if is_slide(path))
    return [
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(parent.suffix == ".zarr" for parent in path.relative_to(folder).parents)
    ]


def unreadable(path: Path, error: Exception) -> InputError:
    """Return the error for a damaged file, in one line."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"the slide {path} cannot be read ({reason}); remove it or repair it.")


def to_bytes(pixels: NDArray[Any], path: Path) -> UInt8[np.ndarray, "row col channel"]:
    """Return 8 bits per channel, with 1 or 3 channels; 65,535 becomes 255."""
    if pixels.dtype == np.uint16:
        pixels = np.rint(pixels * (255 / 65535)).astype(np.uint8)
    require(
        pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4),
        f"{path} has {pixels.shape[-1]} channels of {pixels.dtype}; "
        "give 1 or 3 channels of 8 or 16 bits.",
    )
    return pixels[..., :3]  # without transparency


@cache
def _decoded(path: Path, changed: int) -> NDArray[np.uint8]:
    _decoded.cache_clear()  # keep one image
    return decode(path).permute(1, 2, 0).numpy()


def _open_plain(path: Path) -> Slide:
    pixels = _decoded(path, path.stat().st_mtime_ns)

    def region(level: int, row: int, col: int, rows: int, cols: int) -> NDArray[Any]:
        return pixels[row : row + rows, col : col + cols]

    return Slide(path, (Level(*pixels.shape[:2]),), region)


def _is_tiled(path: Path) -> bool:
    """Return whether a TIFF file is worth reading by region; without tiffslide nothing is."""
    try:
        tifffile = import_module("tifffile")
        import_module("tiffslide")
    except ImportError:
        return False
    try:
        with tifffile.TiffFile(path) as file:
            return bool(file.pages[0].is_tiled)
    except Exception:  # Pillow says what is wrong, or reads it
        return False


def _open_tiff(path: Path) -> Slide:
    tiffslide = import_extra("tiffslide", "slides", str(path))
    try:
        handle = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        file = tiffslide.TiffSlide(handle)
        microns = file.properties.get("tiffslide.mpp-x")
        levels = tuple(
            Level(rows, cols, downsample, None if microns is None else microns * downsample)
            for (cols, rows), downsample in zip(
                file.level_dimensions, file.level_downsamples, strict=True
            )
        )
    except Exception as error:
        handle.close()  # tiffslide leaves it open
        raise unreadable(path, error) from error

    def region(level: int, row: int, col: int, rows: int, cols: int) -> NDArray[Any]:
        scale = levels[level].downsample
        where = (round(col * scale), round(row * scale))  # of level 0, as in OpenSlide
        return file.read_region(where, level, (cols, rows), as_array=True, padding=False)

    slide = Slide(path, levels, region)
    weakref.finalize(slide, _close, file, handle)
    return slide


def _close(*files: Any) -> None:
    for file in files:
        file.close()


def _open_zarr(path: Path) -> Slide:
    zarr = import_extra("zarr", "slides", str(path))
    try:
        group = zarr.open_group(path, mode="r")
        attributes = dict(group.attrs)
        (image, *_) = attributes.get("ome", attributes)["multiscales"]
        names = [axis["name"] for axis in image["axes"]]
        arrays = [group[entry["path"]] for entry in image["datasets"]]
        row, col = names.index("y"), names.index("x")
        first = Level(arrays[0].shape[row], arrays[0].shape[col], mpp=_microns(image, col))
        levels = tuple(_scaled(first, a.shape[row], a.shape[col]) for a in arrays)
    except Exception as error:
        raise unreadable(path, error) from error

    def region(level: int, row: int, col: int, rows: int, cols: int) -> NDArray[Any]:
        cut = {"y": slice(row, row + rows), "x": slice(col, col + cols), "c": slice(None)}
        pixels = np.asarray(arrays[level][tuple(cut.get(name, 0) for name in names)])
        return np.moveaxis(pixels, 0, -1) if "c" in names else pixels[..., None]

    return Slide(path, levels, region)


def _microns(image: dict[str, Any], col: int) -> float | None:
    """Return the microns per pixel along x of the finest level."""
    unit = MICRONS.get(image["axes"][col].get("unit", ""))
    for change in image["datasets"][0].get("coordinateTransformations", ()):
        if change.get("type") == "scale" and unit is not None:
            return float(change["scale"][col]) * unit
    return None


def _scaled(first: Level, rows: int, cols: int) -> Level:
    downsample = first.cols / cols
    mpp = None if first.mpp is None else first.mpp * downsample
    return replace(first, rows=rows, cols=cols, downsample=downsample, mpp=mpp)
