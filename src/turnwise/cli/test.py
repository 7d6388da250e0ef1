"""turnwise test: evaluate runs on their test split, which training and selection never use."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.terminal import add_data_dir, add_device, chosen_device, note
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.runs.run import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run folder, or the name of pretrained weights"
    )
    parser.add_argument(
        "--data",
        help="the test split of another data set with the same training images, such as "
        "mnist_rotated for a run on mnist (default: the run's own)",
    )
    parser.add_argument(
        "--recursive", action="store_true", help="test every run in the folder RUN, at any depth"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="CSV file with recipe and figures, one row per run"
    )
    parser.add_argument("--again", action="store_true", help="repeat the test; it is counted")
    add_data_dir(parser)
    add_device(parser, "auto")


def test(args: argparse.Namespace) -> int:
    """Evaluate a run on its test split: upright, rotated over 360°, and over its group. The test
    split is used once: a second call prints the stored result, unless --again is given."""
    from turnwise.files import require_writable
    from turnwise.models.weights import pretrained_folder
    from turnwise.runs.run import Run

    folder = None if args.recursive else pretrained_folder(args.run)
    if folder is not None:
        return _show_card(folder, args)
    if args.output:
        require_writable(Path(args.output), "choose another --output")
    return _test_many(args) if args.recursive else _test_one(Run(args.run), args)


def _test_one(run: "Run", args: argparse.Namespace) -> int:
    from turnwise.evaluation.evaluate import run_row, write_run_table

    stored = None if args.again else run.evaluation(args.data)
    result, file = stored or _evaluate(run, args), run.evaluation_file(args.data)
    try:
        text = summary(result)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is damaged; remove it to test again.") from error
    if args.output:  # written first: the reader of the output may have gone
        write_run_table([run_row(run, result)], args.output)
    if stored is not None:
        print("already tested; this is the stored result (--again repeats the test):")
    print(f"{text}\n\nstored in {file}")
    if args.output:
        print(f"written to {args.output}")
    return 0


def _test_many(args: argparse.Namespace) -> int:
    """Test every run in a folder; return 1 if one cannot be tested, with the reason on stderr."""
    import torch

    from turnwise.evaluation.evaluate import failed_row, run_row, write_run_table
    from turnwise.reports.tables import UNDEFINED, format_percent, text_table
    from turnwise.runs.find import find_runs
    from turnwise.runs.run import Run

    chosen_device(args.device)  # raises once, not for each run
    Run(args.run).evaluation_file(args.data)
    rows, lines = [], []
    for run in find_runs(args.run):
        try:
            stored = None if args.again else run.evaluation(args.data)
            if stored is None:
                note(f"testing {run.path}")
            row = run_row(run, stored or _evaluate(run, args))
        except (InputError, torch.OutOfMemoryError) as error:
            note(f"turnwise test: {run.path}: {error}")
            rows.append(failed_row(run, str(error)))
            continue
        rows.append(row)
        shares = (row.get(key) for key in ("val_accuracy", "test_accuracy"))
        shown = (UNDEFINED if s is None else format_percent(s, digits=2) for s in shares)
        lines.append([str(run.path), row["model.name"], row["test_data"], *shown])
    if args.output:  # written first: the reader of the output may have gone
        write_run_table(rows, args.output)
    print(text_table(["run", "model", "data", "validation", "test"], lines))
    if args.output:
        print(f"\nwritten to {args.output}")
    return int(len(lines) < len(rows))


def _evaluate(run: "Run", args: argparse.Namespace) -> dict[str, Any]:
    from turnwise.evaluation import evaluate_run

    return evaluate_run(
        run, args.data, data_dir=args.data_dir, device=chosen_device(args.device),
        progress=sys.stderr.isatty(),
    )  # fmt: skip


def _show_card(folder: Path, args: argparse.Namespace) -> int:
    """Print the card of pretrained weights, which holds their test result."""
    from turnwise.models.weights import read_card
    from turnwise.reports.model_card import card_page

    given = [flag for flag in ("data", "output", "again") if getattr(args, flag)]
    require(
        not given,
        f"{folder.name} is not tested again, because it is no run; leave "
        f"--{given[0] if given else ''} out, or train a run of your own (turnwise train).",
    )
    print("tested before it was published; this is its card:\n")
    print(card_page(read_card(folder)), end="")
    return 0


def summary(result: dict[str, Any]) -> str:
    """Return the evaluation as two tables and two lines."""
    from turnwise.evaluation.evaluate import fill_of
    from turnwise.evaluation.metrics import Interval
    from turnwise.reports.tables import format_percent, text_table

    scores = [
        [name.replace("_", " "), format_percent(Interval.from_plain(score), digits=2)]
        for name, score in result["scores"].items()
    ]
    if "main_score" in result:
        return summary_of_masks(result, scores)
    classes = [
        [
            c["name"],
            str(c["count"]),
            *(format_percent(float(c[k])) for k in ("recall", "precision", "f1")),
        ]
        for c in result["classes"]
    ]
    rotated = result["angles"]["accuracy"]
    lines = [
        f"{result['model']} on {result['images']} test images of {result['data']} "
        f"({result['provenance']}){_group_counts(result)}",
        text_table(["upright", "value (95 % interval)"], scores),
        text_table(["class", "images", "recall", "precision", "F1"], classes),
        f"rotated in {len(rotated)} steps over 360°, corners filled by {fill_of(result)}: accuracy "
        f"{format_percent(min(rotated), digits=2)} at worst, "
        f"{format_percent(sum(rotated) / len(rotated), digits=2)} on average{_control(result)}",
        f"same prediction over all exact elements of {result['group']}: "
        f"{format_percent(result['orbit_agreement'], digits=2)} of the images; over all angles: "
        f"{format_percent(result['rotation_agreement'], digits=2)}",
    ]
    return "\n\n".join(lines)


def summary_of_masks(result: dict[str, Any], scores: list[list[str]]) -> str:
    """Return the evaluation of a model of masks; `scores` are the rows of its first table."""
    from turnwise.evaluation.evaluate import fill_of
    from turnwise.reports.tables import format_percent, text_table

    main, subsets = result["main_score"], result["subsets"]
    rotated = result["angles"][main]
    classes = [
        [c["name"], *(format_percent(c[k]) for k in ("dice", "iou"))] for c in result["classes"]
    ]
    kinds = [
        [name, str(int(row["images"])), *(format_percent(row[key]) for key in result["scores"])]
        for name, row in subsets.items()
    ]
    words = [key.replace("_", " ") for key in result["scores"]]
    lines = [
        f"{result['model']} on {result['images']} test images of {result['data']} "
        f"({result['provenance']})",
        text_table(["upright", "value (95 % interval)"], scores),
        text_table(["class of pixels", "Dice", "IoU"], classes),
        *([text_table(["images", "count", *words], kinds)] if kinds else []),
        f"rotated in {len(rotated)} steps over 360°, corners filled by {fill_of(result)}: {main} "
        f"{format_percent(min(rotated), digits=2)} at worst, "
        f"{format_percent(sum(rotated) / len(rotated), digits=2)} on average",
        f"same class over all exact elements of {result['group']}: "
        f"{format_percent(result['orbit_agreement'], digits=2)} of the pixels; over the angles: "
        f"{format_percent(result['rotation_agreement'], digits=2)}",
    ]
    return "\n\n".join(lines)


def _group_counts(result: dict[str, Any]) -> str:
    """Return how many groups each split has, empty where groups are not known."""
    counts = result.get("group_counts", {})
    if not any(counts.values()):
        return ""
    found = ", ".join(f"{count:,} in {split}" for split, count in counts.items())
    return f"; groups, none of them in two splits: {found}"


def _control(result: dict[str, Any]) -> str:
    """Return the accuracy of the control; evaluations of earlier versions have none."""
    from turnwise.reports.tables import format_percent

    control = result.get("corner_control")
    if control is None:
        return ""
    return (
        f"; control, corners filled as by {control['degrees']:g}° but not rotated: "
        f"{format_percent(control['accuracy'], digits=2)}"
    )
