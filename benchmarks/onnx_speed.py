"""Measure onnxruntime beside torch in eager mode, on the same images, model and cores.

    python benchmarks/onnx_speed.py --threads 2
    python benchmarks/onnx_speed.py --models runs/first --record

Each model is exported by `turnwise export`.  Then both predict the same images through `Predictor`,
in turn, `--rounds` times each, so that what disturbs the machine disturbs both.  The fastest round
of each counts.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from records import append_record
from torch import nn

from turnwise.deploy.export import export
from turnwise.inference.exported import open_onnx
from turnwise.inference.loading import image_shape, open_trained
from turnwise.inference.predictor import Predictor

HERE = Path(__file__).parent
MODELS = ("turnwise_vit_nano.rotmnist",)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of torch; onnxruntime takes all")
    parser.add_argument("--record", action="store_true", help="keep the result")
    return parser.parse_args(words)


def seconds(model: nn.Module, images: torch.Tensor, batch_size: int) -> float:
    start = time.perf_counter()
    Predictor(model, batch_size=batch_size).probabilities(images)
    return time.perf_counter() - start


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the images per second of both, and the ratio."""
    eager = open_trained(name)
    channels, size = image_shape(eager)
    images = torch.rand(args.images, channels, size, size)
    with tempfile.TemporaryDirectory() as folder:
        export(eager, Path(folder) / "model.onnx")
        runtimes = {"torch": eager, "onnxruntime": open_onnx(Path(folder) / "model.onnx")}
        for model in runtimes.values():
            seconds(model, images[: args.batch_size], args.batch_size)
        rounds: dict[str, list[float]] = {key: [] for key in runtimes}
        for _ in range(args.rounds):
            for key, model in runtimes.items():
                rounds[key].append(seconds(model, images, args.batch_size))
    rates = {key: args.images / min(found) for key, found in rounds.items()}
    return {
        "model": name,
        "images_per_second": rates,
        "ratio": rates["onnxruntime"] / rates["torch"],
        "ratio_of_each_round": [
            a / b for a, b in zip(rounds["torch"], rounds["onnxruntime"], strict=True)
        ],
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    results = [compare(name, args) for name in args.models]
    print(json.dumps(results, indent=2))
    if args.record:
        figures = {"threads": args.threads, "batch_size": args.batch_size, "models": results}
        append_record(HERE / "onnx_speed.jsonl", shlex.join(["python", *sys.argv]), figures)


if __name__ == "__main__":
    main()
