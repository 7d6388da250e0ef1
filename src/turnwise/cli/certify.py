"""turnwise certify: does the answer change when the picture turns?"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.errors import InputError, require

if TYPE_CHECKING:
    from torch import Tensor, nn

    from turnwise.evaluation import Certificate
    from turnwise.evaluation.certificate.targets import Request

TARGET = (
    "a run, a model folder, shipped weights, a model's name (untrained), module:callable (imports "
    "and runs that code), a .pt2 file of torch.export, or an .onnx file"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", help=TARGET)
    add(
        "settings", nargs="*", metavar="key=value",
        help="options of a named model or of the callable, e.g. width=64",
    )  # fmt: skip
    add("--group", help="C4, D4, …, or several: C4,D4 (default: the model's own, else C4)")
    add("--pictures", type=int, default=32, help="how many (default: 32)")
    add("--data", default="", help="data set of the pictures (default: the run's own, else digits)")
    add("--size", type=int, default=0, help="of the pictures, where the model does not say")
    add("--channels", type=int, default=0, help="1 or 3, where the model does not say")
    add("--angles", type=int, default=24, help="steps of a full turn (default: 24)")
    add("--shifts", type=int, default=1, help="measure shifts up to so many pixels (default: 1)")
    add("--sizes", default="", help="certify at these sizes, too: 28,56")
    add(
        "--precisions",
        default="float64,float32",
        help="also bfloat16, float16 (default: float64, float32)",
    )
    add("--against", default="", help="the target that a file was exported from")
    add("--no-layers", action="store_true", help="do not look layer by layer")
    add("--chunk", type=int, default=64, help="pictures at a time (default: 64)")
    add("--seed", type=int, default=0, help="of an untrained model (default: 0)")
    add("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")
    add("--data-dir", help="where the data set is (default: $TURNWISE_DATA)")
    add("--output", help="JSON file (default: certificate.json in a run or folder); a page beside")


def certify(args: argparse.Namespace) -> int:
    """Measure whether a model's answer is invariant under a group, in float64 and float32,
    with negative controls, and where an error enters. Exit status 0 where the claim holds, 1 where
    it does not. Writes JSON and, beside it, a page."""
    from dataclasses import replace

    from turnwise.cli.devices import chosen_device
    from turnwise.evaluation.certificate.targets import certify_request, open_target, own_group

    groups = (args.group or "").split(",")
    request = _request(args, groups[0])
    for group in groups[1:]:
        replace(request, group=group)  # refuses what is no group before anything is measured
    device = chosen_device(args.device)
    model = open_target(request)
    groups = [group or own_group(request, model) for group in groups]
    held = []
    for group in groups:
        certificate, images = certify_request(
            replace(request, group=group), model, args.data_dir,
            device=device, progress=sys.stderr.isatty(),
        )  # fmt: skip
        _report(certificate, images, _output(args, group if len(groups) > 1 else ""))
        held.append(certificate.holds)
    return 0 if all(held) else 1


def _request(args: argparse.Namespace, group: str) -> "Request":
    from turnwise.evaluation.certificate.targets import Request

    try:
        sizes = tuple(int(size) for size in args.sizes.split(",") if size)
    except ValueError:
        raise InputError(f"--sizes {args.sizes} must be whole numbers, such as 28,56.") from None
    return Request(
        target=args.target, group=group, settings=tuple(args.settings), seed=args.seed,
        pictures=args.pictures, data=args.data, size=args.size, channels=args.channels,
        angles=args.angles, shifts=args.shifts, sizes=sizes,
        precisions=tuple(name for name in args.precisions.split(",") if name),
        layers=not args.no_layers, chunk=args.chunk, against=args.against,
    )  # fmt: skip


def _output(args: argparse.Namespace, group: str) -> Path | None:
    """Where the certificate goes; with several groups, one file for each."""
    output = Path(args.output) if args.output else None
    if output is None and Path(args.target).is_dir():
        output = Path(args.target) / "certificate.json"
    if output is not None:
        require(output.suffix != ".html", f"--output {output} is the JSON; end it in .json.")
    return output if output is None or not group else output.with_stem(f"{output.stem}-{group}")


def _report(certificate: "Certificate", images: "Tensor", output: Path | None) -> None:
    from turnwise.files import write_json
    from turnwise.reports.pages.certificate import certificate_page
    from turnwise.reports.pages.certificate_tables import describe
    from turnwise.reports.pages.page import write_page

    if output is not None:  # before anything is said: who listens may be gone
        html = certificate_page(certificate, images)
        write_json(output, certificate.plain())
        write_page(output.with_suffix(".html"), html)
    print(describe(certificate))
    if output is not None:
        print(f"a page for people: open {output.with_suffix('.html')} in a browser")
        print(f"written to {output}")


def sample_pictures(model: "nn.Module", count: int) -> "Tensor":
    """Embedded digits in the model's size and channels; noise in all, so that nothing is blank."""
    from turnwise.evaluation.certificate.targets import noisy_digits
    from turnwise.models.registry import config_of

    options = config_of(model).options
    return noisy_digits(count, options["in_chans"], options["image_size"])
