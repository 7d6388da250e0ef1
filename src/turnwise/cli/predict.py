"""turnwise predict and serve: classify images of your own, as files or on a page."""

import argparse
import csv
import io
import sys
from pathlib import Path

from turnwise.cli.terminal import OR_FILE, add_device, chosen_device
from turnwise.errors import InputError, require
from turnwise.signals import handle_interrupts

CHUNK = 64  # files that are read at once
LOOPBACK = "127.0.0.1"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=OR_FILE)
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE",
        help="image files, or folders of PNG, JPEG, TIFF, BMP, WebP",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="CSV file (default: print the table)")
    add_device(parser, "auto")


def predict(args: argparse.Namespace) -> int:
    """Classify image files with a trained model. Each image is cropped to its central square and
    resampled to the model's size."""
    import torch
    from tqdm import tqdm

    from turnwise.data import read_image
    from turnwise.files import require_writable, write_atomic
    from turnwise.inference.loading import class_names, image_shape, open_trained
    from turnwise.inference.predictor import Predictor

    if args.output:
        require_writable(Path(args.output), "choose another --output")
    model = open_trained(args.model).to(chosen_device(args.device))
    predictor, classes = Predictor(model, batch_size=CHUNK), class_names(model)
    channels, size = image_shape(model)
    files = _image_files(args.images)
    quiet = len(files) <= CHUNK or not sys.stderr.isatty()
    rows = [["image", "label", *classes]]
    for start in tqdm(range(0, len(files), CHUNK), disable=quiet, leave=False):
        chunk = files[start : start + CHUNK]
        images = torch.stack([read_image(file, size, channels) for file in chunk])
        for file, row in zip(chunk, predictor.probabilities(images).tolist(), strict=True):
            label = classes[max(range(len(row)), key=row.__getitem__)]
            rows.append([str(file), label, *(f"{p:.4f}" for p in row)])
    if args.output:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        write_atomic(Path(args.output), text.getvalue().encode())
        print(f"{len(files)} images classified, written to {args.output}")
    else:
        csv.writer(sys.stdout).writerows(rows)
    return 0


def _image_files(given: list[str]) -> list[Path]:
    """Return the files, and the images at any depth in the folders, without hidden ones."""
    from turnwise.data.readers.image_files import SUFFIXES, image_files_below

    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = image_files_below(path)
            require(bool(inside), f"{path} holds no images ({', '.join(SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"{path} does not exist; give an image or a folder of images.")
    return found


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help=OR_FILE)
    parser.add_argument("--port", type=int, default=8765, help="0 for any (default: 8765)")
    parser.add_argument(
        "--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK}, this machine)"
    )
    add_device(parser, "cpu")


def serve(args: argparse.Namespace) -> int:
    """Open a page on this machine to drop an image on and rotate it, with the model's predictions.
    Only this machine can reach it, unless you set --host. Ctrl-C stops it."""
    from turnwise.deploy.server import ImageClassifier, ImageServer
    from turnwise.inference.loading import class_names, fill_of, open_trained

    require(0 <= args.port < 65536, f"--port {args.port} must be from 0 to 65535.")
    require(
        args.host not in ("0.0.0.0", "::", ""),
        f"--host {args.host!r} is every address at once; give the one that others should use.",
    )
    model = open_trained(args.model).to(chosen_device(args.device))
    classifier = ImageClassifier(str(args.model), model, class_names(model), fill_of(args.model))
    try:
        server = ImageServer(classifier, args.host, args.port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot listen on {args.host}:{args.port} ({reason}); try another --port."
        ) from error
    if args.host != LOOPBACK:
        print(f"careful: other machines can reach {args.host}, too", flush=True)
    address = f"http://{args.host}:{server.port}/"
    try:
        with handle_interrupts(server.interrupt):
            print(f"open {address} in a browser; Ctrl-C stops it", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()
    return 0
