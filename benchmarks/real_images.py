"""Real images without an up (and CIFAR-10): equivariant and plain models, tuned equally.

    python benchmarks/real_images.py search --sets eurosat first --jobs 6   # validation only
    python benchmarks/real_images.py final --sets eurosat first --jobs 6    # 3 seeds, tested once
    python benchmarks/real_images.py table                                  # Markdown

`search` trains every model on every set with the same list of settings (SETTINGS) and keeps one
JSON line per run, with validation figures only.  `final` takes for each set, share of the training
images and model the settings with the best validation score, trains them with other seeds, and
tests each run once.  Runs go side by side in processes of their own; what has a record is not
repeated, so an interrupted command is simply given again.  Plain models are also tested with the
mean of their probabilities over the group (test-time augmentation).
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from records import Record, append_record, read_records
from side_by_side import run_side_by_side

from turnwise.reports.tables import format_percent, markdown_table

HERE = Path(__file__).parent
SEEDS = 3  # that a result needs
SEARCH, FINAL = HERE / "real_images_search.jsonl", HERE / "real_images.jsonl"
POLICY = {"policy": "standard"}
# name: data of the recipe, the group, the side in pixels, and the score that selects
SETS: dict[str, dict[str, Any]] = {
    "eurosat": {"data": {"name": "eurosat"}, "group": "D4", "side": 64, "score": "accuracy"},
    "first": {
        "data": {"name": "first_radio_galaxies", "crop": 192, "image_size": 96},
        "group": "D4", "side": 96, "score": "balanced_accuracy",
    },
    "breastmnist": {
        "data": {"name": "breastmnist"}, "group": "D4", "side": 28, "score": "balanced_accuracy",
    },
    "dermamnist28": {
        "data": {"name": "dermamnist"}, "group": "D4", "side": 28, "score": "balanced_accuracy",
    },
    "dermamnist128": {
        "data": {"name": "dermamnist", "image_size": 128},
        "group": "D4", "side": 128, "score": "balanced_accuracy",
    },
    "cifar10": {
        "data": {"name": "cifar10", "augment": {"rotation": 10}},
        "group": "D1", "side": 32, "score": "accuracy",
    },
}  # fmt: skip
WIDE = {"widths": [96, 192, 384, 384], "dropout": 0.2}
NARROW = {"widths": [64, 128, 256, 256], "dropout": 0.2}
META = {"layer_scale": 0.1, "drop_path": 0.1}
# name: the model, its options, and those for images of at least so many pixels
MODELS: dict[str, tuple[str, dict[str, Any], dict[int, dict[str, Any]]]] = {
    "flagship small": ("turnwise_vit_small", {"head_dropout": 0.2}, {}),
    "flagship tiny": ("turnwise_vit_tiny", {"head_dropout": 0.2}, {}),
    "group ResNet": (
        "roto_resnet18", {"stem": "small", "oriented": 3, **WIDE},
        {96: NARROW, 128: {"stem": "large"}},
    ),
    "roto ResNet": (
        "roto_resnet18", {"stem": "small", "dropout": 0.2}, {128: {"stem": "large"}},
    ),
    "roto MetaFormer": ("roto_metaformer_s12_pppa", META, {64: {"geometry": "even"}}),
    "ResNet-18": ("resnet18", {"stem": "small", "dropout": 0.2}, {128: {"stem": "large"}}),
    "ViT": ("vit", {"width": 192, "depth": 6, "heads": 3, "drop_path": 0.1}, {64: {"patch": 8}}),
    "MetaFormer": ("metaformer_s12_pppa", META, {64: {"geometry": "even"}}),
}  # fmt: skip
PLAIN = {"ResNet-18", "ViT", "MetaFormer"}
# the same budget for every model: each is trained with each of these
SETTINGS: dict[str, dict[str, Any]] = {
    "1e-3": {"learning_rate": 0.001},
    "2e-3": {"learning_rate": 0.002},
    "4e-3": {"learning_rate": 0.004},
    "2e-3, cutmix": {"learning_rate": 0.002, "cutmix": 1.0},
}
COMMON = {
    "weight_decay": 0.05, "batch_size": 64, "warmup_epochs": 5, "label_smoothing": 0.1,
    "mixup": 0.2, "gradient_clip": 1.0, "ema": 0.998,
}  # fmt: skip
Job = dict[str, Any]
KEY = ("set", "fraction", "model", "setting", "seed", "epochs", "changes")
SCORES = ("accuracy", "balanced_accuracy", "auc")


def values_of(job: Job) -> dict[str, Any]:
    """Return the recipe of a job as nested dictionaries."""
    about = SETS[job["set"]]
    name, options, larger = MODELS[job["model"]]
    for side, changes in larger.items():
        options = {**options, **(changes if about["side"] >= side else {})}
    data = {**about["data"], "fraction": job["fraction"]}
    data["augment"] = {**POLICY, **data.get("augment", {})}
    return {
        "model": {"name": name, "group": about["group"], **options},
        "data": data,
        "optimisation": {**COMMON, **SETTINGS[job["setting"]]},
        "trainer": {
            "max_epochs": job["epochs"],
            "select": about["score"],
            "precision": "32-true" if job["device"] == "cpu" else "bf16-mixed",
        },
        "evaluation": {"angles": 8},
        "seed": job["seed"],
    }


def run_job(job: Job) -> dict[str, Any]:
    """Train one job; return its figures: of validation in a search, else of the test split."""
    from turnwise.evaluation import evaluate, evaluate_run
    from turnwise.groups import PlanarGroup
    from turnwise.models import orbit
    from turnwise.runs.train import train
    from turnwise.training.recipe import make_recipe

    recipe = make_recipe(values_of(job), job["changes"])
    about, group = SETS[job["set"]], PlanarGroup.named(recipe.model.group)
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, Path(folder) / "run")
        seconds = [row["seconds"] for row in run.metrics]
        dataset, model = run.dataset(), run.model().to(job["device"])
        images = (
            len(dataset.train) // recipe.optimisation.batch_size * recipe.optimisation.batch_size
        )
        figures = {
            "epochs_trained": len(seconds),
            "minutes": sum(seconds) / 60,
            "images_per_second": images / median(seconds),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "score": about["score"],
        }
        fill, size = run.recipe.data.fill, recipe.evaluation.batch_size
        plan: dict[str, Any] = {"fill": fill, "batch_size": size}
        val = evaluate(model, dataset.val, dataset.classes, group, angles=1, **plan)
        figures["validation"] = _short(val)
        if job["stage"] == "final":
            figures["test"] = _short(evaluate_run(run, device=job["device"]))
            if job["model"] in PLAIN:
                whole = orbit(model, group.name)
                mean_over_group = evaluate(
                    whole, dataset.test, dataset.classes, group, angles=8, **plan
                )
                figures["test_over_group"] = _short(mean_over_group)
    return figures


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: result["scores"][name]["value"] for name in SCORES},
        "agreement": result["orbit_agreement"],
        "worst_angle": min(result["angles"]["accuracy"]),
    }


def same(job: Job, figures: dict[str, Any]) -> bool:
    return all(job[key] == figures[key] for key in KEY)


def known(path: Path) -> list[Record]:
    return read_records(path) if path.is_file() else []


def search_jobs(args: argparse.Namespace) -> Iterator[Job]:
    for cell in _cells(args):
        for setting in args.settings:
            yield {**cell, "stage": "search", "setting": setting, "seed": args.search_seed}


def final_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Yield the best settings by validation of every cell; a cell without a search is an error.

    With --setting every cell takes the same one, and nothing is searched.
    """
    found = [record["figures"] for record in known(args.search)]
    for cell in _cells(args):
        setting = args.setting or _best_setting(cell, found)
        for seed in args.seeds:
            yield {**cell, "stage": "final", "setting": setting, "seed": seed}


def _best_setting(cell: Job, found: Sequence[dict[str, Any]]) -> str:
    tried = [f for f in found if all(f[key] == cell[key] for key in KEY if key in cell)]
    if not tried:
        sys.exit(f"no search of {cell['model']} on {cell['set']} at {cell['fraction']:.0%}")
    best = max(tried, key=lambda figures: figures["validation"][figures["score"]])
    return str(best["setting"])


def _cells(args: argparse.Namespace) -> Iterator[Job]:
    for set_ in args.sets:
        for fraction in args.fractions:
            for model in args.models:
                yield {
                    "set": set_, "fraction": fraction, "model": model, "device": args.device,
                    "epochs": args.epochs, "changes": list(args.changes),
                }  # fmt: skip


def run_all(jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """Run the jobs in processes side by side, and keep a record of each; return how many failed."""
    path = args.search if args.stage == "search" else args.records
    command = shlex.join(["python", "benchmarks/real_images.py", *sys.argv[1:]])
    done = [record["figures"] for record in known(path)]
    left = [job for job in jobs if not any(same(job, figures) for figures in done)]
    print(f"{len(left)} of {len(jobs)} runs are left", flush=True)
    end = time.monotonic() + 60 * args.minutes

    def run(job: Job) -> bool | None:
        if time.monotonic() > end:
            return None
        words = [sys.executable, __file__, "one", "--job", json.dumps(job)]
        began = time.monotonic()
        ended = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": args.threads},
        )
        title = (
            f"{job['set']} {job['fraction']:g} {job['model']} {job['setting']} seed {job['seed']}"
        )
        if ended.returncode:
            print(f"{title}: failed\n{ended.stderr[-1500:]}", flush=True)
            return False
        figures = json.loads(ended.stdout.splitlines()[-1])
        append_record(path, command, {**job, **figures, "side_by_side": args.jobs})
        shown = figures.get("test", figures["validation"])[figures["score"]]
        minutes = (time.monotonic() - began) / 60
        print(f"{title}: {shown:.4f} after {minutes:.1f} minutes", flush=True)
        return True

    return run_side_by_side(run, left, args.jobs, args.minutes)


@dataclass(frozen=True)
class Result:
    """One model on one data set, over its seeds; `exact` models are invariant by construction."""

    data: str
    title: str
    side: int
    images: int  # for training
    model: str
    parameters: int
    exact: bool
    validation: float
    accuracy: str
    minutes: float


def results(records: Path = FINAL) -> list[Result]:
    """Return the results on all training images with three seeds or more."""
    from turnwise.data.catalogue import entry

    found = [r["figures"] for r in known(records) if r["figures"]["fraction"] == 1]
    kinds = dict.fromkeys((f["set"], f["model"]) for f in found)
    cells = [[f for f in found if (f["set"], f["model"]) == kind] for kind in kinds]
    made = []
    for runs in (runs for runs in cells if len(runs) >= SEEDS):
        first, about = runs[0], SETS[runs[0]["set"]]
        name, data = MODELS[first["model"]][0], entry(about["data"]["name"])
        accuracies = [run["test"]["accuracy"] for run in runs]
        half = (max(accuracies) - min(accuracies)) / 2
        made.append(Result(
            data=data.name, title=data.title.partition(":")[0], side=about["side"],
            images=int(data.splits.split(" / ")[0].replace(",", "")),
            model=f"{first['model']} (`{name}`), {about['group']}",
            parameters=first["parameters"], exact=first["model"] not in PLAIN,
            validation=mean(run["validation"]["accuracy"] for run in runs),
            accuracy=f"{100 * mean(accuracies):.2f} ± {100 * half:.2f} %",
            minutes=mean(run["minutes"] for run in runs),
        ))  # fmt: skip
    return made


def table(records: Path) -> str:
    """Return one Markdown table per set and share of the training images, best model first."""
    found = [record["figures"] for record in known(records)]
    if not found:
        return "Not measured yet."
    parts = []
    for set_, fraction in dict.fromkeys((f["set"], f["fraction"]) for f in found):
        cell = [f for f in found if (f["set"], f["fraction"]) == (set_, fraction)]
        rows = []
        for model in dict.fromkeys(f["model"] for f in cell):
            runs = [f for f in cell if f["model"] == model]
            rows.append(_row(model, runs, "test"))
            if all("test_over_group" in f for f in runs):
                rows.append(
                    _row(f"{model}, mean over {SETS[set_]['group']}", runs, "test_over_group")
                )
        rows.sort(key=lambda row: -row[0])
        head = ["model", "accuracy", "balanced", "AUC", "agreement", "parameters", "minutes",
                "images/s", "seeds"]  # fmt: skip
        title = f"**{set_}**, {fraction:.0%} of the training images"
        parts.append(f"{title}\n\n{markdown_table(head, [row[1] for row in rows])}")
    return "\n\n".join(parts)


def _row(title: str, runs: list[dict[str, Any]], part: str) -> tuple[float, list[str]]:
    """Return the score that orders the table, and the cells: the mean and range over seeds."""

    def over_seeds(name: str) -> str:
        values = [float(run[part][name]) for run in runs]
        spread = f" ({format_percent(min(values))}–{format_percent(max(values))})"
        return format_percent(mean(values)) + (spread if len(values) > 1 else "")

    cells = [title, *map(over_seeds, (*SCORES, "agreement")), f"{runs[0]['parameters']:,}"]
    cells += [f"{mean(run[key] for run in runs):.{digits}f}"
              for key, digits in (("minutes", 1), ("images_per_second", 0))]  # fmt: skip
    return mean(run[part][runs[0]["score"]] for run in runs), [*cells, str(len(runs))]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=("search", "final", "table", "one"))
    parser.add_argument("changes", nargs="*", metavar="key=value", help="of every recipe")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--fractions", nargs="+", type=float, default=[1.0, 0.1])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of final")
    parser.add_argument("--setting", choices=SETTINGS, help="of all models in final: no search")
    parser.add_argument("--search-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", default="2", help="CPU threads of each run")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run after these")
    parser.add_argument("--device", default="cuda", help="that evaluates: cpu or cuda")
    parser.add_argument("--search", type=Path, default=SEARCH, help="records of the search")
    parser.add_argument("--records", type=Path, default=FINAL)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_intermixed_args()


def main() -> int:
    args = arguments()
    if args.stage == "one":
        print(json.dumps(run_job(args.job)))
        return 0
    if args.stage == "table":
        print(table(args.records))
        return 0
    jobs = search_jobs(args) if args.stage == "search" else final_jobs(args)
    return 1 if run_all(list(jobs), args) else 0


if __name__ == "__main__":
    sys.exit(main())
