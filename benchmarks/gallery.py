"""Make docs/how-to/figures.md and its pictures, by the commands that stand beside them.

    python benchmarks/gallery.py [--only KIND ...]

Runs on a CPU, on the embedded digits, with two models trained here for a few epochs and others that
are untrained: what is shown of those is a matter of architecture.  The page tells how long each
command took.  Pictures are made smaller for the page; the commands make them in full size.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from turnwise.cli.main import main as turnwise

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "gallery"
WIDTH, COLOURS = 640, 255  # of the pictures on the page
LIMIT = 600_000  # bytes of all pictures together
BOTH = "turnwise-demo/equivariant turnwise-demo/baseline"
SMALL = "heads=2 width=8 'widths=[[8],[8]]' 'crops=[[2],[1]]'"
TRAIN = "turnwise demo --data digits --share 0.5"
ENTRIES = {
    "film": (f"turnwise show film {BOTH} --angles 18 --output film.gif",
             "A picture turns; beside it the probability of each class, the right one in blue."),
    "strip": (f"turnwise show film {BOTH} --output strip.png",
              "The same as stills, for paper."),
    "angles": (f"turnwise show angles {BOTH} --output angles.png",
               "One picture's probability and the accuracy of 200, against the angle."),
    "shifts": (f"turnwise show shifts {BOTH} --output shifts.png",
               "The same against shifts, which neither model is exact for: patches are 7 pixels."),
    "features": (f"turnwise show features gsa_net {SMALL} --output features.png",
                 "Fields of every layer (untrained) under each quarter turn, and under them what "
                 "is left of the law, with the largest relative error."),
    "attention": ("turnwise show attention turnwise_vit_nano --layer 1 --output attention.png",
                  "Where one token looks (untrained), and how that turns with the picture."),
    "positions": (f"turnwise show positions gsa_net {SMALL} --output positions.png",
                  "The positional encoding of group attention, as each pose sees it."),
    "orbit": ("turnwise show orbit turnwise-demo/equivariant --output orbit.png",
              "The answer to each view of a picture, and which view is surest, how often."),
    "artefact": (f"turnwise show artefact {BOTH} --output artefact.png",
                 "How far the scores move off the grid: pixels interpolated, or drawn anew."),
    "curves": (f"turnwise show curves {BOTH} --output curves.png",
               "Training, and a table on the terminal."),
    "confusion": ("turnwise show confusion turnwise-demo/baseline --output confusion.png",
                  "Which classes are confused, upright and turned by 90°."),
    "worst": ("turnwise show worst turnwise-demo/baseline --output worst.png",
              "The pictures that fall deepest when they turn."),
    "report": (f"turnwise report {BOTH} --output report.html",
               "One page that needs nothing else: turn the picture by the slider, shift it by "
               "dragging, and read what was measured."),
}  # fmt: skip


def run(command: str) -> float:
    """Do what the command says, here; returns the seconds it took."""
    start = time.monotonic()
    status = turnwise(shlex.split(command)[1:])
    if status:
        raise SystemExit(f"{command} ended with status {status}")
    return time.monotonic() - start


def keep(made: Path, kept: Path) -> None:
    """The picture in the size of the page, with few colours."""
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
    """What a browser shows of the page, where there is one."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no browser is installed; the picture of the report stays as it was")
        return None
    shot = page.with_suffix(".png")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags += [f"--screenshot={shot}", "--window-size=1000,860", page.resolve().as_uri()]
    subprocess.run([program, *flags], check=True, capture_output=True, timeout=120)
    return shot


def page(seconds: dict[str, float]) -> str:
    """The gallery as Markdown."""
    lines = [
        "# Gallery",
        "",
        "Made by `python benchmarks/gallery.py`, on the embedded digits and a CPU. Two small",
        "models are trained first, an equivariant one and its ordinary twin:",
        "",
        f"```\n{TRAIN}\n```",
        "",
        "Each picture is made by the command above it; the seconds are those of this gallery, on a",
        "machine that was busy with other things. Pictures are of the validation split; those of",
        "the artefact are drawn spots.",
    ]
    for name, (command, words) in ENTRIES.items():
        suffix = "gif" if name == "film" else "png"
        lines += [
            "",
            f"## {name}",
            "",
            f"{words} ({seconds[name]:.0f} s)",
            "",
            f"```\n{command}\n```",
            "",
            f"![{words}](gallery/{name}.{suffix})",
        ]
    lines += [
        "",
        "## serve",
        "",
        "A page on this machine for pictures of your own, which you turn while the model answers.",
        "",
        "```\nturnwise serve turnwise-demo/equivariant\n```",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ENTRIES, help="make these anew")
    parser.add_argument("--work", help="folder to work in, kept (default: a temporary one)")
    args = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    record = PICTURES / "seconds.json"
    seconds = json.loads(record.read_text()) if record.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(args.work or folder)
        if not Path("turnwise-demo").exists():
            run(TRAIN)
        for name in args.only or ENTRIES:
            command = ENTRIES[name][0]
            seconds[name] = round(run(command), 1)
            made: Path | None = Path(shlex.split(command)[-1])
            if made is not None and made.suffix == ".html":
                made = photograph(made)
            if made is not None:
                keep(made, PICTURES / f"{name}{made.suffix}")
    record.write_text(json.dumps(seconds, indent=2) + "\n")
    (DOCS / "gallery.md").write_text(page(seconds), encoding="utf-8")
    size = sum(path.stat().st_size for path in PICTURES.iterdir())
    print(f"written to {DOCS / 'gallery.md'}; the pictures have {size:,} bytes")
    if size > LIMIT:
        sys.exit(f"more than {LIMIT:,} bytes: fewer colours or a smaller width are needed")


if __name__ == "__main__":
    main()
