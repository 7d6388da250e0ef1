"""turnwise predict: classify images of your own."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli import jobs
from turnwise.cli.terminal import OR_FILE, chosen_device
from turnwise.errors import require

if TYPE_CHECKING:
    from torch import nn

    from turnwise.inference.jobs import Job, PartFolder
    from turnwise.inference.tiling import Tiling

TILES = 16  # in one forward pass


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=OR_FILE)
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE",
        help="images, folders, patterns such as 'scans/*.png', .npz files, tables with a column "
        "path, or slides with --tile",
    )  # fmt: skip
    parser.add_argument("--embedding", action="store_true", help="add the vector of each image")
    parser.add_argument(
        "--maps", metavar="FOLDER", help="also write a map of each slide, stitched from its tiles"
    )
    parser.add_argument(
        "--map-format", default="png", help="png: classes; tif, zarr: probabilities (default: png)"
    )
    parser.add_argument(
        "--masks", metavar="FOLDER",
        help="of a model of masks: write NAME.png, the class or instance of each pixel at full "
        "size, and NAME.overlay.png; --tile SIDE and --overlap as for slides (default: 256 and 64)",
    )  # fmt: skip
    jobs.add_job_arguments(parser)


def predict(args: argparse.Namespace) -> int:
    """Classify images, or the tiles of slides, with a trained model. Each image is cropped to its
    central square and resampled to the model's size. An interrupted job with an output continues
    when the same command runs again."""
    if args.masks:
        return _write_masks(args)
    from turnwise.data.targets import kind_of
    from turnwise.inference.backbones import ClassifierName
    from turnwise.inference.engines import Work
    from turnwise.inference.loading import certificate_hash, class_names, hash_weights
    from turnwise.inference.maps import require_map_format
    from turnwise.inference.writers import Table

    name = ClassifierName(args.model)
    model = name.open()
    job, broken = jobs.make_job(args, args.images, name.preparation())
    jobs.require_output(args, job)
    require(
        not args.maps or args.tile > 0, "--maps are stitched from tiles; give --tile SIDE, too."
    )
    require_map_format(args.map_format)
    weights = hash_weights(model)
    kind = kind_of(model).named(class_names(model))
    values = "probabilities" if kind.has_probabilities else "predictions"
    outputs = (values, "embedding") if args.embedding else (values,)
    with jobs.working_output(args) as output:
        work = Work(job, name.open, outputs, output)
        folder = jobs.run_job(args, work, {"model": repr(name), "weights": weights})
        table = Table(
            classes=kind.names,
            kind=kind,
            constants={
                "weights_sha256": weights,
                "certificate_sha256": certificate_hash(name.name),
            },
            facts={"model": name.name, "patch_size": args.tile, "overlap": args.overlap},
        )
        if args.maps:
            _write_maps(args, folder, job)
        rows = jobs.finish_job(args, folder, job, table, broken)
    if args.output:
        what = "tiles" if args.tile else "images"
        print(f"predictions for {rows:,} {what}, written to {args.output}")
    return 0


def _write_masks(args: argparse.Namespace) -> int:
    """Write the mask and the overlay of each image, by overlapping tiles."""
    import sys
    from functools import partial

    from PIL import Image
    from tqdm import tqdm

    from turnwise.data import read_image
    from turnwise.data.targets import kind_of
    from turnwise.data.targets.masks import Masks
    from turnwise.data.transforms import convert_channels
    from turnwise.files import fill_atomic
    from turnwise.inference.loading import image_shape, open_trained
    from turnwise.inference.predictor import Predictor
    from turnwise.inference.tiling import label_image, overlay, predict_map

    model = open_trained(args.model).to(chosen_device(args.device))
    require(
        isinstance(kind_of(model), Masks),
        f"{args.model} predicts no masks; leave --masks out, or give a model such as a run of "
        "turnwise_unet_small.",
    )
    predictor, (channels, side) = Predictor(model, batch_size=TILES), image_shape(model)
    files, tiling = _mask_files(args.images), _tiling(args, model, side)
    folder, quiet = Path(args.masks), not sys.stderr.isatty()
    for file in tqdm(files, unit=" images", disable=quiet, leave=False):
        image = read_image(file)
        fitted = convert_channels(image[None], channels or image.shape[0])[0]
        labels = label_image(predictor, predict_map(predictor, fitted, tiling))
        for name, pixels in (("", labels), (".overlay", overlay(image, labels))):
            picture = Image.fromarray(pixels)
            fill_atomic(folder / f"{file.stem}{name}.png", partial(picture.save, format="PNG"))
    print(f"{len(files):,} masks and overlays written to {folder}")
    return 0


def _mask_files(images: list[str]) -> list[Path]:
    """Return the image files, whose names without suffix must differ."""
    from turnwise.data.readers.image_files import image_files_below

    given = [Path(path) for path in images]
    files = [f for p in given for f in (image_files_below(p) if p.is_dir() else [p])]
    require(bool(files), f"{images[0]} holds no images; give image files or folders of them.")
    stems = [file.stem for file in files]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    require(
        twice is None, f"two images are called {twice}, and their masks would have one name; "
        "predict them in two calls, with other folders.",
    )  # fmt: skip
    return files


def _tiling(args: argparse.Namespace, model: "nn.Module", side: int | None) -> "Tiling":
    """Return the tiles given on the command line, or those that suit the model."""
    from turnwise.inference.exported import FileModel
    from turnwise.inference.tiling import Tiling

    if args.tile:
        return Tiling(args.tile, args.overlap)
    # an exported file takes one size
    return Tiling(side, side // 4) if isinstance(model, FileModel) and side else Tiling()


def _write_maps(args: argparse.Namespace, folder: "PartFolder", job: "Job") -> None:
    from turnwise.inference.maps import stitch_maps, write_map

    chunks = (folder.read(part)[0] for part in range(job.parts))
    for slide, found in stitch_maps(job.sources, chunks).items():
        write_map(Path(args.maps) / f"{Path(slide).stem}.{args.map_format}", found)
