"""Decode the files of a table: choose size and channels from the headers, then read in threads.

A file is unusable if it cannot be read, if a side is shorter than `min_side`, or if its size
differs from that of nearly all others.  With on_error = fail the first one raises; with skip they
are left out and listed.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor
from tqdm import tqdm

from turnwise.data.dataset import Skipped
from turnwise.data.readers.image_files import (
    FileInfo,
    decode,
    describe,
    no_pillow_warnings,
    warn_about_bit_depth,
)
from turnwise.data.readers.own_masks import FittedMask, read_fitted, to_targets
from turnwise.data.readers.table import Rows, Table
from turnwise.data.reading import Reading
from turnwise.data.transforms import fit_images
from turnwise.errors import InputError, require

Item = TypeVar("Item")
Found = TypeVar("Found")
Infos = dict[int, FileInfo]  # by position; files without a readable header are missing
Problems = dict[int, str]  # why a file is unusable, by position
USUAL = 0.9  # the share of files of one size from which others are odd
FEW = 0.05  # share of images that may be smaller than the size that is suggested
THREADS = 8
_SHOW_PROGRESS = 500
_BLOCK = 4096  # files that wait for a thread at a time


def decode_table(
    table: Table, image_size: int | None, channels: int | None, reading: Reading
) -> Rows:
    """Decode the files into examples of one size; unusable ones raise, or are left out."""
    infos, problems = describe_files(table.files)
    problems |= find_odd_files(table.files, infos, image_size, reading.min_side)
    _require_none(problems, reading)
    good = {i: info for i, info in infos.items() if i not in problems}
    if channels is None:
        channels = 3 if any(info.colour for info in good.values()) else 1
    size = image_size or require_one_size(table.files, good)
    warn_about_bit_depth([table.files[i] for i, info in good.items() if info.bits > 8])
    images = torch.empty(len(good), channels, size, size, dtype=torch.uint8)
    broken = _decode_into(images, [table.files[i] for i in good], image_size)
    positions = list(good)
    problems |= {positions[row]: reason for row, reason in broken.items()}
    if table.masks:
        table, bad = _with_masks(table, good, image_size, size, reading)
        problems |= bad
        broken |= {row: bad[i] for row, i in enumerate(positions) if i in bad}
    _require_none(problems, reading)
    rows = [row for row in range(len(good)) if row not in broken]
    kept = [positions[row] for row in rows]
    require(bool(kept), f"none of the {len(problems)} images can be used: {_first(problems)}")
    found = table.take(images[torch.tensor(rows)] if broken else images, kept)
    skipped = tuple(Skipped(str(table.files[i]), problems[i]) for i in sorted(problems))
    return replace(found, skipped=skipped)


def describe_files(files: Sequence[Path]) -> tuple[Infos, Problems]:
    """Read all headers; return them, and the files whose header cannot be read."""
    infos, problems = Infos(), Problems()
    for i, found in enumerate(in_threads(_attempt(describe), files, "inspecting")):
        if isinstance(found, FileInfo):
            infos[i] = found
        else:
            problems[i] = str(found)
    return infos, problems


def find_odd_files(
    files: Sequence[Path], infos: Infos, image_size: int | None, min_side: int
) -> Problems:
    """Return the files that are too small, or of another size than nearly all others."""
    problems = Problems()
    for i, info in infos.items():
        if min(info.rows, info.cols) < min_side:
            problems[i] = (
                f"the image {files[i]} has {info.rows}×{info.cols} pixels and must have at least "
                f"{min_side} along each side; remove it, or set min_side."
            )
    sizes = Counter((info.rows, info.cols) for i, info in infos.items() if i not in problems)
    (usual, count), *_ = sizes.most_common(1) or [((0, 0), 0)]
    if image_size is not None or count < USUAL * sizes.total():
        return problems
    for i, info in infos.items():
        if i not in problems and (info.rows, info.cols) != usual:
            problems[i] = (
                f"the image {files[i]} has {info.rows}×{info.cols} pixels, and {count:,} others "
                f"have {usual[0]}×{usual[1]}; remove it, or set image_size={min(usual)} to "
                "resample the central squares of all."
            )
    return problems


def require_one_size(files: Sequence[Path], infos: Infos) -> int:
    """Return the side of the images; raise unless they are squares of one size."""
    sizes = {i: (info.rows, info.cols) for i, info in infos.items()}
    order = sorted(sizes, key=lambda i: (sizes[i][0] * sizes[i][1], sizes[i], i))
    require(bool(order), "none of the images can be used; correct them, or choose others.")
    (small, first), (large, last) = ((sizes[i], files[i]) for i in (order[0], order[-1]))
    found = f"{small[0]}×{small[1]}"
    if small != large:
        found += f" (smallest, {first}) to {large[0]}×{large[1]} (largest, {last})"
    require(
        small == large and small[0] == small[1],
        f"the images have {found} pixels, rows × cols, and must be squares of one size; write "
        f"image_size={side_of_most(Counter(sizes.values()))}, and they are centre-cropped and "
        "resampled.",
    )
    return small[0]


def side_of_most(sizes: Counter[tuple[int, int]]) -> int:
    """Return a side to resample to for which few images are enlarged.

    >>> side_of_most(Counter({(50, 50): 9, (40, 60): 1}))
    40
    """
    sides = sorted(min(size) for size, count in sizes.items() for _ in range(count))
    return sides[int(FEW * len(sides))]


def in_threads(work: Callable[[Item], Found], items: Sequence[Item], title: str) -> Iterator[Found]:
    """Yield `work(item)` for all items, in order; with a progress bar for many on a terminal."""
    quiet = len(items) <= _SHOW_PROGRESS or not sys.stderr.isatty()
    threads = min(THREADS, os.cpu_count() or 1)
    with (
        no_pillow_warnings(),
        ThreadPoolExecutor(threads) as pool,
        tqdm(total=len(items), desc=title, unit=" images", disable=quiet, leave=False) as bar,
    ):
        for start in range(0, len(items), _BLOCK):
            for found in pool.map(work, items[start : start + _BLOCK]):
                bar.update()
                yield found


def _attempt(read: Callable[[Path], Found]) -> Callable[[Path], "Found | InputError"]:
    """Return a function that returns the error instead of raising it."""

    def attempt(path: Path) -> Found | InputError:
        try:
            return read(path)
        except InputError as error:
            return error

    return attempt


def _decode_into(
    images: UInt8[Tensor, "image channel row col"], files: Sequence[Path], image_size: int | None
) -> Problems:
    """Decode the files into the rows of `images`; return why some could not be decoded."""
    channels, side = images.shape[1], images.shape[-1]

    def read(path: Path) -> Tensor:
        found = fit_images(decode(path).unsqueeze(0), image_size, channels, None)[0]
        require(
            found.shape[-1] == side == found.shape[-2],
            f"the image {path} has another size than its header says; save it again.",
        )
        return found

    problems = Problems()
    for row, found in enumerate(in_threads(_attempt(read), files, "reading")):
        if isinstance(found, InputError):
            problems[row] = str(found)
        else:
            images[row] = found
    return problems


def _with_masks(
    table: Table, good: Infos, image_size: int | None, size: int, reading: Reading
) -> tuple[Table, Problems]:
    """Read the masks of the files in `good`; return the table with targets, and bad masks."""

    def read(i: int) -> FittedMask | InputError:
        try:
            return read_fitted(table.masks[i], good[i].rows, good[i].cols, image_size)
        except InputError as error:
            return error

    found = dict(zip(good, in_threads(read, list(good), "reading masks"), strict=True))
    problems = {i: str(mask) for i, mask in found.items() if isinstance(mask, InputError)}
    _require_none(problems, reading)
    masks = {i: mask for i, mask in found.items() if isinstance(mask, FittedMask)}
    require(bool(masks), f"none of the {len(problems)} masks can be used: {_first(problems)}")
    target, targets = to_targets(list(masks.values()), reading, table.origin)
    values = torch.zeros(len(table.files), size, size, dtype=targets.dtype)
    values[torch.tensor(list(masks))] = targets
    return replace(table, target=target, values=values), problems


def _require_none(problems: Mapping[int, str], reading: Reading) -> None:
    """Raise the first problem if unusable files are errors."""
    if not problems or reading.skips:
        return
    more = f" {len(problems) - 1} more cannot be used, either." if len(problems) > 1 else ""
    raise InputError(
        f"{_first(problems)}{more} `turnwise inspect` lists such files; on_error=skip leaves them "
        "out."
    )


def _first(problems: Mapping[int, str]) -> str:
    return problems[min(problems)] if problems else "there are none."
