"""turnwise demo: train one architecture with and without the group, and compare them on a page."""

import argparse
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.data import Dataset
    from turnwise.runs.run import Run
    from turnwise.training.recipe import Recipe

OUTPUT = "turnwise-demo"
TITLE = "Turnwise: the same small model, with and without symmetry"
SHOWN = 5  # images on the page
ANGLES = 24  # over 360 degrees, at which the two models are compared
SPARE = 0.9  # of the time is planned
NOTE = (
    "Test images that both models classify correctly upright: of each class, the one for which the "
    "baseline changes its prediction at the most angles."
)


@dataclass(frozen=True)
class Comparison:
    """Two models that differ only in the symmetry, and how both are trained."""

    group: str
    equivariant: Mapping[str, Any]
    baseline: Mapping[str, Any]
    augment: Mapping[str, Any]
    optimisation: Mapping[str, Any]
    remark: str = ""

    def recipe(self, data: str, name: str, epochs: int) -> "Recipe":
        """Return the recipe of the model called `name`."""
        from turnwise.training.recipe import make_recipe

        return make_recipe(
            {
                "model": {**getattr(self, name), "group": self.group},
                "data": {"name": data, "augment": dict(self.augment)},
                "optimisation": dict(self.optimisation),
                "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
                "evaluation": {"angles": ANGLES},
            }
        )


RESNET = {"stem": "small", "widths": [16, 32, 64, 64]}
VIT = {"patch": 7, "width": 64, "depth": 3}
COMPARISONS = {
    "tiles": Comparison(
        group="D4",
        equivariant={"name": "roto_resnet18", "oriented": 3, **RESNET},
        baseline={"name": "resnet18", **RESNET},
        augment={"rotation": 180, "mirror": True, "shift": 2, "scale": 0.1},
        optimisation={
            "learning_rate": 3e-3, "batch_size": 32, "warmup_epochs": 1, "label_smoothing": 0.1,
            "ema": 0.99,
        },
    ),
    "digits": Comparison(
        group="C4",
        equivariant={"name": "orbit_vit", **VIT},
        baseline={"name": "vit", **VIT},
        augment={"rotation": 45, "shift": 1, "scale": 0.1},
        optimisation={"learning_rate": 3e-3, "batch_size": 64, "warmup_epochs": 1},
        remark="A 6 rotated by 180° looks like a 9, so a model that cannot use the orientation "
        "must do worse on upright digits.",
    ),
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default=OUTPUT, metavar="FOLDER", help=f"(default: {OUTPUT})")
    parser.add_argument(
        "--data", default="tiles", choices=tuple(COMPARISONS),
        help="tiles: satellite images, which have no up (default); digits: handwritten digits",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=40, help="training time of each model (default: 40)"
    )


def demo(args: argparse.Namespace) -> int:
    """Train one architecture with and without the group, for the same time and on the same images,
    test both at 24 angles, certify both, and write one HTML page. It takes about two minutes."""
    from turnwise.data import load_dataset
    from turnwise.reports.loaded_models import least_stable, load_models
    from turnwise.reports.pages import write_page
    from turnwise.reports.pages.report import report_page

    require(0 < args.seconds < 1e5, f"--seconds {args.seconds:g} must be above 0, e.g. 40.")
    start, output, data = time.monotonic(), Path(args.output), load_dataset(args.data)
    comparison = COMPARISONS[args.data]
    command = f"turnwise demo --data {args.data} --seconds {args.seconds:g}"
    for name in ("equivariant", "baseline"):
        recipe = timed_recipe(comparison, args.data, name, data, args.seconds)
        about = f"{recipe.model.name}, {recipe.trainer.max_epochs} epochs"
        print(f"training the {name} model ({about})", flush=True)
        print(train_and_measure(name, output / name, recipe, command, data), flush=True)
    models = load_models([str(output / name) for name in ("equivariant", "baseline")])
    examples = least_stable(models, data.test, SHOWN, ANGLES)
    commands = "\n".join([command, *(f"\n{m.run.recipe.yaml()}" for m in models if m.run)])
    note = f"{NOTE} {comparison.remark}".strip()
    page = output / "index.html"
    write_page(page, report_page(TITLE, models, examples, note=note, commands=commands))
    print(f"done in {time.monotonic() - start:.0f} s; open the page: {page.resolve()}")
    return 0


def timed_recipe(
    comparison: Comparison, data: str, name: str, dataset: "Dataset", seconds: float
) -> "Recipe":
    """Return the recipe with as many epochs as fit into the time, by timing a few steps."""
    import torch

    from turnwise.runs.train import build_model
    from turnwise.training.probe import seconds_per_step

    recipe = comparison.recipe(data, name, 1)
    steps = len(dataset.train) // recipe.optimisation.batch_size
    limit = seconds / steps  # one epoch has to fit
    model = build_model(recipe, dataset)
    step = seconds_per_step(model, recipe, dataset.train, torch.device("cpu"), limit)
    epochs = max(1, int(SPARE * seconds / (step * steps)))
    trainer = replace(recipe.trainer, max_epochs=epochs)
    warmup = min(recipe.optimisation.warmup_epochs, epochs / 10)
    return replace(
        recipe,
        trainer=trainer,
        optimisation=replace(recipe.optimisation, warmup_epochs=warmup),
    )


def train_and_measure(
    name: str, folder: Path, recipe: "Recipe", command: str, dataset: "Dataset"
) -> str:
    """Train, test and certify one model; return a line about the result."""
    from turnwise.data.batches import to_unit
    from turnwise.evaluation import certify, evaluate_run
    from turnwise.runs.run import Run
    from turnwise.runs.train import train

    remove_earlier_demo(Run(folder))
    run = train(recipe, folder, dataset=dataset, command=command)
    result = evaluate_run(run)
    certificate = certify(
        run.model(), recipe.model.group, to_unit(dataset.val.images[:32]),
        target=name, images_from=f"validation images of {dataset.name}",
    )  # fmt: skip
    run.write_certificate(certificate.plain())
    return summary(name, result, certificate.holds)


def remove_earlier_demo(run: "Run") -> None:
    """Remove the run of an earlier demo; raise if the folder holds anything else."""
    if not run.path.exists():
        return
    try:
        command = str(run.environment.get("command"))
    except InputError:
        command = ""
    require(
        command.startswith("turnwise demo"),
        f"{run.path} exists and is not an earlier demo; choose another --output.",
    )
    shutil.rmtree(run.path)


def summary(name: str, result: dict[str, Any], is_invariant: bool) -> str:
    """Return one line about the result of a model."""
    rotated = result["angles"]["accuracy"]
    verdict = "invariant" if is_invariant else "NOT invariant"
    return (
        f"the {name} model: accuracy {100 * rotated[0]:.1f} % upright, {100 * min(rotated):.1f} % "
        f"at the worst of {len(rotated)} angles, {verdict} under {result['group']}"
    )
