"""Segmentation with few images: the exact U-Net, the plain one, and test-time augmentation.

    python benchmarks/low_data.py --run --fractions 0.01 0.05 0.1 0.25 1 --device cuda    train
    python benchmarks/low_data.py --figure low_data.png                        table and figure

With --run each fraction of the training images is given to benchmarks/run_recipe.py with both
recipes, for as many steps as all images have; fractions that have a record with these seeds are
skipped.  Without it nothing is trained: the table and the figure are of benchmarks/recipes.jsonl.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from records import read_records

from turnwise.reports.figures.plots import LOOK, add_legend, draw_curves, figure_file, fix_layout
from turnwise.reports.tables import text_table

HERE = Path(__file__).parent
RECIPES = {"D4": "nuclei_turnwise_unet_small_d4", "plain": "nuclei_unet"}
REPEAT = 4  # of the recipes, with all images
SCORES = {"AP@0.5": "ap50", "AP": "ap", "PQ": "pq", "Dice": "dice"}
HEADERS = ["training images", "network", "seeds", *(f"{name}, %" for name in SCORES)]

Found = dict[tuple[str, float], dict[str, Any]]  # seeds by network and fraction


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="train what has no record")
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.01, 0.05, 0.1, 0.25, 1])
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--settings", nargs="*", default=[], metavar="key=value")
    parser.add_argument("--records", type=Path, default=HERE / "recipes.jsonl")
    parser.add_argument("--figure", type=Path, help=".png or .svg")
    return parser.parse_args()


def read_found(path: Path) -> Found:
    """Return the last record of every network and fraction."""
    names = {recipe: name for name, recipe in RECIPES.items()}
    found: Found = {}
    for record in read_records(path) if path.is_file() else []:
        figures = record["figures"]
        if figures.get("recipe") in names and figures.get("data", "nuclei") == "nuclei":
            orbit = f" + {figures['orbit']} at test time" if "orbit" in figures else ""
            name = names[figures["recipe"]] + orbit
            found[name, figures.get("fraction", 1.0)] = figures["seeds"]
    return found


def train(args: argparse.Namespace, fraction: float, found: Found) -> None:
    """Run both recipes on a fraction of the images, all seeds at once."""
    for name, recipe in RECIPES.items():
        if set(args.seeds) <= set(found.get((name, fraction), {})):
            continue
        settings = [f"data.fraction={fraction:g}", f"data.repeat={round(REPEAT / fraction)}"]
        orbit = ["--orbit", "D4"] if name == "plain" else []
        subprocess.run(
            [sys.executable, str(HERE / "run_recipe.py"), f"recipes/{recipe}.yaml",
             *settings, *args.settings, "--seeds", *args.seeds, "--parallel",
             "--device", args.device, "--records", str(args.records), *orbit],
            check=True,
        )  # fmt: skip


def rows_of(found: Found) -> list[list[str]]:
    """Return a row for every fraction and network, with the mean and the deviation over seeds."""
    rows = []
    for (name, fraction), seeds in sorted(found.items(), key=lambda item: item[0][::-1]):
        cells = [f"{100 * fraction:g} %", name, str(len(seeds))]
        for score in SCORES.values():
            values = [100 * figures["scores"][score] for figures in seeds.values()]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}")
        rows.append(cells)
    return rows


def draw(found: Found) -> Figure:
    """Draw AP at an IoU of 0.5 against the share of the training images."""
    curves = dict[str, tuple[list[float], list[float]]]()
    for name in sorted({name for name, _ in found}):
        points = sorted((share, seeds) for (other, share), seeds in found.items() if other == name)
        means = [mean(f["scores"]["ap50"] for f in seeds.values()) for _, seeds in points]
        curves[name] = ([100 * share for share, _ in points], [100 * value for value in means])
    with matplotlib.rc_context(LOOK):
        fig = Figure(figsize=(8, 5), layout="constrained")
        axes = fig.subplots()
        draw_curves(axes, curves, 20)
        axes.set(xscale="log", xlabel="training images, per cent", ylabel="AP@0.5, per cent")
        add_legend(fig, axes)
        return fix_layout(fig)


def main() -> None:
    args = arguments()
    if args.run:
        for fraction in args.fractions:
            train(args, fraction, read_found(args.records))
    found = read_found(args.records)
    if not found:
        sys.exit(f"{args.records} has no record of {' or '.join(RECIPES.values())}; add --run.")
    print(text_table(HEADERS, rows_of(found)))
    if args.figure:
        figure_file(draw(found), args.figure)


if __name__ == "__main__":
    main()
