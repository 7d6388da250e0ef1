"""turnwise embed: one invariant vector per image or tile, from any backbone."""

import argparse

from turnwise.cli import jobs
from turnwise.cli.terminal import note
from turnwise.errors import require

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
