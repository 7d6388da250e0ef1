"""turnwise predict: classify images of your own."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli import jobs
from turnwise.cli.terminal import OR_FILE
from turnwise.errors import require

if TYPE_CHECKING:
    from turnwise.inference.jobs import Job, PartFolder


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
    jobs.add_job_arguments(parser)


def predict(args: argparse.Namespace) -> int:
    """Classify images, or the tiles of slides, with a trained model. Each image is cropped to its
    central square and resampled to the model's size. An interrupted job with an output continues
    when the same command runs again."""
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


def _write_maps(args: argparse.Namespace, folder: "PartFolder", job: "Job") -> None:
    from turnwise.inference.maps import stitch_maps, write_map

    chunks = (folder.read(part)[0] for part in range(job.parts))
    for slide, found in stitch_maps(job.sources, chunks).items():
        write_map(Path(args.maps) / f"{Path(slide).stem}.{args.map_format}", found)
