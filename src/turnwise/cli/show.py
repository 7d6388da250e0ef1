"""turnwise show and report: a figure of models, or one page about runs."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from turnwise.cli.terminal import MODEL_HELP, add_data_dir, add_device, chosen_device, note
from turnwise.errors import require

if TYPE_CHECKING:
    from turnwise.data import Examples
    from turnwise.reports.loaded_models import LoadedModel
    from turnwise.reports.pages import LivePart

MAX_PAGE = 5_000_000  # bytes, so that a page can be sent by mail
MAX_LIVE = 25_000_000
NOTE = "Validation images, one per class, that are classified correctly when upright if possible."


def arguments(parser: argparse.ArgumentParser) -> None:
    from turnwise.reports.figures import figure_kinds

    kinds = figure_kinds()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = fill(parser.description or "", 78)
    rows = [
        fill(f"  {name:<12}{kind.description}", 78, subsequent_indent=" " * 14)
        for name, kind in kinds.items()
    ]
    parser.epilog = "\n".join(["figures:", *rows])
    add = parser.add_argument
    add("kind", choices=kinds, metavar="FIGURE", help="one of the figures below")
    add("models", nargs="+", metavar="RUN",
        help="runs, model folders, names of pretrained weights, or registered models (untrained) "
        "with key=value")  # fmt: skip
    add("--output", metavar="FILE", help=".png or .svg; for a film .gif, .png or .mp4")
    add("--image", type=int, metavar="N", help="number of the image in the validation split")
    add("--images", type=int, default=200, help="images to measure rates on (default: 200)")
    add("--angles", type=int, default=36, help="equal steps over 360° (default: 36)")
    add("--layer", type=int, default=0, help="attention layer (default: 0)")
    add("--head", type=int, default=0, help="attention head (default: 0)")
    add("--element", type=int, default=0, help="group element of the query (default: 0)")
    add("--pixel", type=int, nargs=2, metavar=("ROW", "COL"), help="position of the query")
    add("--channel", type=int, help="feature channel (default: the one that varies most)")
    add_device(parser, "cpu")
    add_data_dir(parser)


def show(args: argparse.Namespace) -> int:
    """Draw a figure of one or several models on images of the validation split."""
    from turnwise.reports.figures import FigureOptions, draw_figure, figure_kinds, require_file
    from turnwise.reports.loaded_models import load_models

    output = Path(args.output or args.kind + figure_kinds()[args.kind].suffixes[0])
    require_file(args.kind, output)
    for name in ("images", "angles"):
        require(getattr(args, name) >= 1, f"--{name} {getattr(args, name)} must be at least 1.")
    for name in ("layer", "head", "element", "channel"):
        value = getattr(args, name)
        require(value is None or value >= 0, f"--{name} {value} must not be negative.")
    models = load_models(args.models, data_dir=args.data_dir, device=chosen_device(args.device))
    options = FigureOptions(
        image=args.image, images=args.images, angles=args.angles, layer=args.layer, head=args.head,
        element=args.element, pixel=tuple(args.pixel) if args.pixel else None,
        channel=args.channel, progress=sys.stderr.isatty(),
    )  # fmt: skip
    text = draw_figure(args.kind, models, options, output)
    if text:
        print(text)
    print(f"written to {output}; open it: {output.resolve()}")
    return 0


def report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="RUN", help=MODEL_HELP)
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="(default: report.html)"
    )
    parser.add_argument("--images", type=int, default=6, help="images to explore (default: 6)")
    parser.add_argument(
        "--live", action="store_true",
        help="let the page run the models on pictures that are dropped on it",
    )  # fmt: skip
    parser.add_argument(
        "--download", action="store_true",
        help="for --live, once: download onnxruntime-web (33 MB, from the npm registry)",
    )  # fmt: skip
    add_device(parser, "cpu")
    add_data_dir(parser)


def report(args: argparse.Namespace) -> int:
    """Write one HTML page about runs. It has images to rotate and shift with the predictions of
    each model, training curves, certificates, scores and recipes; with --live, it runs the models.
    The page needs no network and no server."""
    from turnwise.reports.loaded_models import load_models, require_comparable
    from turnwise.reports.pages import write_page
    from turnwise.reports.pages.report import choose_examples, report_page

    require(args.images >= 1, f"--images {args.images} must be at least 1.")
    require(args.live or not args.download, "--download fetches what --live needs; add --live.")
    output = Path(args.output)
    require(output.suffix == ".html", f"a page is written as .html, got {output.name!r}.")
    models = load_models(args.models, data_dir=args.data_dir, device=chosen_device(args.device))
    require_comparable(models)
    examples = choose_examples(models, args.images)
    live = _live_part(args, models, examples) if args.live else None
    command = ["turnwise", "report", *args.models, "--output", args.output]
    html = report_page(
        f"Turnwise report: {', '.join(model.name for model in models)}", models, examples,
        note=NOTE, commands=shlex.join(command + ["--live"] * (live is not None)), live=live,
        progress=sys.stderr.isatty(),
    )  # fmt: skip
    size, limit = len(html.encode("utf-8", errors="replace")), MAX_LIVE if live else MAX_PAGE
    require(
        size <= limit,
        f"the page would have {size:,} bytes, and {limit:,} is the limit; show "
        f"{'fewer or smaller models' if live else 'fewer --images'}.",
    )
    write_page(output, html)
    print(f"written to {output} ({size / 1e6:.1f} MB); open it in a browser: {output.resolve()}")
    return 0


def _live_part(
    args: argparse.Namespace, models: "Sequence[LoadedModel]", examples: "Examples"
) -> "LivePart | None":
    """Return the part of the page that runs the models, None without onnxruntime-web."""
    from turnwise.deploy.browser_runtime import download_runtime, find_runtime
    from turnwise.deploy.live import live_part

    if args.download:
        download_runtime()
    runtime = find_runtime()
    if runtime is None:
        again = shlex.join(["turnwise", "report", *args.models, "--live", "--download"])
        note(
            "onnxruntime-web is not in the cache, so the page does not run the models; its "
            f"predictions were computed beforehand. To download it (33 MB): {again}"
        )
        return None
    note("exporting the models for the browser; this takes seconds to minutes")
    return live_part(models, examples, runtime)
