"""turnwise report: one page about runs, which opens anywhere and needs nothing else."""

import argparse
import shlex
import sys
from pathlib import Path

from turnwise.errors import require

LARGEST = 5_000_000  # bytes; a page is to be sent by mail
NOTE = "Pictures of the validation split, one of each class, recognised upright where possible."


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="runs, model folders or shipped weights"
    )
    parser.add_argument(
        "-o", "--output", default="report.html", help="HTML file (default: report.html)"
    )
    parser.add_argument("--pictures", type=int, default=6, help="to turn (default: 6)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")


def report(args: argparse.Namespace) -> int:
    """Write one HTML page about runs: a picture to turn and shift with what each model answers,
    curves, certificates, scores, recipes. The page needs no network and no server."""
    from turnwise.cli.devices import chosen_device
    from turnwise.reports.loaded_models import load_models, require_alike
    from turnwise.reports.pages.page import write_page
    from turnwise.reports.pages.report import chosen_examples, report_page

    require(args.pictures >= 1, f"--pictures {args.pictures} must be at least 1.")
    output = Path(args.output)
    require(output.suffix == ".html", f"a page is written as .html, got {output.name!r}.")
    subjects = load_models(args.runs, data_dir=args.data_dir, device=chosen_device(args.device))
    require_alike(subjects)
    title = f"Turnwise report: {', '.join(s.name for s in subjects)}"
    html = report_page(
        title, subjects, chosen_examples(subjects, args.pictures), note=NOTE,
        commands=shlex.join(["turnwise", "report", *args.runs, "--output", args.output]),
        progress=sys.stderr.isatty(),
    )  # fmt: skip
    size = len(html.encode("utf-8", errors="replace"))
    require(
        size <= LARGEST,
        f"the page would have {size:,} bytes, and {LARGEST:,} is the limit; show fewer --pictures.",
    )
    write_page(output, html)
    print(f"written to {output} ({size / 1e6:.1f} MB); open it in a browser: {output.resolve()}")
    return 0
