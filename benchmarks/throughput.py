"""Images per second of the engines, against the model alone on the same cores; and memory.

    python benchmarks/throughput.py --images 100000

Tiles are generated into one .npz file, 32 × 32 grey levels.  "bare" calls the model on one batch
again and again, with all threads.  Every other measurement runs in a process of its own, whose
largest resident memory is reported, with that of its children, for a tenth of the images and for
all of them.  The record goes to benchmarks/throughput.jsonl.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from records import append_record

SIDE, BATCH, PART = 32, 64, 4096
REPOSITORY = Path(__file__).parents[1]


def make_model() -> torch.nn.Module:
    from turnwise.models import create_model

    torch.manual_seed(0)
    return create_model(
        "orbit_vit", group="C4", image_size=SIDE, patch=8, width=128, depth=4
    ).eval()


def write_tiles(path: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    np.savez(path, images=generator.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8))


def bare_rate(count: int) -> float:
    """Images per second of the model on one batch that is repeated."""
    model, images = make_model(), torch.rand(BATCH, 1, SIDE, SIDE)
    with torch.no_grad():
        model(model.preprocess(images))
        begun = time.perf_counter()
        for _ in range(count // BATCH):
            model(model.preprocess(images))
    return count // BATCH * BATCH / (time.perf_counter() - begun)


def engine_rate(engine: str, tiles: Path, count: int, processes: int, workers: int) -> float:
    """Images per second of a job over the first `count` tiles, without starting the engine."""
    from turnwise.inference.engines import Work, run_local
    from turnwise.inference.jobs import Job, PartFolder
    from turnwise.inference.preparation import Preparation
    from turnwise.inference.sources import ArrayImages

    source = ArrayImages(str(tiles), "images", count)
    job = Job((source,), Preparation(SIDE, 1), BATCH, PART)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(job, make_model, ("embedding",), Path(folder) / "out")
        PartFolder(work.output).start(job.identity())
        if engine == "local":
            counts = run_local(work, range(job.parts), ("cpu",) * processes, workers)
        else:
            from turnwise.inference.ray_engine import run_on_ray

            counts = run_on_ray(work, range(job.parts), actors=processes)
        done, begun = next(counts), time.perf_counter()
        rest = sum(counts)
        assert done + rest == count
        return rest / (time.perf_counter() - begun)


def megabytes() -> float:
    own, children = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return (own + children) / 1024


def measured(words: list[str]) -> dict[str, float]:
    """Run this file in another process, and return what it prints."""
    environment = os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    paths = [str(REPOSITORY / "src"), str(REPOSITORY / "benchmarks")]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, *words]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(ended.stdout.splitlines()[-1])


def measure_all(args: argparse.Namespace, tiles: Path) -> dict[str, float]:
    """Return the figures of every engine, each measured in a process of its own."""
    figures: dict[str, float] = {"images": args.images, "processes": args.processes}
    few = max(BATCH, args.images // 10)
    bare = measured(["--measure", "bare", str(tiles), str(few), "1", "0"])["rate"]
    figures["bare: images per second"] = bare
    cases = [("local", 1, 1), ("local", args.processes, 0), ("ray", args.processes, 0)]
    for engine, processes, workers in cases:
        if engine not in args.engines.split(","):
            continue
        name = f"{engine}, {processes} × {workers} readers"
        words = [str(processes), str(workers)]
        small = measured(["--measure", engine, str(tiles), str(few), *words])
        whole = measured(["--measure", engine, str(tiles), str(args.images), *words])
        figures[f"{name}: images per second"] = whole["rate"]
        figures[f"{name}: of bare"] = whole["rate"] / bare
        figures[f"{name}: MB for a tenth"] = small["megabytes"]
        figures[f"{name}: MB for all"] = whole["megabytes"]
        print(name, json.dumps(whole), flush=True)
    return figures


def measure_one(engine: str, tiles: str, count: str, processes: str, workers: str) -> None:
    torch.set_num_threads(1 if int(processes) > 1 else os.cpu_count() or 1)
    if engine == "bare":
        rate = bare_rate(int(count))
    else:
        rate = engine_rate(engine, Path(tiles), int(count), int(processes), int(workers))
    print(json.dumps({"rate": rate, "megabytes": megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engines", default="local,ray")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--measure", nargs=5, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure_one(*args.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        tiles = Path(folder) / "tiles.npz"
        write_tiles(tiles, args.images)
        figures = measure_all(args, tiles)
    command = f"python benchmarks/throughput.py --images {args.images}"
    print(json.dumps(append_record(args.output, command, figures)["figures"], indent=2))


if __name__ == "__main__":
    main()
