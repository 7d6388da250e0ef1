"""The tables of docs about the cost and the errors of fused attention, from the records."""

from typing import Any

from records import Record

from turnwise.reports.tables import format_error, markdown_table

# group, window, batch: milliseconds and GiB of the original program on one H200, mixed precision;
# in p8 with 9 x 9 a batch of 64 does not fit in 139 GiB
ORIGINAL = {
    ("p4", 5, 64): (177, 15.4),
    ("p4", 9, 64): (523, 48.7),
    ("p4m", 5, 64): (774, 90.8),
    ("p8", 9, 64): None,
}


def costs(records: list[Record]) -> str:
    """The latest training step of every case, beside the original program where it was timed."""
    latest: dict[tuple[Any, ...], list[str]] = {}
    for record in records:
        for result in record["figures"]["results"]:
            case, figures = result["case"], result["figures"]
            if "failed" not in figures:
                latest[_kind(case)] = _row(case, figures)
    headers = ["network", "batch", "machine", "backend", "forward", "backward", "step", "peak",
               "the original's step and peak"]  # fmt: skip
    return markdown_table(headers, list(latest.values()))


def _kind(case: dict[str, Any]) -> tuple[Any, ...]:
    names = ("device", "precision", "group", "window", "queries", "image", "batch", "backend")
    return (*(case[name] for name in names), case.get("compiled", False))


def _row(case: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    window = f"{case['window']} × {case['window']}" if case["window"] else "whole image"
    times = [f"{1000 * figures[key]:,.1f} ms" for key in ("forward", "backward", "step")]
    machine = "H200" if case["device"] == "cuda" else f"CPU, {case['threads']} threads"
    precision = {"32": "float32"}.get(case["precision"], case["precision"])
    original = "–"
    if case["device"] == "cuda" and case["queries"] == "all":
        timed = ORIGINAL.get((case["group"], case["window"], case["batch"]), "–")
        original = f"{timed[0]} ms, {timed[1]} GiB" if isinstance(timed, tuple) else "does not fit"
        original = "–" if timed == "–" else original
    return [
        f"{case['group']} {window}, {case['image']} px, {case['queries']} queries",
        str(case["batch"]),
        f"{machine}, {precision}",
        case["backend"] + (", CUDA graphs" if case.get("compiled") else ""),
        *times,
        f"{figures['peak_gib']:.2f} GiB",
        original,
    ]


def kernel_errors(records: list[Record]) -> str:
    """The largest relative error of the kernels in each precision, over all forms that ran."""
    latest = {
        (result["form"], result["type"]): result
        for record in records
        for result in record["figures"]["results"]
    }
    rows = []
    for precision in ("float32", "float16", "bfloat16"):
        found = [result for (_, kind), result in latest.items() if kind == precision]
        worst = max(map(_largest, found))
        same = all(result["same_bits"] for result in found)
        rows.append([precision, str(len(found)), format_error(worst), "yes" if same else "no"])
    headers = ["precision", "forms", "largest relative error", "same bits twice"]
    return markdown_table(headers, rows)


def _largest(result: dict[str, Any]) -> float:
    return result["largest_error"] if "errors" not in result else max(result["errors"].values())
