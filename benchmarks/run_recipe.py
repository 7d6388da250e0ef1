"""Train and test a recipe for several seeds, and keep one record of the outcome.

    python benchmarks/run_recipe.py recipes/rotmnist_orbit_vit_c4.yaml --seeds 0 1 2

Each seed is trained, selected on validation and tested once, by the commands `turnwise train` and
`turnwise test`; the record in benchmarks/recipes.jsonl holds every seed and their mean.  On other
data (data.name=dermamnist_c), or a fraction of it, runs and record are kept beside those on the
recipe's own.  In a setting {seed} stands for each of them
(model.weights=runs/rotmnist_resnet/seed_{seed}).  With --add the record holds the seeds of the last
one, too, if these had as many epochs.  With --orbit D4 each trained model is also tested as an
orbit, which is test-time augmentation over the group; a second record holds that.
"""

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from records import append_record, read_records

from turnwise.errors import InputError
from turnwise.models import load
from turnwise.runs.run import Run
from turnwise.runs.selection import selected_epoch
from turnwise.training.recipe import Recipe, read_recipe

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="as for turnwise train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs"), help="where runs go")
    parser.add_argument("--parallel", action="store_true", help="all seeds at once, on one device")
    parser.add_argument("--device", default="cpu", help="that tests: cpu or cuda")
    parser.add_argument("--records", type=Path, default=HERE / "recipes.jsonl")
    parser.add_argument("--add", action="store_true", help="to the seeds of the last record")
    parser.add_argument("--orbit", metavar="GROUP", help="also test the models as orbits")
    parser.add_argument("--combine", default="mean_probability", help="of the orbits")
    return parser.parse_args()


def title(args: argparse.Namespace, recipe: Recipe) -> str:
    """The recipe's name, and the data's where they are not its own."""
    own = read_recipe(args.recipe).data
    data = f"-{recipe.data.name}" if recipe.data.name != own.name else ""
    return args.recipe.stem + data + _fraction(recipe)


def _fraction(recipe: Recipe) -> str:
    return f"-{recipe.data.fraction:g}" if recipe.data.fraction < 1 else ""


def training(args: argparse.Namespace, name: str, seed: int) -> tuple[Path, list[str]]:
    run = args.output / name / f"seed_{seed}"
    settings = [setting.replace("{seed}", str(seed)) for setting in args.settings]
    return run, ["train", str(args.recipe), *settings, f"seed={seed}", "--output", str(run)]


def run_all(commands: Sequence[Sequence[str]], parallel: bool) -> None:
    """Run turnwise once for each list of words, one after another or all at once."""
    lines = [[sys.executable, "-m", "turnwise", *words] for words in commands]
    if parallel:
        processes = [subprocess.Popen(line) for line in lines]
        failed = [process.returncode for process in processes if process.wait()]
    else:
        failed = [done for line in lines if (done := subprocess.run(line).returncode)]
    if failed:
        sys.exit(f"{len(failed)} of {len(lines)} calls of turnwise {commands[0][0]} failed")


def figures_of(run: Path, trained: Path) -> dict[str, Any]:
    """What one seed came to: test figures, the validation accuracy it was chosen by, the time.

    `trained` is the run itself, or the one that an orbit was made of.
    """
    result = Run(run).evaluation()
    assert result is not None, "`turnwise test` has stored it"
    rows = list(csv.DictReader((trained / "metrics.csv").read_text().splitlines()))
    main = result.get("main_score", "accuracy")  # of masks another than of classes
    turned = result["angles"][main]
    selected, best = selected_epoch(Run(trained))
    return {
        f"test_{main}": result["scores"][main]["value"],
        "scores": {name: score["value"] for name, score in result["scores"].items()},
        "orbit_scores": result["orbit_scores"],
        "angles": len(turned),
        "worst_angle": min(turned),
        "mean_over_angles": mean(turned),
        "orbit_agreement": result["orbit_agreement"],
        "turn_agreement": result["rotation_agreement"],
        selected: best[selected],
        **({"subsets": result["subsets"]} if result.get("subsets") else {}),
        "training_seconds": sum(float(row["seconds"]) for row in rows),
        "epochs": len(rows),
        "times_examined": result["times_evaluated"],
        "provenance": result["provenance"],
        "weights": sum(p.numel() for p in load(run).parameters()),
    }


def earlier_seeds(args: argparse.Namespace, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Those of the last record of the recipe on the data, each with the commit that it ran at."""
    data, share = recipe.data.name, recipe.data.fraction
    own = read_recipe(args.recipe).data.name  # of records that say none
    found = [
        record for record in (read_records(args.records) if args.records.is_file() else [])
        if record["figures"]["recipe"] == args.recipe.stem
        if record["figures"].get("data", own) == data
        if record["figures"].get("fraction", share) == share
        if "orbit" not in record["figures"]
    ]  # fmt: skip
    if not found:
        return {}
    seeds = found[-1]["figures"]["seeds"]
    return {seed: {"commit": found[-1]["commit"]} | figures for seed, figures in seeds.items()}


def require_alike(earlier: dict[str, dict[str, Any]], recipe: Recipe) -> None:
    """Refuse seeds that were not trained as these will be, before anything is trained."""
    most, patient = recipe.trainer.max_epochs, recipe.trainer.patience is not None
    for seed, figures in earlier.items():
        epochs = figures.get("epochs", most)
        if epochs > most or (epochs < most and not patient):
            sys.exit(f"seed {seed} had {epochs} epochs, these have {most}; leave out --add")


def main() -> None:
    args = arguments()
    try:
        recipe = read_recipe(args.recipe, args.settings)
    except InputError as error:
        sys.exit(str(error))
    name = title(args, recipe)
    earlier = earlier_seeds(args, recipe) if args.add else {}
    require_alike(earlier, recipe)
    runs = [training(args, name, seed) for seed in args.seeds]
    run_all([words for _, words in runs], args.parallel)
    folders = {seed: folder for seed, (folder, _) in zip(args.seeds, runs, strict=True)}
    test_and_record(args, recipe, folders, folders, earlier)
    if args.orbit:
        orbits = {seed: args.output / f"{name}-orbit" / f"seed_{seed}" for seed in args.seeds}
        how = ["--group", args.orbit, "--combine", args.combine]
        made = [["orbit", str(folders[s]), *how, "--output", str(orbits[s])] for s in args.seeds]
        run_all(made, args.parallel)
        extra = {"orbit": args.orbit, "combine": args.combine}
        test_and_record(args, recipe, orbits, folders, {}, extra)


def test_and_record(
    args: argparse.Namespace,
    recipe: Recipe,
    runs: dict[int, Path],
    trained: dict[int, Path],
    earlier: dict[str, dict[str, Any]],
    extra: dict[str, Any] | None = None,
) -> None:
    """Test the run of each seed once, and append their record."""
    tests = [["test", str(run), "--device", args.device] for run in runs.values()]
    run_all(tests, args.parallel)
    seeds = earlier | {str(seed): figures_of(run, trained[seed]) for seed, run in runs.items()}
    key = next(k for k in next(iter(seeds.values())) if k.startswith("test_"))
    accuracy = [figures[key] for figures in seeds.values()]
    spread = stdev(accuracy) if len(accuracy) > 1 else None
    summary = {
        "recipe": args.recipe.stem, "data": recipe.data.name, "fraction": recipe.data.fraction,
        **(extra or {}), "mean": mean(accuracy), "spread": spread, "seeds": seeds,
    }  # fmt: skip
    command = shlex.join(["python", "benchmarks/run_recipe.py", *sys.argv[1:]])
    append_record(args.records, command, summary | {"parallel": args.parallel})
    figures = f"{mean(accuracy):.4f} ± {spread or 0:.4f} over {len(accuracy)} seeds"
    what = " as an orbit" if extra else ""
    print(f"{title(args, recipe)}{what}: {key.replace('_', ' ')} {figures}")


if __name__ == "__main__":
    main()
