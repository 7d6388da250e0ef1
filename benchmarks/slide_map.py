"""A 20,000 × 20,000 pyramid: predicted and stitched in bounded memory, upright and rotated by 90°.

    python benchmarks/slide_map.py

Writes both slides as tiled TIFF pyramids, in strips, so that making them needs little memory; then
runs `turnwise predict` with --maps in a process of its own for each, reports the largest resident
memory, and compares the rotated map with the map of the rotated slide.  The record goes to
benchmarks/slide_map.jsonl.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
import torch
from numpy.typing import NDArray
from records import append_record

from turnwise.models import create_model, save

BLOCK, LEVELS = 256, (1, 4, 16)


def pixels(rows: NDArray[np.int64], cols: NDArray[np.int64], side: int) -> NDArray[np.uint8]:
    """Return the slide at these positions: a textured disc, off the centre, on white."""
    x, y = np.meshgrid(cols, rows)
    noise = (x * 2654435761 + y * 40503 * 65537) >> 7
    tissue = ((x - 0.4 * side) ** 2 + (y - 0.55 * side) ** 2) < (0.3 * side) ** 2
    colour = np.stack([noise % 200, (noise >> 3) % 180, (x // 97 + y // 61) % 200], axis=-1)
    return np.where(tissue[..., None], colour, 250).astype(np.uint8)


def tiles(side: int, step: int, rotated: bool) -> Iterator[NDArray[np.uint8]]:
    """Yield the tiles of a level; rotated, (row, col) is pixel (col, side - 1 - row)."""
    length = -(-side // step)
    for top in range(0, length, BLOCK):
        for left in range(0, length, BLOCK):
            rows = np.arange(top, min(top + BLOCK, length)) * step
            cols = np.arange(left, min(left + BLOCK, length)) * step
            if rotated:
                found = pixels(cols, side - 1 - rows, side).transpose(1, 0, 2)
            else:
                found = pixels(rows, cols, side)
            whole = np.full((BLOCK, BLOCK, 3), 255, np.uint8)
            whole[: len(rows), : len(cols)] = found
            yield whole


def write_slide(path: Path, side: int, rotated: bool) -> None:
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for step in LEVELS:
            length = -(-side // step)
            file.write(
                tiles(side, step, rotated), shape=(length, length, 3), dtype=np.uint8,
                tile=(BLOCK, BLOCK), photometric="rgb", compression="zlib",
                subfiletype=int(step > 1), resolution=(20000 / step, 20000 / step),
                resolutionunit="CENTIMETER",
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20_000)
    parser.add_argument("--tile", type=int, default=224)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    args = parser.parse_args()
    figures: dict[str, float] = {"side": args.side, "tile": args.tile}
    with tempfile.TemporaryDirectory() as name:
        folder, maps = Path(name), {}
        torch.manual_seed(0)
        model = create_model("orbit_vit", group="C4", in_chans=3, num_classes=3, image_size=32,
                             patch=8, width=64, depth=2)  # fmt: skip
        save(model, folder / "model")
        for rotated in (False, True):
            slide = folder / f"slide_{int(rotated)}.tif"
            write_slide(slide, args.side, rotated)
            command = [sys.executable, "-m", "turnwise", "predict", str(folder / "model"),
                       str(slide), "--tile", str(args.tile), "--background", "white",
                       "--device", "cpu",
                       "--maps", str(folder / "maps"), "--map-format", "tif",
                       "--output", str(folder / f"{slide.stem}.csv")]  # fmt: skip
            begun = time.perf_counter()
            subprocess.run(command, check=True, env=os.environ)
            figures[f"seconds, {'rotated' if rotated else 'upright'}"] = time.perf_counter() - begun
            maps[rotated] = tifffile.imread(folder / "maps" / f"{slide.stem}.tif")
        figures["peak MB of the largest process"] = (
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        )
        expected = np.rot90(maps[False], axes=(1, 2))
        known = ~np.isnan(expected)
        assert np.array_equal(known, ~np.isnan(maps[True]))
        figures["cells"] = float(known[0].sum())
        figures["largest difference"] = float(np.abs(maps[True] - expected)[known].max())
        figures["standard deviation of the map"] = float(expected[known].std())
    command_line = f"python benchmarks/slide_map.py --side {args.side} --tile {args.tile}"
    print(json.dumps(append_record(args.output, command_line, figures)["figures"], indent=2))


if __name__ == "__main__":
    main()
