"""turnwise test: a run on its test split, which training and selection never see."""

import argparse
import sys
from pathlib import Path
from typing import Any

from turnwise.cli.many_runs import test_below, write_rows
from turnwise.errors import InputError, require


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder made by turnwise train, or shipped weights")
    parser.add_argument(
        "--data",
        help="the test split of another data set with the same training pictures: mnist_rotated "
        "for a run on mnist (default: the run's own)",
    )
    parser.add_argument("--recursive", action="store_true", help="every run below the folder RUN")
    parser.add_argument("--output", help="recipe and figures as CSV, one row for each run")
    parser.add_argument("--again", action="store_true", help="examine again; the count is kept")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")


def test(args: argparse.Namespace) -> int:
    """Examine a run on its test split: upright, turned through 360° and over its group.
    The split is touched once: a second call shows the kept result, unless --again is given."""
    from turnwise.evaluation import read_evaluation
    from turnwise.evaluation.elsewhere import result_folder
    from turnwise.files import require_writable
    from turnwise.models.shipped import shipped_folder

    if args.recursive:
        return test_below(args, _examine)
    shipped = shipped_folder(args.run)
    if shipped is not None:
        given = "--data" if args.data else "--output"
        untouched = args.data is None and args.output is None
        require(untouched, f"{shipped.name} is not tested anew; leave {given} out.")
        return _show_card(shipped, args.again)
    place = Path(args.run) if args.data is None else result_folder(args.run, args.data)
    if args.output:
        require_writable(Path(args.output))
    kept = None if args.again else read_evaluation(place)
    result = _examine(args) if kept is None else kept
    try:
        said = summary(result)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}/test.json is damaged; remove it to test again.") from error
    if args.output:  # before anything is printed: who reads that may leave
        write_rows([(args.run, result)], args.output)
    if kept is not None:
        print("already tested; this is the kept result (--again repeats the test):")
    print(f"{said}\n\nkept in {place / 'test.json'}")
    if args.output:
        print(f"written to {args.output}")
    return 0


def _show_card(shipped: Path, again: bool) -> int:
    """Shipped weights were tested before they were shipped; their card keeps the result."""
    from turnwise.models.shipped import read_card
    from turnwise.reports.model_card import card_page

    require(
        not again,
        f"{shipped.name} has no run to keep a second result in; leave --again out, or train "
        "one of your own (turnwise train).",
    )
    print("tested before it was shipped; this is its card:\n")
    print(card_page(read_card(shipped)), end="")
    return 0


def _examine(args: argparse.Namespace) -> dict[str, Any]:
    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation import evaluate_run
    from turnwise.evaluation.elsewhere import evaluate_elsewhere

    device, progress = chosen_device(args.device), sys.stderr.isatty()
    if args.data is None:
        return evaluate_run(args.run, data_dir=args.data_dir, device=device, progress=progress)
    return evaluate_elsewhere(
        args.run, args.data, data_dir=args.data_dir, device=device, progress=progress
    )


def summary(result: dict[str, Any]) -> str:
    """The examination as two tables and a line."""
    from turnwise.evaluation.metrics import Interval
    from turnwise.reports.tables import format_percent, text_table

    scores = [
        [name.replace("_", " "), format_percent(Interval.kept(score), digits=2)]
        for name, score in result["scores"].items()
    ]
    classes = [
        [
            c["name"],
            str(c["count"]),
            *(format_percent(float(c[k])) for k in ("recall", "precision", "f1")),
        ]
        for c in result["classes"]
    ]
    turned = result["angles"]["accuracy"]
    lines = [
        f"{result['model']} on {result['pictures']} test pictures of {result['data']} "
        f"({result['provenance']})",
        text_table(["upright", "value (95 % interval)"], scores),
        text_table(["class", "pictures", "recall", "precision", "F1"], classes),
        f"turned in {len(turned)} steps through 360°: accuracy "
        f"{format_percent(min(turned), digits=2)} at worst, "
        f"{format_percent(sum(turned) / len(turned), digits=2)} on average",
        f"same answer over all exact elements of {result['group']}: "
        f"{format_percent(result['orbit_agreement'], digits=2)} of the pictures; over all angles: "
        f"{format_percent(result['turn_agreement'], digits=2)}",
    ]
    return "\n\n".join(lines)
