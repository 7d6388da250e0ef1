"""What `turnwise predict` and `embed` share: sources, engines, outputs, progress and resuming."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.terminal import add_device, chosen_device, note
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from turnwise.inference.engines import Work
    from turnwise.inference.jobs import Job, PartFolder
    from turnwise.inference.preparation import Preparation
    from turnwise.inference.writers import Table

ENGINES = ("local", "ray")
FEW = 512  # images for which no processes are started to read ahead
SECONDS = 30  # between lines of progress, where there is no terminal
LISTED = 3  # broken inputs that are printed


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--output",
        metavar="FILE",
        help=".csv, .parquet or .h5; for tiles also a folder: one .h5 per slide, as CLAM's",
    )
    add(
        "--tile",
        type=int,
        default=0,
        metavar="SIDE",
        help="cut every image into tiles of this many pixels, as slides need",
    )
    add("--overlap", type=int, default=0, help="pixels that tiles share at least (default: 0)")
    add("--mpp", type=float, default=0.0, help="microns per pixel of the tiles")
    add(
        "--level", type=int, default=0, help="level of the pyramid instead (default: 0, the finest)"
    )
    add("--background", default="none", help="leave out tiles of background: white, black or none")
    add(
        "--foreground",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of other pixels that a tile needs to be kept (default: 0.1)",
    )
    add("--engine", default="local", choices=ENGINES, help="default: local")
    add(
        "--ray-address",
        default="",
        metavar="ADDRESS",
        help="of a Ray cluster, or auto (default: Ray starts on this machine)",
    )
    add(
        "--workers",
        type=int,
        default=-1,
        help="processes that read ahead for each device; actors of Ray (default: by the cores)",
    )
    add("--batch-size", type=int, default=64, help="images per forward pass (default: 64)")
    add(
        "--part-size",
        type=int,
        default=4096,
        help="images per part; what is lost when a job is killed (default: 4096)",
    )
    add_device(parser, "auto")


def make_job(
    args: argparse.Namespace, given: list[str], prepare: "Preparation"
) -> tuple["Job", dict[str, str]]:
    """Return the job, and the slides that could not be opened, with reasons."""
    from turnwise.inference.jobs import Job
    from turnwise.inference.sources import Tiling, find_sources

    tiling = None
    require(
        args.tile > 0 or not (args.overlap or args.mpp or args.level or args.background != "none"),
        "--overlap, --mpp, --level and --background are about tiles; give --tile SIDE, too.",
    )
    if args.tile:
        tiling = Tiling(
            args.tile, args.overlap, args.mpp, args.level, args.background, args.foreground
        )
    sources, broken = find_sources(given, tiling)
    return Job(tuple(sources), prepare, args.batch_size, args.part_size), broken


def require_output(args: argparse.Namespace, job: "Job") -> None:
    """Raise before any work if the output could not be written."""
    from turnwise.files import require_writable
    from turnwise.inference.sources import SlideTiles
    from turnwise.inference.writers import require_writer

    if args.output:
        path = Path(args.output)
        require_writer(path, [s.path for s in job.sources if isinstance(s, SlideTiles)])
        if path.suffix:
            require_writable(path, "choose another --output")


@contextmanager
def working_output(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the path beside which parts are kept: the output, or a temporary one."""
    if args.output:
        yield Path(args.output)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "printed"


def run_job(args: argparse.Namespace, work: "Work", identity: dict[str, Any]) -> "PartFolder":
    """Compute the parts that are missing, and return the folder of all parts."""
    from turnwise.inference.jobs import PartFolder

    folder, job = PartFolder(work.output), work.job
    folder.start({**job.identity(), **identity})
    missing = folder.missing(job)
    images = sum(len(job.images_of(part)) for part in missing)
    if len(missing) < job.parts:
        note(f"continuing: {len(job) - images:,} of {len(job):,} images are done")
    try:
        for _ in _shown(_engine(args, work, missing, images), images):
            pass
    except KeyboardInterrupt:
        if args.output:
            raise KeyboardInterrupt("run the same command again to continue") from None
        raise
    return folder


def _engine(args: argparse.Namespace, work: "Work", parts: list[int], images: int) -> Iterator[int]:
    from turnwise.inference.engines import run_local

    if not parts:
        return iter(())
    cores = os.cpu_count() or 1
    if args.engine == "ray":
        from turnwise.inference.ray_engine import run_on_ray

        actors = args.workers if args.workers > 0 else None
        return run_on_ray(work, parts, address=args.ray_address, actors=actors,
                          gpu=_devices(args.device)[0].startswith("cuda"))  # fmt: skip
    devices = _devices(args.device)
    default = 0 if images <= FEW else max(1, min(8, cores // len(devices) - 1))
    workers = args.workers if args.workers >= 0 else default
    return run_local(work, parts, devices, workers)


def _devices(name: str) -> list[str]:
    """Return the devices of a flag: one, several with commas between, or all GPUs."""
    import torch

    if name == "all":
        found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        require(bool(found), "--device all means every GPU, and there is none; try auto.")
        return found
    return [str(chosen_device(part)) for part in name.split(",")]


def finish_job(
    args: argparse.Namespace,
    folder: "PartFolder",
    job: "Job",
    table: "Table",
    broken: dict[str, str],
) -> int:
    """Write or print the table, list what could not be read, and return the number of rows."""
    from turnwise.inference.writers import print_csv, write_output

    counts = {"rows": 0}

    def chunks() -> Iterator[Any]:
        for part in range(job.parts):
            columns, unread = folder.read(part)
            broken.update(unread)
            counts["rows"] += len(next(iter(columns.values()), ()))
            if columns:
                yield columns

    try:
        if args.output:
            write_output(Path(args.output), chunks(), table)
        else:
            print_csv(sys.stdout, _some(chunks(), broken), table)
    except InputError as error:
        if counts["rows"] == 0 and broken:
            raise InputError(next(iter(broken.values()))) from error
        raise
    _list_broken(args, broken)
    if args.output:
        folder.remove()
    return counts["rows"]


def _some(chunks: Iterable[Any], broken: dict[str, str]) -> Iterator[Any]:
    from turnwise.inference.writers import EMPTY

    empty = True
    for columns in chunks:
        empty = False
        yield columns
    if empty:
        raise InputError(next(iter(broken.values()), EMPTY))


def _list_broken(args: argparse.Namespace, broken: dict[str, str]) -> None:
    import csv
    import io

    from turnwise.files import write_atomic

    for reason in list(broken.values())[:LISTED]:
        note(f"skipped: {reason}")
    if broken and args.output:
        path = Path(args.output)
        path = path.with_name(f"{path.stem}.broken.csv")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("input", "reason"), *broken.items()])
        write_atomic(path, text.getvalue().encode())
        note(f"{len(broken):,} inputs could not be read; they are listed in {path}")
    elif len(broken) > LISTED:
        note(f"{len(broken):,} inputs could not be read")


def _shown(counts: Iterator[int], total: int) -> Iterator[int]:
    """Report the rate and the time left: a bar on a terminal, else a line every 30 seconds."""
    from tqdm import tqdm

    if sys.stderr.isatty():
        with tqdm(total=total, unit=" images", leave=False, disable=total <= FEW) as bar:
            for count in counts:
                bar.update(count)
                yield count
        return
    begun = last = time.monotonic()
    done = 0
    for count in counts:
        done += count
        now = time.monotonic()
        if now - last >= SECONDS:
            last = now
            note(progress_line(done, total, now - begun))
        yield count


def progress_line(done: int, total: int, seconds: float) -> str:
    """Return one line of progress.

    >>> progress_line(500, 2000, 100.0)
    '500 of 2,000 images (25 %), 5.0 per second, 5 min 00 s left'
    """
    rate = done / seconds
    minutes, rest = divmod(round((total - done) / rate) if rate else 0, 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
    share = f"{100 * done / total:.0f} %"
    return f"{done:,} of {total:,} images ({share}), {rate:,.1f} per second, {left} left"
