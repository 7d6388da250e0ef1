"""How far GSA-Nets follow rotations that the pixel grid does not have, by the order of the group.

    python benchmarks/steerability.py                     networks with random weights, about two
                                                          minutes on one quiet core
    python benchmarks/steerability.py runs/A runs/B …     trained networks

Random networks: `gsa_net`, exact, own queries, two blocks of 20 channels and one head, window 5, 24
pixels, float32, four seeds.  Images are 12 pictures of five spots, and changes are relative to the
standard deviation between them, as `turnwise.evaluation.steerability` defines them.  The record
goes to benchmarks/steerability.jsonl; docs/concepts/steerability.md shows it.
"""

import shlex
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from records import append_record
from torch import nn

from turnwise.errors import require
from turnwise.evaluation.steerability import OFF_GRID, steerability
from turnwise.inference.loading import image_shape
from turnwise.models import create_model, load
from turnwise.reports.tables import format_percent, markdown_table

GROUPS, SEEDS = ("p4", "p8", "p12", "p16"), 4
SIZES = {"widths": [[20], [20]], "crops": [[2], [2]], "image_size": 24, "heads": 1}
ANGLES = (0.0, *OFF_GRID, 90.0)
Figures = dict[str, Any]


def measure(model: nn.Module, channels: int, size: int) -> dict[str, dict[str, list[float]]]:
    return steerability(model.eval(), channels, size, ANGLES)


def random_networks() -> Figures:
    found: Figures = {}
    for group in GROUPS:
        found[group] = {}
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            model = create_model("gsa_net", group, queries="own", **SIZES)
            found[group][f"seed {seed}"] = measure(model, 1, 24)
            print(group, seed, file=sys.stderr)
    return found


def trained_networks(runs: list[str]) -> Figures:
    found: Figures = {}
    for run in runs:
        model = load(run)
        channels, size = image_shape(model)
        require(bool(channels and size), f"{run}: the size of its images is unknown.")
        group = str(model.group)
        found.setdefault(group, {})[run] = measure(model, channels or 1, size or 28)
        print(run, file=sys.stderr)
    return found


def off_grid(changes: list[float]) -> float:
    """The mean over the angles between 0° and 90°."""
    return mean(changes[1:-1])


def table(figures: Figures) -> str:
    """Means over the networks of each group, ± their standard error."""
    rows = []
    for group, networks in figures["changes"].items():
        cells = [group]
        for output in ("logits", "features"):
            for way in ("redrawn", "interpolated"):
                values = [off_grid(changes[output][way]) for changes in networks.values()]
                error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
                shown = f"{100 * mean(values):.1f}"
                cells.append(f"{shown} ± {100 * error:.1f} %" if error else f"{shown} %")
        exact = max(n["logits"]["redrawn"][-1] for n in networks.values())
        rows.append([*cells, format_percent(exact, 4), str(len(networks))])
    headers = ["group", "logits, redrawn", "logits, interpolated", "features, redrawn",
               "features, interpolated", "logits at 90°, worst", "networks"]  # fmt: skip
    return markdown_table(headers, rows)


def main() -> None:
    torch.set_num_threads(1)
    runs, start = sys.argv[1:], time.perf_counter()
    figures: Figures = {"trained": bool(runs), "angles": list(ANGLES)}
    figures["changes"] = trained_networks(runs) if runs else random_networks()
    figures["seconds"] = round(time.perf_counter() - start)
    command = shlex.join(["python", "benchmarks/steerability.py", *runs])
    append_record(Path(__file__).parent / "steerability.jsonl", command, figures)
    print(table(figures))


if __name__ == "__main__":
    main()
