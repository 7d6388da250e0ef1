"""turnwise show: pictures of what models do when the picture turns."""

import argparse
import sys
from pathlib import Path

from turnwise.errors import require

KINDS = (
    "film", "angles", "shifts", "features", "attention", "positions", "orbit", "artefact",
    "curves", "confusion", "worst",
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "runs", nargs="+", metavar="RUN",
        help="runs, model folders, shipped weights, or names of models (untrained) with key=value",
    )  # fmt: skip
    parser.add_argument("--output", help="file: .png or .svg, for films .gif, .png or .mp4")
    parser.add_argument("--picture", type=int, help="number in the validation split")
    parser.add_argument("--pictures", type=int, default=200, help="for rates (default: 200)")
    parser.add_argument("--angles", type=int, default=36, help="of a full turn (default: 36)")
    parser.add_argument("--layer", type=int, default=0, help="of attention (default: 0)")
    parser.add_argument("--head", type=int, default=0, help="of attention (default: 0)")
    parser.add_argument("--element", type=int, default=0, help="pose of the token (default: 0)")
    parser.add_argument("--pixel", type=int, nargs=2, metavar=("ROW", "COL"), help="of the token")
    parser.add_argument("--channel", type=int, help="of features (default: the most varied)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")
    parser.set_defaults(settings=[])


def show(args: argparse.Namespace) -> int:
    """Draw a picture of one or several models: film, angles, shifts, features, attention,
    positions, orbit, artefact, curves, confusion, worst. Pictures are of the validation split."""
    from turnwise.cli.devices import chosen_device
    from turnwise.reports.gallery import FigureOptions, draw_figure, require_file
    from turnwise.reports.loaded_models import load_models

    output = Path(args.output or f"{args.kind}.{'gif' if args.kind == 'film' else 'png'}")
    require_file(args.kind, output)
    for what in ("pictures", "angles"):
        require(getattr(args, what) >= 1, f"--{what} {getattr(args, what)} must be at least 1.")
    for what in ("layer", "head", "element", "channel"):
        value = getattr(args, what)
        require(value is None or value >= 0, f"--{what} {value} must not be negative.")
    subjects = load_models(
        [*args.runs, *args.settings], data_dir=args.data_dir, device=chosen_device(args.device)
    )
    wishes = FigureOptions(
        args.picture, args.pictures, args.angles, args.layer, args.head, args.element,
        tuple(args.pixel) if args.pixel else None, args.channel, progress=sys.stderr.isatty(),
    )  # fmt: skip
    told = draw_figure(args.kind, subjects, wishes, output)
    if told:
        print(told)
    print(f"written to {output}; open it: {output.resolve()}")
    return 0
