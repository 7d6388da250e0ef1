"""Kill trainings at random moments, resume them, and compare the weights with an unharmed run.

    python benchmarks/chaos.py --kills 100               # about an hour on two cores
    python benchmarks/chaos.py --kills 2 --processes 1   # a few minutes

Each round starts one training, kills it (SIGKILL, to one of its processes) after a random time,
resumes it until it ends, and compares both checkpoints bit by bit.  A killed prediction must leave
its table complete or absent.  Prints survived / tried, and keeps a line in benchmarks/chaos.jsonl.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from records import append_record

from turnwise.runs import Run
from turnwise.training.recipe import make_recipe

RECORD = Path(__file__).with_suffix(".jsonl")
TURNWISE = [sys.executable, "-m", "turnwise"]
RECIPE = {
    "model": {"name": "orbit_vit", "patch": 7, "width": 16, "depth": 2, "heads": 2,
              "drop_path": 0.1},
    "data": {"name": "digits", "augment": {"rotation": 15, "shift": 1}},
    "optimisation": {"batch_size": 80, "ema": 0.9},
    "trainer": {"max_epochs": 6, "accelerator": "cpu", "checkpoint_minutes": 0.001},
}  # fmt: skip


def start(*words: object) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*TURNWISE, *map(str, words)], env=environment, start_new_session=True,
                            **quiet)  # type: ignore[call-overload]  # fmt: skip


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of a process and of those that it started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
    return [process.pid, *map(int, listed.stdout.split())]


def same_weights(one: Run, other: Run) -> bool:
    """Return whether the last and the best weights agree to the bit."""
    for name in ("last", "best"):
        first, second = (run.read_checkpoint(name)["state_dict"] for run in (one, other))
        if first.keys() != second.keys() or not all(
            torch.equal(first[k], second[k]) for k in first
        ):
            return False
    return True


def kill_a_training(whole: Run, recipe: Path, seconds: float, draw: random.Random) -> bool:
    """Kill a training at a random moment, resume it, and compare it with the whole run."""
    run = Run(whole.path.with_name("killed"))
    shutil.rmtree(run.path, ignore_errors=True)
    process = start("train", recipe, "--output", run.path)
    for _ in range(20):
        time.sleep(draw.uniform(0, seconds))
        if process.poll() is None:
            os.kill(draw.choice(children(process)), signal.SIGKILL)
        if process.wait() == 0:
            return same_weights(whole, run)
        resumable = run.exists
        process = start("train", *(("--resume", run.path) if resumable else
                                   (recipe, "--output", run.path)))  # fmt: skip
        if not resumable:
            shutil.rmtree(run.path, ignore_errors=True)
        if process.wait() == 0:
            return same_weights(whole, run)
    return False


def kill_a_prediction(whole: Run, images: Path, seconds: float, draw: random.Random) -> bool:
    """Kill a prediction; its table must be complete or absent, and a second one succeeds."""
    table = images / "table.csv"
    process = start("predict", whole.path, images, "--output", table)
    time.sleep(draw.uniform(0, seconds))
    process.kill()
    process.wait()
    count = len(list(images.glob("*.png"))) + 1
    complete = not table.exists() or len(table.read_text().splitlines()) == count
    again = start("predict", whole.path, images, "--output", table).wait() == 0
    left = [path for path in images.iterdir() if path.name.startswith(".table")]
    return complete and again and not left and len(table.read_text().splitlines()) == count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0, help="draws the moments (default: 0)")
    args = parser.parse_args()
    draw, results = random.Random(args.seed), dict[str, list[bool]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = folder / "images"
        images.mkdir()
        for i in range(200):
            Image.new("L", (28, 28), i).save(images / f"{i}.png")
        for processes in args.processes:
            recipe, whole = folder / f"{processes}.yaml", Run(folder / f"whole{processes}")
            recipe.write_text(make_recipe(RECIPE, [f"trainer.devices={processes}"]).yaml())
            begin = time.monotonic()
            assert start("train", recipe, "--output", whole.path).wait() == 0, "it must train"
            seconds = time.monotonic() - begin
            for _ in range(args.kills):
                found = kill_a_training(whole, recipe, seconds, draw)
                results.setdefault(f"training, {processes} processes", []).append(found)
                print(f"training, {processes} processes: {'same' if found else 'DIFFERENT'}")
        for _ in range(args.kills):
            found = kill_a_prediction(whole, images, 10, draw)
            results.setdefault("prediction", []).append(found)
    counts = {kind: f"{sum(found)} / {len(found)}" for kind, found in results.items()}
    command = f"python benchmarks/chaos.py --kills {args.kills} --seed {args.seed}"
    append_record(RECORD, command, {"survived / tried": counts, "torch": str(torch.__version__)})
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
