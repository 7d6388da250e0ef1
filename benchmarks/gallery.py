"""Make docs/how-to/figures.md and its figures, by the commands that stand beside them.

    python benchmarks/gallery.py [--only FIGURE ...] [--work FOLDER]

Trains two small models on the tiles in the package (about five minutes on a quiet core), or takes
those in FOLDER.  Figures are made smaller for the page; the commands make them in full size.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from records import append_record, read_records

from turnwise.cli.main import main as turnwise
from turnwise.geometry.warps import rotate_image
from turnwise.reports.loaded_models import load_models

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "gallery"
RECORDS = Path(__file__).with_name("gallery.jsonl")
WIDTH, COLOURS = 640, 255  # of the figures on the page
LIMIT, FILM_LIMIT = 1_600_000, 1_000_000  # bytes of all figures together, and of the film
ANGLES = 36
RUNS = "runs/equivariant runs/plain"
SETTINGS = (
    "stem=small 'widths=[16,32,64,64]' data.augment.rotation=180 data.augment.mirror=true "
    "data.augment.shift=2 data.augment.scale=0.1 optimisation.learning_rate=3e-3 "
    "optimisation.batch_size=32 optimisation.warmup_epochs=1 optimisation.label_smoothing=0.1 "
    "optimisation.ema=0.99 trainer.max_epochs=40 trainer.accelerator=cpu"
)
TRAIN = {
    "runs/plain": f"turnwise train resnet18 tiles --group D4 {SETTINGS} --output runs/plain",
    "runs/equivariant": "turnwise train roto_resnet18 tiles --group D4 oriented=3 "
    f"{SETTINGS} --output runs/equivariant",
}
ENTRIES = {
    "film": (f"turnwise show film {RUNS} --image {{image}} --angles {ANGLES} --output film.gif",
             "An image as it rotates, and the probability of each class; the true class is blue."),
    "strip": (f"turnwise show film {RUNS} --image {{image}} --output strip.png",
              "The same as stills, for print."),
    "angles": (f"turnwise show angles {RUNS} --image {{image}} --output angles.png",
               "The probability of the true class of one image, and the accuracy on 200, against "
               "the angle."),
    "shifts": (f"turnwise show shifts {RUNS} --image {{image}} --output shifts.png",
               "The same against shifts, under which neither model is exact."),
    "features": (f"turnwise show features {RUNS.split()[0]} --image {{image}} "
                 "--output features.png",
                 "Features of every layer under each rotation by 90°, and the error of "
                 "equivariance of each layer."),
    "attention": ("turnwise show attention turnwise_vit_nano.rotmnist --output attention.png",
                  "The attention weights of one token, which rotate with the image."),
    "orbit": (f"turnwise show orbit {RUNS.split()[1]} --image {{image}} --output orbit.png",
              "The prediction of the plain model for each view of an image, and how often each "
              "view has the largest probability."),
    "artefact": (f"turnwise show artefact {RUNS} --output artefact.png",
                 "How much the logits change between the rotations by 90°: pixels interpolated, "
                 "or drawn again."),
    "curves": (f"turnwise show curves {RUNS} --output curves.png", "Training curves."),
    "confusion": (f"turnwise show confusion {RUNS.split()[1]} --output confusion.png",
                  "Which classes the plain model confuses, upright and rotated by 90°."),
    "worst": (f"turnwise show worst {RUNS.split()[1]} --output worst.png",
              "The images whose probability falls most when they are rotated."),
    "report": (f"turnwise report {RUNS} --output report.html",
               "One page that needs no server: rotate an image by the slider, and read what was "
               "measured."),
}  # fmt: skip


def measure(folders: list[str]) -> dict[str, Any]:
    """Return how often each model changes its prediction, and the image that the film shows.

    Images are those of the validation split.  Of the images that both models classify correctly
    upright and for which the last model changes its prediction at some angle, the film shows the
    one for which the range of the last model's probability of the true class is the median.
    """
    models = load_models(folders)
    labels = models[0].examples.labels
    correct = torch.ones(len(labels), dtype=torch.bool)
    figures: dict[str, Any] = {"images": len(labels), "angles": ANGLES, "models": {}}
    for model in models:
        views = [
            model.predictor.probabilities(
                model.examples.images,
                partial(rotate_image, degrees=360 * number / ANGLES, fill=model.fill),
            )
            for number in range(ANGLES)
        ]
        probabilities = torch.stack(views)  # (angle, image, class)
        predicted = probabilities.argmax(-1)
        changes = (predicted != predicted[0]).any(0)
        correct &= predicted[0] == labels
        figures["models"][model.name] = {
            "parameters": sum(p.numel() for p in model.model.parameters()),
            "accuracy": float((predicted[0] == labels).float().mean()),
            "accuracy_over_angles": float((predicted == labels).float().mean()),
            "changed_by_90": int((predicted[:: ANGLES // 4] != predicted[0]).any(0).sum()),
            "changed": int(changes.sum()),
        }
    true = probabilities.gather(2, labels[None, :, None].expand(ANGLES, -1, 1))[..., 0]
    ranges = true.amax(0) - true.amin(0)
    chosen = (correct & changes).nonzero()[:, 0]
    figures["image"] = int(chosen[ranges[chosen].argsort()[len(chosen) // 2]])
    return figures


def run(command: str) -> None:
    """Run the command in this process."""
    status = turnwise(shlex.split(command)[1:])
    if status:
        raise SystemExit(f"{command} ended with status {status}")


def keep(made: Path, kept: Path) -> None:
    """Store the figure in the size of the page, with few colours."""
    if made.suffix == ".gif":
        shutil.copy(made, kept)
        return
    with Image.open(made) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        # the default method drops rare colours, and a curve with them
        coverage, plain = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        small.quantize(COLOURS, method=coverage, dither=plain).save(kept, optimize=True)


def photograph(page: Path) -> Path | None:
    """Return a screenshot of the page, where a browser is installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no browser is installed; the screenshot of the report stays as it was")
        return None
    shot = page.with_suffix(".png")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags += [f"--screenshot={shot}", "--window-size=1000,860", page.resolve().as_uri()]
    subprocess.run([program, *flags], check=True, capture_output=True, timeout=120)
    return shot


def caption(figures: dict[str, Any]) -> str:
    """Say what was measured, and how the image was chosen."""
    ours, plain = (figures["models"][name] for name in ("equivariant", "plain"))
    return (
        f"On the {figures['images']} validation images, the plain model changes its prediction for "
        f"{plain['changed_by_90']} when they are rotated by 90°, 180° or 270°, and for "
        f"{plain['changed']} at some of {figures['angles']} angles; the equivariant model for "
        f"{ours['changed_by_90']} and {ours['changed']}. Image {figures['image']} is shown: of "
        "those that both classify correctly upright and for which the plain model changes its "
        "prediction, it has the median range of that model's probability."
    )


def page(figures: dict[str, Any]) -> str:
    """Return the gallery as Markdown."""
    image = figures["image"]
    lines = [
        "# Figures of a model",
        "",
        "`turnwise show FIGURE RUN` draws a figure; `turnwise show --help` lists them. All figures",
        "below are of trained models. Two small ResNets are trained on 1,200 satellite tiles, 40",
        "epochs each, with the same settings and the same random rotations, one with group",
        "convolutions and one without:",
        "",
        "```",
        *(" \\\n    ".join(textwrap.wrap(command, 100)) for command in TRAIN.values()),
        "```",
        "",
        f"{caption(figures)} `python benchmarks/gallery.py` trains both models, chooses the image",
        "and makes this page.",
    ]
    for name, (command, words) in ENTRIES.items():
        suffix = "gif" if name == "film" else "png"
        lines += ["", f"## {name}", "", words, "", f"```\n{command.format(image=image)}\n```"]
        lines += ["", f"![{words}](../gallery/{name}.{suffix})"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ENTRIES, help="make only these")
    parser.add_argument("--work", help="folder to work in, kept (default: a temporary one)")
    args = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(args.work or folder)
        for run_folder, command in TRAIN.items():
            if not Path(run_folder).exists():
                run(command)
        found = [r["figures"] for r in read_records(RECORDS)] if RECORDS.is_file() else []
        figures = found[-1] if args.only and found else measure(RUNS.split())
        image = figures["image"]
        for name in args.only or ENTRIES:
            command = ENTRIES[name][0].format(image=image)
            run(command)
            made: Path | None = Path(shlex.split(command)[-1])
            if made is not None and made.suffix == ".html":
                made = photograph(made)
            if made is not None:
                keep(made, FIGURES / f"{name}{made.suffix}")
    (DOCS / "how-to" / "figures.md").write_text(page(figures), encoding="utf-8")
    if not args.only:
        append_record(RECORDS, "python benchmarks/gallery.py", figures)
    sizes = {path.name: path.stat().st_size for path in FIGURES.iterdir()}
    print(f"image {image}; the figures have {sum(sizes.values()):,} bytes: {sizes}")
    if sum(sizes.values()) > LIMIT or sizes["film.gif"] > FILM_LIMIT:
        sys.exit(f"more than {LIMIT:,} bytes: fewer colours or a smaller width are needed")


if __name__ == "__main__":
    main()
