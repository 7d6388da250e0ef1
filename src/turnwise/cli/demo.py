"""turnwise demo: train two small models on the embedded digits, and compare them on one page."""

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.data import Dataset, Examples
    from turnwise.reports.loaded_models import LoadedModel
    from turnwise.runs.run import Run
    from turnwise.training.recipe import Recipe

OUTPUT = "turnwise-demo"
NAMES = {"equivariant": "orbit_vit", "baseline": "vit"}
PRETRAINED = "turnwise_vit_nano.rotmnist"
SHOWN = (2, 4, 7)
WEIGHTS = f" {PRETRAINED} was trained on rotated MNIST digits, maybe on some of these images."
NOTE = "The first test images of 2, 4 and 7 that all models classify correctly upright." + WEIGHTS
OTHER_NOTE = "Validation images; no test image of 2, 4 or 7 is classified by all models." + WEIGHTS
TITLE = "Turnwise: the same small model, with and without symmetry"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default=OUTPUT, metavar="FOLDER", help=f"(default: {OUTPUT})")
    parser.add_argument("--epochs", type=int, default=24, help="epochs of training (default: 24)")


def demo(args: argparse.Namespace) -> int:
    """Train a small equivariant model and its baseline on the embedded digits, test both upright
    and rotated, certify both, and write one HTML page. The page shows pretrained weights, too. It
    takes about two minutes."""
    from turnwise.data import load_dataset
    from turnwise.reports.loaded_models import load_models
    from turnwise.reports.pages import write_page
    from turnwise.reports.pages.report import report_page

    require(args.epochs >= 1, f"--epochs {args.epochs} must be at least 1.")
    start, output, digits = time.monotonic(), Path(args.output), load_dataset("digits")
    command = f"turnwise demo --epochs {args.epochs}"
    for name, model in NAMES.items():
        print(f"training the {name} model ({model}, {args.epochs} epochs)", flush=True)
        print(_train_and_measure(name, output / name, args.epochs, command, digits), flush=True)
    models = load_models([*(str(output / name) for name in NAMES), PRETRAINED])
    examples, text = choose_images(models, digits)
    commands = f"{command}\n\n{demo_recipe('orbit_vit', args.epochs).yaml()}"
    page = output / "index.html"
    write_page(page, report_page(TITLE, models, examples, note=text, commands=commands))
    print(f"done in {time.monotonic() - start:.0f} s; open the page: {page.resolve()}")
    return 0


def _train_and_measure(
    name: str, folder: Path, epochs: int, command: str, digits: "Dataset"
) -> str:
    """Train, test and certify one model; return a line about the result."""
    from turnwise.data.batches import to_unit
    from turnwise.evaluation import certify, evaluate_run
    from turnwise.runs.run import Run
    from turnwise.runs.train import train

    remove_earlier_demo(Run(folder))
    run = train(demo_recipe(NAMES[name], epochs), folder, command=command)
    result = evaluate_run(run)
    certificate = certify(
        run.model(), "C4", to_unit(digits.val.images[:32]),
        target=name, images_from="validation images of digits",
    )  # fmt: skip
    run.write_certificate(certificate.plain())
    return summary(name, result, certificate.holds)


def choose_images(models: "Sequence[LoadedModel]", digits: "Dataset") -> "tuple[Examples, str]":
    """Return test images of `SHOWN` that all models classify correctly, or else other images."""
    from turnwise.reports.loaded_models import recognised_by_all
    from turnwise.reports.pages.report import choose_examples

    found = recognised_by_all([model.model for model in models], digits.test, SHOWN)
    if len(found):
        return digits.test.take(found), NOTE
    return choose_examples(models, len(SHOWN)), OTHER_NOTE


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


def demo_recipe(model: str, epochs: int) -> "Recipe":
    """Return the recipe of the demo; the two models differ only in the orbit."""
    from turnwise.training.recipe import make_recipe

    return make_recipe(
        {
            "model": {"name": model, "group": "C4", "patch": 7, "width": 64, "depth": 3},
            "data": {"name": "digits", "augment": {"rotation": 45, "shift": 1, "scale": 0.1}},
            "optimisation": {"learning_rate": 3e-3, "batch_size": 64, "warmup_epochs": 3},
            "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
        }
    )
