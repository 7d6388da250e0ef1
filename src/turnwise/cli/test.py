"""turnwise test: the only command that looks at the test split."""

import argparse
import sys
from pathlib import Path
from typing import Any

from turnwise.checks import InputError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder made by turnwise train")
    parser.add_argument("--again", action="store_true", help="examine again; the count is kept")
    parser.add_argument("--data-dir", help="where the data sets are (default: $TURNWISE_DATA)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")


def test(args: argparse.Namespace) -> int:
    """Examine a run on its test split: upright, turned through 360° and over its group.
    The split is touched once: a second call shows the kept result, unless --again is given."""
    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation import examine_run, read_examination

    result = None if args.again else read_examination(args.run)
    if result is None:
        device = chosen_device(args.device)
        result = examine_run(
            args.run, data_dir=args.data_dir, device=device, progress=sys.stderr.isatty()
        )
    else:
        print("already tested; this is the kept result (--again repeats the test):")
    try:
        print(summary(result))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{args.run}/test.json is damaged; remove it to test again.") from error
    print(f"\nkept in {Path(args.run) / 'test.json'}")
    return 0


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
