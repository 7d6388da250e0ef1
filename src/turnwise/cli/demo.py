"""turnwise demo: train one architecture with and without the group, and compare them on a page."""

import argparse
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
CERTIFIED = 32  # validation images in each certificate
CANDIDATES = 3  # every third test image may be shown
NOTE = (
    "Test images that both models classify correctly upright: of each class, the one for which the "
    "baseline changes its prediction at the most angles."
)


@dataclass(frozen=True)
class Comparison:
    """Two models that differ only in the symmetry, and how both are trained."""

    group: str
    fraction: float  # of the training images
    epochs: Mapping[str, int]  # that take the same time on two cores
    equivariant: Mapping[str, Any]
    baseline: Mapping[str, Any]
    augment: Mapping[str, Any]
    optimisation: Mapping[str, Any]
    remark: str = ""

    def recipe(self, data: str, name: str, share: float = 1.0) -> "Recipe":
        """Return the recipe of the model called `name`, for a share of its epochs."""
        from turnwise.training.recipe import make_recipe

        epochs = max(1, round(share * self.epochs[name]))
        warmup = min(self.optimisation["warmup_epochs"], epochs / 10)
        return make_recipe(
            {
                "model": {"group": self.group, **getattr(self, name)},
                "data": {
                    "name": data, "fraction": self.fraction, "symmetry": self.group,
                    "augment": dict(self.augment),
                },
                "optimisation": {**self.optimisation, "warmup_epochs": warmup},
                "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
                "evaluation": {"angles": ANGLES},
            }
        )  # fmt: skip


# stages of residual group convolutions, without attention; under C1 they are ordinary convolutions
NETWORK = {
    "name": "turnwise_vit_tiny", "depths": [0], "width": 256, "stem_width": 64, "stem_depth": 1,
    "stem_stride": 2,
}  # fmt: skip
VIT = {"patch": 7, "width": 64, "depth": 3}
COMPARISONS = {
    "tiles": Comparison(
        group="D4",
        fraction=0.1,
        epochs={"equivariant": 120, "baseline": 120},
        equivariant=NETWORK,
        baseline={**NETWORK, "group": "C1"},
        augment={"rotation": 180, "mirror": True, "shift": 2, "scale": 0.1, "sharp": True},
        optimisation={
            "learning_rate": 1.5e-3, "batch_size": 32, "warmup_epochs": 12, "label_smoothing": 0.1,
            "ema": 0.99,
        },
    ),
    "digits": Comparison(
        group="C4",
        fraction=1.0,
        epochs={"equivariant": 16, "baseline": 48},
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
        "--share", type=float, default=1.0,
        help="share of the usual epochs, for a shorter or longer demo (default: 1)",
    )  # fmt: skip


def demo(args: argparse.Namespace) -> int:
    """Train one architecture with and without the group, for the same time and on the same images,
    test both at 24 angles, certify both, and write one HTML page. It takes about two minutes."""
    import torch

    from turnwise.data import load_dataset
    from turnwise.reports.loaded_models import least_stable, load_models
    from turnwise.reports.pages import write_page
    from turnwise.reports.pages.report import report_page

    require(0 < args.share < 1e3, f"--share {args.share:g} must be above 0, e.g. 1.")
    start, output, data = time.monotonic(), Path(args.output), load_dataset(args.data)
    comparison = COMPARISONS[args.data]
    some = torch.arange(0, len(data.test), CANDIDATES)
    command = f"turnwise demo --data {args.data} --share {args.share:g}"
    for name in ("equivariant", "baseline"):
        recipe = comparison.recipe(args.data, name, args.share)
        about = f"{recipe.model.name}, {recipe.trainer.max_epochs} epochs"
        print(f"training the {name} model ({about})", flush=True)
        print(train_and_measure(name, output / name, recipe, command, data), flush=True)
    models = load_models([str(output / name) for name in ("equivariant", "baseline")])
    examples = least_stable(models, data.test.take(some), SHOWN, ANGLES)
    commands = "\n".join([command, *(f"\n{m.run.recipe.yaml()}" for m in models if m.run)])
    note = f"{NOTE} {comparison.remark}".strip()
    page = output / "index.html"
    write_page(page, report_page(TITLE, models, examples, note=note, commands=commands))
    print(f"done in {time.monotonic() - start:.0f} s; open the page: {page.resolve()}")
    return 0


def train_and_measure(
    name: str, folder: Path, recipe: "Recipe", command: str, dataset: "Dataset"
) -> str:
    """Train, test and certify one model; return a line about the result."""
    from turnwise.data.batches import to_unit
    from turnwise.evaluation import certify, evaluate_run
    from turnwise.runs.run import Run
    from turnwise.runs.train import train

    remove_earlier_demo(Run(folder))
    run = train(recipe, folder, command=command)
    result = evaluate_run(run)
    certificate = certify(
        run.model(), recipe.symmetry, to_unit(dataset.val.images[:CERTIFIED]),
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
        f"at the worst of {len(rotated)} angles; one prediction in all orientations for "
        f"{100 * result['orbit_agreement']:.1f} % of the images, {verdict} under {result['group']}"
    )
