"""`turnwise train SOURCE --minutes M` against plain models with the same minutes and augmentation.

    python benchmarks/minutes.py search --minutes 10    # seed 0, validation only
    python benchmarks/minutes.py final --minutes 10     # 3 seeds, each tested once
    python benchmarks/minutes.py table                  # Markdown

Data sets are written as PNG files with a table (path, label, split), as a user has them.  Every run
is the command that a user types.  The equivariant model is what --minutes chooses, with no setting.
A plain model goes through the same choice of size and epochs, and learns rotations by any angle and
flips from augmentation.  `search` tries each with the same learning rates; `final` takes the plain
model and the rate with the best validation score on each set.  What has a record is not repeated.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from PIL import Image
from records import append_record, read_records
from side_by_side import run_side_by_side

from turnwise.data import Dataset, load_dataset
from turnwise.data.dataset import SPLITS, concatenate
from turnwise.data.splits import find_duplicates
from turnwise.evaluation.metrics import Interval
from turnwise.files import write_atomic
from turnwise.reports.tables import format_percent, markdown_table
from turnwise.runs.run import Run
from turnwise.runs.selection import selected_epoch

HERE = Path(__file__).parent
SEARCH, FINAL = HERE / "minutes_search.jsonl", HERE / "minutes.jsonl"
CHOSEN = "chosen"  # by --minutes
# the score that counts, and a central crop where most of an image is empty
SETS: dict[str, dict[str, Any]] = {
    "eurosat": {"score": "accuracy"},
    "first_radio_galaxies": {"score": "accuracy", "crop": 192},
    "breastmnist": {"score": "balanced_accuracy"},
    "dermamnist": {"score": "balanced_accuracy"},
}
# settings that replace the group convolutions, or the whole model, of every candidate
MODELS: dict[str, tuple[str, ...]] = {
    CHOSEN: (),
    "ResNet-18": ("model.name=resnet18", "model.oriented=0"),
    "small VGG": ("model={name: small_vgg, group: D4, widths: [32, 64, 128, 256, 256]}",),
    "ViT": (
        "model={name: vit, group: D4, patch: 4, width: 96, depth: 6, heads: 3, drop_path: 0.1}",
    ),
}
DEFAULT_RATE = "default"
RATES = (DEFAULT_RATE, "0.001", "0.004")
ANGLE, ANGLES = 45.0, 24
Job = dict[str, Any]
KEY = ("set", "model", "rate", "minutes", "seed", "changes")


def write_files(dataset: Dataset, folder: Path) -> Path:
    """Write a data set as PNG files, then a table; return the table, or that of an earlier call.

    An image of which a later split has a copy is left out: such splits are refused.
    """
    table = folder / "table.csv"
    if table.is_file():
        return table
    parts = [getattr(dataset, split) for split in SPLITS]
    whole = concatenate(parts)
    splits = [split for split, part in zip(SPLITS, parts, strict=True) for _ in range(len(part))]
    left_out = {
        position
        for copies in find_duplicates(whole.images) for position in copies
        if SPLITS.index(splits[position]) < max(SPLITS.index(splits[copy]) for copy in copies)
    }  # fmt: skip
    rows = [["path", "label", "split"]]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for position, (pixels, label) in enumerate(zip(whole.images, whole.labels, strict=True)):
        if position in left_out:
            continue
        name = f"images/{position:06}.png"
        array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
        Image.fromarray(array).save(folder / name)
        rows.append([name, dataset.classes[int(label)], splits[position]])
    print(f"{folder}: {len(rows) - 1:,} images, {len(left_out)} copies left out", flush=True)
    lines = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    write_atomic(table, lines.encode())
    return table


def command_of(job: Job, table: Path, run: Path) -> list[str]:
    """Return the words after `turnwise` that train a job."""
    rate = [] if job["rate"] == DEFAULT_RATE else [f"optimisation.learning_rate={job['rate']}"]
    select = f"trainer.select={SETS[job['set']]['score']}"
    settings = [*MODELS[job["model"]], *rate, select, f"evaluation.angles={ANGLES}"]
    settings += [f"seed={job['seed']}", *job["changes"]]
    return [
        "train",
        str(table),
        "--minutes",
        f"{job['minutes']:g}",
        *settings,
        "--output",
        str(run),
    ]


def figures_of(job: Job, run: Run) -> dict[str, Any]:
    """Return what was chosen and the validation score; with test figures after the final stage."""
    recipe, score = run.recipe, SETS[job["set"]]["score"]
    name, row = selected_epoch(run)
    figures: dict[str, Any] = {
        "score": score,
        "validation": row[f"val_{score}"],
        "selected_by": name,
        "model": job["model"],
        "network": recipe.model.name,
        "widths": recipe.model.options.get("widths") or recipe.model.options.get("width"),
        "image_size": recipe.data.image_size,
        "epochs": len(run.metrics),
        "planned_epochs": recipe.trainer.max_epochs,
        "batch_size": recipe.optimisation.batch_size,
        "parameters": sum(weight.numel() for weight in run.model().parameters()),
        "rotation": recipe.data.augment.rotation,
    }
    tested = run.evaluation()
    if tested is not None:
        angles = tested["angles"]
        figures["test"] = {
            "accuracy": tested["scores"]["accuracy"]["value"],
            "balanced_accuracy": tested["scores"]["balanced_accuracy"]["value"],
            f"{score}_at_45": angles[score][angles["degrees"].index(ANGLE)],
            f"{score}_at_worst": min(angles[score]),
            f"{score}_with_corners": tested["corner_control"][score],
            "fill": angles["fill"],
            "agreement": tested["orbit_agreement"],
            "times_evaluated": tested["times_evaluated"],
        }
    return figures


def search_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Yield every model with every learning rate, on every set."""
    for set_ in args.sets:
        for model in args.models:
            for rate in args.rates:
                yield _job(args, set=set_, model=model, rate=rate, seed=0)


def final_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Yield what --minutes chooses, and the best plain model by validation, for every seed."""
    found = [record["figures"] for record in known(args.search)]
    for set_ in args.sets:
        tried = [
            f for f in found
            if f["set"] == set_ and f["minutes"] == args.minutes and f["model"] != CHOSEN
            and f["changes"] == list(args.changes) and f["model"] in args.models
        ]  # fmt: skip
        if not tried:
            sys.exit(f"no plain model was searched on {set_} with {args.minutes:g} minutes")
        best = max(tried, key=lambda figures: figures["validation"])
        for seed in args.seeds:
            yield _job(args, set=set_, model=CHOSEN, rate=DEFAULT_RATE, seed=seed)
            yield _job(args, set=set_, model=best["model"], rate=best["rate"], seed=seed)


def _job(args: argparse.Namespace, **facts: Any) -> Job:
    return {**facts, "minutes": args.minutes, "changes": list(args.changes)}


def known(path: Path) -> list[dict[str, Any]]:
    return read_records(path) if path.is_file() else []


def run_all(jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """Run the jobs, and keep a record of each; return how many failed."""
    path = args.search if args.stage == "search" else args.records
    done = [record["figures"] for record in known(path)]
    left = [job for job in jobs if not any(all(job[k] == f[k] for k in KEY) for f in done)]
    print(f"{len(left)} of {len(jobs)} runs are left", flush=True)
    tables = {
        name: write_files(
            load_dataset(name, data_dir=args.data_dir, crop=SETS[name].get("crop")),
            args.folder / "data" / name,
        )
        for name in dict.fromkeys(job["set"] for job in left)
    }
    command = shlex.join(["python", "benchmarks/minutes.py", *sys.argv[1:]])
    end = time.monotonic() + 60 * args.at_most

    def run(job: Job) -> bool | None:
        if time.monotonic() + 60 * job["minutes"] > end:
            return None
        title = f"{job['set']}, {job['model']}, rate {job['rate']}, seed {job['seed']}"
        folder = args.folder / "runs" / args.stage / title.replace(", ", "-").replace(" ", "_")
        began = time.monotonic()
        words = [command_of(job, tables[job["set"]], folder)]
        if args.stage == "final":
            device = "cuda" if torch.cuda.is_available() else "cpu"
            words.append(["test", str(folder), "--device", device])
        for one in words:
            ended = _turnwise(one, args.threads)
            if ended.returncode:
                print(f"{title}: failed\n{(ended.stdout + ended.stderr)[-1500:]}", flush=True)
                return False
        seconds = time.monotonic() - began
        figures = {**job, **figures_of(job, Run(folder)), "seconds": round(seconds, 1)}
        append_record(path, command, {**figures, "side_by_side": args.jobs})
        print(f"{title}: {_shown(figures)} in {seconds:.0f} s", flush=True)
        return True

    return run_side_by_side(run, left, args.jobs, args.at_most)


def _turnwise(words: Sequence[str], threads: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    return subprocess.run(
        [sys.executable, "-m", "turnwise", *words], capture_output=True, text=True, env=environment
    )


def _shown(figures: dict[str, Any]) -> str:
    part = f"validation {format_percent(figures['validation'])}"
    if "test" not in figures:
        return part
    return f"{part}, test {format_percent(figures['test'][figures['score']])}"


def table(args: argparse.Namespace) -> str:
    """Return a Markdown table: for each set and time, what --minutes chose and the plain model."""
    found = [record["figures"] for record in known(args.records)]
    rows = []
    for set_, minutes, model in dict.fromkeys((f["set"], f["minutes"], f["model"]) for f in found):
        runs = [f for f in found if (f["set"], f["minutes"], f["model"]) == (set_, minutes, model)]
        score, first = runs[0]["score"], runs[0]
        rows.append([
            set_, f"{minutes:g}", f"{model} ({first['network']})", score.replace("_", " "),
            _over_seeds(runs, score), _over_seeds(runs, f"{score}_at_45"),
            _over_seeds(runs, f"{score}_with_corners"), first["test"]["fill"],
            _over_seeds(runs, "agreement"), f"{first['image_size']}",
            f"{mean(run['epochs'] for run in runs):.0f}", str(len(runs)),
        ])  # fmt: skip
    head = ["set", "minutes", "model", "score", "upright", "at 45°", "corners filled, not rotated",
            "fill", "agreement", "pixels", "epochs", "seeds"]  # fmt: skip
    return markdown_table(head, rows)


def _over_seeds(runs: Sequence[dict[str, Any]], name: str) -> str:
    values = [float(run["test"][name]) for run in runs]
    if len(values) == 1:
        return format_percent(values[0])
    return format_percent(Interval(mean(values), min(values), max(values)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=("search", "final", "table"))
    parser.add_argument("changes", nargs="*", metavar="key=value", help="of every recipe")
    parser.add_argument("--minutes", type=float, default=10, help="of each training")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rates", nargs="+", default=list(RATES), help="learning rates")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of final")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of each run")
    parser.add_argument("--at-most", type=float, default=1e6, help="minutes of the whole command")
    parser.add_argument("--data-dir", type=Path, help="where the data sets are")
    parser.add_argument("--folder", type=Path, default=Path("runs/minutes"), help="files and runs")
    parser.add_argument("--search", type=Path, default=SEARCH, help="records of the search")
    parser.add_argument("--records", type=Path, default=FINAL)
    return parser.parse_intermixed_args()


def main() -> int:
    args = arguments()
    if args.stage == "table":
        print(table(args))
        return 0
    jobs = search_jobs(args) if args.stage == "search" else final_jobs(args)
    return 1 if run_all(list(jobs), args) else 0


if __name__ == "__main__":
    sys.exit(main())
