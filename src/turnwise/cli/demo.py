"""turnwise demo: two small models on the embedded digits, and a shipped one, on one page."""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from turnwise.errors import require

OUTPUT = "turnwise-demo"
NAMES = {"equivariant": "orbit_vit", "ordinary": "vit"}
SHIPPED = "turnwise_vit_nano.rotmnist"
SHOWN = (2, 4, 7)
SEEN = f" {SHIPPED} comes trained: on turned digits of MNIST, maybe on some of these."
NOTE = "The first test pictures of 2, 4 and 7 that all models recognise when upright." + SEEN
OTHER_NOTE = "Validation pictures; the models recognised no 2, 4 or 7 of the test together." + SEEN
TITLE = "Turnwise: the same small model, with and without symmetry"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default=OUTPUT, help=f"folder (default: {OUTPUT})")
    parser.add_argument("--epochs", type=int, default=24, help="of training (default: 24)")


def demo(args: argparse.Namespace) -> int:
    """Train a small equivariant model and its ordinary twin on the embedded digits, test both
    upright and turned, certify both, and write one HTML page, with shipped weights beside them."""
    from turnwise.data import load_dataset
    from turnwise.data.batches import to_unit
    from turnwise.evaluation import certify, evaluate_run
    from turnwise.files import write_json
    from turnwise.models import load
    from turnwise.reports.loaded_models import load_models
    from turnwise.reports.pages.page import write_page
    from turnwise.reports.pages.report import CERTIFICATE, report_page
    from turnwise.runs.train import train

    require(args.epochs >= 1, f"--epochs {args.epochs} must be at least 1.")
    start, output = time.monotonic(), Path(args.output)
    digits = load_dataset("digits")
    for name, model in NAMES.items():
        print(f"training the {name} model ({model}, {args.epochs} epochs)", flush=True)
        run = output / name
        clear_earlier_demo(run)
        train(recipe_of(model, args.epochs), run, command=f"turnwise demo --epochs {args.epochs}")
        examination = evaluate_run(run)
        trained = load(run)
        certificate = certify(
            trained, "C4", to_unit(digits.val.images[:32]),
            target=name, pictures="validation pictures of digits",
        )  # fmt: skip
        write_json(run / CERTIFICATE, certificate.plain())
        print(outcome(name, examination, certificate.holds), flush=True)
    commands = (
        f"turnwise demo --epochs {args.epochs}\n\n" + recipe_of("orbit_vit", args.epochs).yaml()
    )
    page = output / "index.html"
    subjects = load_models([*(str(output / name) for name in NAMES), SHIPPED])
    examples, note = examples_for(subjects, digits)
    html = report_page(TITLE, subjects, examples, note=note, commands=commands)
    write_page(page, html)
    print(f"done in {time.monotonic() - start:.0f} s; open the page: {page.resolve()}")
    return 0


def examples_for(subjects: Any, digits: Any) -> tuple[Any, str]:
    """The test pictures of `SHOWN` that all recognise; where there is none, others."""
    from turnwise.reports.loaded_models import recognised_by_all
    from turnwise.reports.pages.report import chosen_examples

    found = recognised_by_all([subject.model for subject in subjects], digits.test, SHOWN)
    if len(found):
        return digits.test.take(found), NOTE
    return chosen_examples(subjects, len(SHOWN)), OTHER_NOTE


def clear_earlier_demo(run: Path) -> None:
    """Remove what an earlier demo left in this place, and nothing else."""
    if not run.exists():
        return
    try:
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        environment = {}
    require(
        str(environment.get("command")).startswith("turnwise demo"),
        f"{run} exists and is not an earlier demo; choose another --output.",
    )
    shutil.rmtree(run)


def outcome(name: str, examination: dict[str, Any], invariant: bool) -> str:
    """One line on how a model did."""
    turned = examination["angles"]["accuracy"]
    verdict = "invariant" if invariant else "NOT invariant"
    return (
        f"the {name} model: {100 * turned[0]:.1f} % right upright, {100 * min(turned):.1f} % "
        f"at the worst of {len(turned)} angles, {verdict} under {examination['group']}"
    )


def recipe_of(model: str, epochs: int) -> Any:
    """The demo's recipe; the two models differ in nothing but the orbit."""
    from turnwise.training.recipe import make_recipe

    return make_recipe(
        {
            "model": {"name": model, "group": "C4", "patch": 7, "width": 64, "depth": 3},
            "data": {"name": "digits", "augment": {"rotation": 45, "shift": 1, "scale": 0.1}},
            "optimisation": {"learning_rate": 3e-3, "batch_size": 64, "warmup_epochs": 3},
            "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
        }
    )
