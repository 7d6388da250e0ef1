"""turnwise certify and verify: measure whether a model is invariant, now and again later."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.embed import certify_embedding
from turnwise.cli.terminal import add_data_dir, add_device, chosen_device
from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from torch import Tensor

    from turnwise.evaluation import Certificate
    from turnwise.evaluation.certificate.targets import Request

TARGET = (
    "a run, a model folder, the name of pretrained weights, a registered model (untrained), "
    "module:callable (imports and runs that code), a .pt2 file of torch.export, or an .onnx file"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    from turnwise.geometry.warps import AUTO, FILLS

    add = parser.add_argument
    add("target", help=TARGET)
    add("settings", nargs="*", metavar="key=value",
        help="options of a registered model or of the callable, e.g. width=64")  # fmt: skip
    add("--group", help="C4, D4, …, or several: C4,D4 (default: the model's own, else C4)")
    add("--images", type=int, default=32, help="number of images (default: 32)")
    add("--data", default="", help="data set of the images (default: the run's own, else digits)")
    add("--size", type=int, default=0, help="side of the images, if the model does not state it")
    add("--channels", type=int, default=0, help="1 or 3, if the model does not state it")
    add("--angles", type=int, default=24, help="equal steps over 360° (default: 24)")
    add("--shifts", type=int, default=1, help="measure shifts up to this many pixels (default: 1)")
    add("--fill", default=AUTO, choices=(AUTO, *FILLS),
        help="corners of images rotated off the grid (default: as the run, else by the images)",
    )  # fmt: skip
    add("--sizes", default="", help="certify at these image sizes, too: 28,56")
    add("--precisions", default="float64,float32",
        help="of float64, float32, bfloat16, float16 (default: float64,float32)")  # fmt: skip
    add("--against", default="", metavar="TARGET",
        help="the model that a file was exported from; the predictions must agree")  # fmt: skip
    add("--fresh", type=int, default=16, metavar="N",
        help="measure N random images of a new, printed seed, too (default: 16)")  # fmt: skip
    add(
        "--thorough",
        action="store_true",
        help="also measure training mode, torch.compile, bfloat16, 512 random images, more sizes",
    )
    add("--no-layers", action="store_true", help="do not measure layer by layer")
    add("--chunk", type=int, default=64, help="images per forward pass (default: 64)")
    add("--seed", type=int, default=0, help="draws the weights of an untrained model (default: 0)")
    add("--output", metavar="FILE",
        help="JSON file, with an HTML page beside it (default: in the run or folder)")  # fmt: skip
    add("--embedding", action="store_true",
        help="certify the vectors of a backbone, named as for turnwise embed, and measure the cost "
        "and the invariance of every route")  # fmt: skip
    add("--combine", default="mean",
        help="with --embedding, the route to certify: mean, max, sum; none: no orbit")  # fmt: skip
    add("--pool", default="auto", help="with --embedding: auto, cls, mean, pooler")
    add_device(parser, "cpu")
    add_data_dir(parser)


def certify(args: argparse.Namespace) -> int:
    """Measure whether a model is invariant under a group. The certificate covers float64 and
    float32, single images, random images and other sizes, has negative controls, shows at which
    layer an error enters, and says what was not tested. It is written as JSON
    and as an HTML page. Exit status: 0 if the model is invariant, 1 if not."""
    from dataclasses import replace

    from turnwise.evaluation.certificate.targets import (
        certify_request,
        default_group,
        open_target,
    )

    if args.embedding:
        return certify_embedding(args)
    groups = (args.group or "").split(",")
    request = _request(args, groups[0])
    for group in groups[1:]:
        replace(request, group=group)  # raises before anything is measured if it is no group
    _require_output(args)
    device, model = chosen_device(args.device), open_target(request)
    groups = [group or default_group(request, model) for group in groups]
    verdicts = []
    for group in groups:
        certificate, images = certify_request(
            replace(request, group=group), model, args.data_dir,
            device=device, progress=sys.stderr.isatty(),
        )  # fmt: skip
        _report(certificate, images, _output(args, group if len(groups) > 1 else ""))
        verdicts.append(certificate.holds)
    return 0 if all(verdicts) else 1


def verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", help="a certificate that turnwise certify wrote, as JSON")
    parser.add_argument(
        "--target", help="where the model is now (default: beside the certificate, or as stored)"
    )
    parser.add_argument(
        "--against", metavar="TARGET", help="where the model is that the file was exported from"
    )
    add_device(parser, "cpu")
    add_data_dir(parser)


def verify(args: argparse.Namespace) -> int:
    """Measure again what a certificate claims, on the same weights and images. A certificate of
    module:callable needs --target module:callable, which imports and runs that code. Exit status:
    0 if the certificate still holds, 1 if not."""
    from turnwise.evaluation.certificate.verification import verify as verify_certificate
    from turnwise.reports.pages.certificate import certificate_text

    found = verify_certificate(
        args.certificate, target=args.target, against=args.against, data_dir=args.data_dir,
        device=chosen_device(args.device), progress=sys.stderr.isatty(),
    )  # fmt: skip
    before, now = found.before, found.now
    print(certificate_text(now))
    print(
        f"measured again above; the file says that {before.target} was certified {before.date} "
        f"with turnwise {before.versions.get('turnwise', '?')}, torch "
        f"{before.versions.get('torch', '?')}"
    )
    if before.is_of_0_1:
        print("version 0.1 wrote it: what it claims was compared, its other figures were not")
    for objection in found.objections:
        print(f"- {objection}")
    print("STILL HOLDS" if found.holds else "DOES NOT HOLD")
    return 0 if found.holds else 1


def _request(args: argparse.Namespace, group: str) -> "Request":
    from turnwise.evaluation.certificate.targets import Request

    try:
        sizes = tuple(int(size) for size in args.sizes.split(",") if size)
    except ValueError:
        raise InputError(f"--sizes {args.sizes} must be whole numbers, such as 28,56.") from None
    return Request(
        target=args.target, group=group, settings=tuple(args.settings), seed=args.seed,
        images=args.images, data=args.data, size=args.size, channels=args.channels,
        angles=args.angles, shifts=args.shifts, sizes=sizes,
        precisions=tuple(name for name in args.precisions.split(",") if name),
        layers=not args.no_layers, chunk=args.chunk, against=args.against, fresh=args.fresh,
        thorough=args.thorough,
        fill=args.fill,
    )  # fmt: skip


def _require_output(args: argparse.Namespace) -> None:
    """Raise before anything is measured if the certificate could not be written."""
    from turnwise.files import require_writable

    output = _output(args, "")
    if output is not None:
        require(output.suffix != ".html", f"--output {output} is the JSON; end it in .json.")
        require_writable(output, "choose another --output")


def _output(args: argparse.Namespace, group: str) -> Path | None:
    """Return the file of the certificate; with several groups each has its own."""
    from turnwise.runs.run import Run

    output = Path(args.output) if args.output else None
    if output is None and Path(args.target).is_dir():
        output = Run(args.target).certificate_file
    return output if output is None or not group else output.with_stem(f"{output.stem}-{group}")


def _report(certificate: "Certificate", images: "Tensor", output: Path | None) -> None:
    from turnwise.files import write_json
    from turnwise.reports.pages import write_page
    from turnwise.reports.pages.certificate import certificate_page, certificate_text

    if output is not None:  # written first: the reader of the output may have gone
        html = certificate_page(certificate, images)
        write_json(output, certificate.plain())
        write_page(output.with_suffix(".html"), html)
    print(certificate_text(certificate))
    if output is not None:
        print(f"as a page: open {output.with_suffix('.html')} in a browser")
        print(f"written to {output}")
