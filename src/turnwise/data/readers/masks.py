"""Images with masks: `images/NAME` and, of the same name, `labels/NAME`; `split.csv` lists them.

A mask is an image file whose values are the numbers of instances, 0 for the background, in 8 or 16
bits.  `split.csv` has the columns file, split (train, validation or test) and kind; the kind of an
image becomes the folder of its name, so that figures can be given for each kind.
"""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from tqdm import tqdm

from turnwise.data.catalogue import Entry
from turnwise.data.dataset import Examples
from turnwise.data.masks import crop_mask
from turnwise.data.readers import Source, damaged, reader
from turnwise.data.readers.image_files import decode, open_image
from turnwise.data.storage import DataFolders, where_to_put
from turnwise.data.transforms import convert_channels, crop_centre
from turnwise.errors import InputError, require

SPLIT_NAMES = {"train": "train", "validation": "val", "val": "val", "test": "test"}
COLUMNS = {"file", "split", "kind"}


class MaskFile(NamedTuple):
    """A mask as its file holds it.

    codes    the number of each pixel; of a file in colour 65,536 red + 256 green + blue
    style    "grey"; "binary" if it has two values at most; "palette"; "colour"
    """

    codes: Int64[Tensor, "row col"]
    style: str


def read_mask(path: Path) -> MaskFile:
    """Read a mask with 1, 8 or 16 bits per pixel, a palette, or in colour, without its opacity."""
    with open_image(path) as image:
        style = "palette" if image.mode in ("P", "PA") else "grey"
        if image.mode in ("RGBA", "RGBa", "RGBX"):
            image = image.convert("RGB")
        elif image.mode in ("LA", "La", "PA"):
            image = image.getchannel(0)
        values = np.asarray(image)
    if values.dtype.kind not in "bui" or not (values.ndim == 2 or values.shape[2:] == (3,)):
        raise damaged(path, f"a mask has one whole number or one colour per pixel, got "
                      f"{values.dtype} of shape {values.shape}")  # fmt: skip
    codes = values.astype(np.int64)
    if codes.ndim == 3:
        style, codes = "colour", codes @ np.array([65536, 256, 1])
    if style == "grey" and len(np.unique(codes)) <= 2:
        style = "binary"
    return MaskFile(torch.from_numpy(codes), style)


@reader("masks")
def read_masks(entry: Entry, folders: DataFolders, image_size: int | None) -> Source:
    """Read the central squares of all images and masks, without resampling."""
    found = folders.find(*entry.files[0])
    if not found:
        raise InputError(
            f"{entry.name} is not in {folders}, and there is no file to download; "
            f"{where_to_put(entry.files[0], folders.cache)}, with images and labels beside it."
        )
    (table,) = found
    splits: dict[str, list[tuple[str, Path]]] = {"train": [], "val": [], "test": []}
    for row in _read_rows(table):
        require(
            row["split"] in SPLIT_NAMES,
            f"{table} has the split {row['split']!r}; write train, validation or test.",
        )
        splits[SPLIT_NAMES[row["split"]]].append((row["kind"], Path(row["file"])))
    side = entry.image_size
    parts = {
        split: Examples(*_read_split(table.parent, files, side, entry.channels))
        for split, files in splits.items()
    }
    count = sum(map(len, parts.values()))
    return Source(parts, f"{count:,} images in {table.parent}, their central {side} pixels")


def _read_rows(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise damaged(table, error) from None
    if not rows or not rows[0].keys() >= COLUMNS:
        raise damaged(table, f"it must have the columns {', '.join(sorted(COLUMNS))}")
    return rows


def _read_split(
    folder: Path, files: list[tuple[str, Path]], side: int, channels: int
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    images, masks = list[Tensor](), list[Tensor]()
    quiet = not sys.stderr.isatty()
    for _, file in tqdm(files, "reading", unit=" images", disable=quiet, leave=False):
        image, mask = decode(folder / "images" / file), _read_numbers(folder / "labels" / file)
        require(
            image.shape[1:] == mask.shape and min(mask.shape) >= side,
            f"{folder / 'labels' / file} has {tuple(mask.shape)} pixels and its image "
            f"{tuple(image.shape[1:])}; they must agree, and be {side} or more.",
        )
        images.append(convert_channels(crop_centre(image[None], side, side), channels)[0])
        masks.append(crop_mask(mask, side).short())
    return torch.stack(images), torch.stack(masks), tuple(f"{kind}/{file}" for kind, file in files)


def _read_numbers(path: Path) -> Int64[Tensor, "row col"]:
    found = read_mask(path)
    if found.style == "colour":
        raise damaged(path, "a mask has one whole number per pixel, and this one has colours")
    return found.codes
