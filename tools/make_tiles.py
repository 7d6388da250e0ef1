"""Make src/turnwise/data/readers/tiles.npz from the EuroSAT tiles of eurosat-4000.npz.

    python tools/make_tiles.py DATA/eurosat/eurosat-4000.npz src/turnwise/data/readers/tiles.npz

Takes the first tiles of every class in each split, halves their sides, and packs them as WebP
strips.  Prints the sha256 of the result, which tiles.md records.
"""

import argparse
import hashlib
import io
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
PER_CLASS = {"train": 120, "val": 20, "test": 60}
CLASSES = 10
STRIP = 500  # tiles in one strip; WebP allows 16,383 rows
QUALITY = 90


def convert(source: Path, target: Path) -> str:
    """Write the small tiles to an .npz file; return its sha256."""
    arrays: dict[str, np.ndarray] = {}
    with np.load(source, allow_pickle=False) as file:
        for split, count in PER_CLASS.items():
            labels = file[f"{split}_labels"]
            chosen = [np.flatnonzero(labels == c)[:count] for c in range(CLASSES)]
            rows = np.concatenate(chosen)
            blob, cuts = file[f"{split}_jpeg"].tobytes(), file[f"{split}_jpeg_offsets"]
            tiles = [shrink(blob[cuts[row] : cuts[row + 1]]) for row in rows]
            strips = [pack(tiles[i : i + STRIP]) for i in range(0, len(tiles), STRIP)]
            ends = np.cumsum([0, *map(len, strips)])
            arrays[f"{split}_webp"] = np.frombuffer(b"".join(strips), np.uint8)
            arrays[f"{split}_webp_offsets"] = ends.astype(np.int64)
            arrays[f"{split}_labels"] = labels[rows].astype(np.uint8)
            arrays[f"{split}_file_number"] = file[f"{split}_file_number"][rows]
    np.savez(target, **arrays)
    return hashlib.sha256(target.read_bytes()).hexdigest()


def shrink(jpeg: bytes) -> Image.Image:
    """Decode a tile of 64 pixels and average 2 × 2 pixels."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)


def pack(tiles: list[Image.Image]) -> bytes:
    """Encode tiles below each other as one WebP file."""
    strip, file = Image.new("RGB", (SIDE, SIDE * len(tiles))), io.BytesIO()
    for number, tile in enumerate(tiles):
        strip.paste(tile, (0, SIDE * number))
    strip.save(file, "WEBP", quality=QUALITY, method=6)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tiles.npz from eurosat-4000.npz.")
    parser.add_argument("source", type=Path, help="eurosat/eurosat-4000.npz")
    parser.add_argument("target", type=Path, help="the file to write")
    args = parser.parse_args()
    print(f"{convert(args.source, args.target)}  {args.target}")


if __name__ == "__main__":
    main()
