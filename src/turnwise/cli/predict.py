"""turnwise predict: pictures in, labels and probabilities out."""

import argparse
import csv
import io
import sys
from pathlib import Path

from turnwise.errors import InputError, require

CHUNK = 64


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a run, a model folder or shipped weights")
    parser.add_argument(
        "pictures", nargs="+", help="files, or folders of PNG, JPEG, TIFF, BMP, WebP"
    )
    parser.add_argument("--output", help="CSV file to write (default: a table on the screen)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")


def predict(args: argparse.Namespace) -> int:
    """Classify pictures with a trained model. Each picture is cropped to its central square and
    resampled to the model's size."""
    import torch
    from tqdm import tqdm

    from turnwise.cli.devices import chosen_device
    from turnwise.data import read_image
    from turnwise.data.batches import to_unit
    from turnwise.files import write_atomic
    from turnwise.models import load
    from turnwise.models.registry import config_of

    model = load(args.model).to(device := chosen_device(args.device))
    options = config_of(model).options
    classes = getattr(model, "classes", ()) or [str(c) for c in range(options["num_classes"])]
    files = _files(args.pictures)
    quiet = len(files) <= CHUNK or not sys.stderr.isatty()
    rows = []
    with torch.no_grad():
        for start in tqdm(range(0, len(files), CHUNK), disable=quiet, leave=False):
            chunk = files[start : start + CHUNK]
            images = [read_image(f, options["image_size"], options["in_chans"]) for f in chunk]
            seen = model.preprocess(to_unit(torch.stack(images)).to(device))  # type: ignore[operator]
            for file, row in zip(chunk, model(seen).softmax(-1).tolist(), strict=True):
                label = max(range(len(row)), key=row.__getitem__)
                rows.append([str(file), classes[label], *(f"{p:.4f}" for p in row)])
    header = ["picture", "label", *classes]
    if args.output:
        text = io.StringIO()
        csv.writer(text).writerows([header, *rows])
        write_atomic(Path(args.output), text.getvalue().encode())
        print(f"{len(rows)} pictures classified, written to {args.output}")
    else:
        csv.writer(sys.stdout).writerows([header, *rows])
    return 0


def _files(given: list[str]) -> list[Path]:
    """The files themselves, and the pictures in and below folders, but for hidden ones."""
    from turnwise.data.readers.image_files import SUFFIXES, image_files_below

    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = image_files_below(path)
            require(bool(inside), f"{path} holds no pictures ({', '.join(SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"{path} does not exist; give a picture or a folder of pictures.")
    return found
