"""turnwise embed: one invariant vector per image or tile, from any backbone."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli import jobs
from turnwise.cli.terminal import chosen_device, note
from turnwise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from turnwise.inference.preparation import Preparation

BACKBONE = (
    "timm:NAME, hf:NAME, onnx:FILE, pt2:FILE, a run, a model folder, the name of pretrained "
    "weights, or module:callable (imports and runs that code)"
)


def backbone_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--group", default="", help="of the orbit: C4, D4, … (default: the model's own group)")
    add(
        "--combine",
        default="mean",
        help="how the vectors of all views are combined: mean, max, sum; none: no orbit",
    )
    add("--pool", default="auto", help="how tokens become a vector: auto, cls, mean, pooler")
    add("--size", type=int, default=0, help="side of the images, if not stated by the backbone")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE",
        help="images, folders, patterns such as 'scans/*.png', .npz files, tables with a column "
        "path, or slides with --tile",
    )  # fmt: skip
    parser.add_argument("--backbone", required=True, metavar="NAME", help=BACKBONE)
    backbone_arguments(parser)
    jobs.add_job_arguments(parser)


def embed(args: argparse.Namespace) -> int:
    """Compute one vector for each image or tile, invariant under a group, with any backbone. The
    output is CSV, Parquet or HDF5. An interrupted job continues when the same command runs
    again."""
    from turnwise.inference.backbones import BackboneName
    from turnwise.inference.engines import Work
    from turnwise.inference.loading import certificate_hash, hash_weights
    from turnwise.inference.writers import Table

    name = BackboneName(args.backbone, args.group, args.combine, args.pool, args.size)
    backbone = name.backbone()
    for line in backbone.notes:
        note(f"{args.backbone}: {line}")
    job, broken = jobs.make_job(args, args.sources, backbone.preparation)
    require(bool(args.output), "an embedding is long; give --output FILE.parquet, .csv or .h5.")
    jobs.require_output(args, job)
    weights, certificate = hash_weights(backbone.model), certificate_hash(name.name)
    with jobs.working_output(args) as output:
        work = Work(job, name.open, ("embedding",), output)
        folder = jobs.run_job(args, work, {"model": repr(name), "weights": weights})
        table = Table(
            constants={"weights_sha256": weights, "certificate_sha256": certificate},
            facts={
                "backbone": name.name, "group": name.group, "combine": name.combine,
                "pool": name.pool, "size": name.size, "patch_size": args.tile,
                "overlap": args.overlap,
            },
        )  # fmt: skip
        rows = jobs.finish_job(args, folder, job, table, broken)
    print(f"{rows:,} vectors written to {args.output}")
    return 0


def certify_embedding(args: argparse.Namespace) -> int:
    """Measure every route to an invariant embedding; the status is that of the chosen one."""
    from turnwise.evaluation.embeddings import BACKBONE as PLAIN
    from turnwise.evaluation.embeddings import measure_routes, orbit_route
    from turnwise.files import require_writable, write_json
    from turnwise.groups import PlanarGroup
    from turnwise.inference.backbones import BackboneName
    from turnwise.inference.loading import hash_weights
    from turnwise.reports.tables import format_error, format_percent, text_table

    if args.output:
        require_writable(Path(args.output), "choose another --output")
    group = PlanarGroup.named(args.group or "D4")
    name = BackboneName(args.target, "", args.combine, args.pool, args.size)
    backbone = name.backbone()
    for line in backbone.notes:
        note(f"{args.target}: {line}")
    images, words = _images(args, backbone.preparation)
    chosen = args.combine if args.combine != "none" else "mean"
    model = backbone.model.to(chosen_device(args.device))
    checks = measure_routes(model, group, images, combine=chosen, batch_size=args.chunk)
    route = PLAIN if args.combine == "none" else orbit_route(group, chosen)
    verdict = next(check.holds for check in checks if check.route == route)
    if args.output:
        stored = {
            "target": args.target, "group": group.name, "images": words, "route": route,
            "holds": verdict, "weights_sha256": hash_weights(backbone.model),
            "routes": [{**asdict(check), "holds": check.holds} for check in checks],
        }  # fmt: skip
        write_json(Path(args.output), stored)
    headers = [
        "route",
        "passes",
        "error",
        "neighbour overlap",
        "recall under rotation",
        "invariant",
    ]
    rows = [
        [check.route, f"{check.passes:.2f}×", format_error(check.error),
         format_percent(check.overlap), format_percent(check.recall),
         "yes" if check.holds else "no"]
        for check in checks
    ]  # fmt: skip
    print(f"embeddings of {args.target} under {group.name}, {words}")
    print(text_table(headers, rows))
    print(f"{route}: {'HOLDS' if verdict else 'DOES NOT HOLD'}")
    return 0 if verdict else 1


def _images(args: argparse.Namespace, prepare: "Preparation") -> tuple["Tensor", str]:
    """Return images in [0, 1] of the backbone's size, and where they come from, in words."""
    from turnwise.data import load_dataset
    from turnwise.data.batches import to_unit
    from turnwise.evaluation.certificate.targets import noisy_digits

    channels = prepare.channels or 3
    if not args.data:
        words = "embedded digits, resampled, with noise"
        return noisy_digits(args.images, channels, prepare.size), f"{args.images} {words}"
    dataset = load_dataset(
        args.data, data_dir=args.data_dir, image_size=prepare.size, channels=channels
    )
    images = to_unit(dataset.val.images[: args.images])
    return images, f"{len(images)} validation images of {dataset.name}"
