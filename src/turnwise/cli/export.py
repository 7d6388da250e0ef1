"""turnwise export: write a model as one file for another program, with a certificate."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.certify import TARGET
from turnwise.cli.terminal import note
from turnwise.errors import require

if TYPE_CHECKING:
    from turnwise.deploy.export import Exported


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", help=TARGET)
    add("settings", nargs="*", metavar="key=value",
        help="options of a registered model or of the callable, e.g. width=64")  # fmt: skip
    add("--output", required=True, metavar="FILE", help="the file to write: .onnx or .pt2")
    add("--format", default="", metavar="NAME",
        help="onnx, pt2 (torch.export), aoti (compiled for this processor; also .pt2); default: "
        "that of the suffix")  # fmt: skip
    add("--pixels", default="float32",
        help="what the file takes: float32 (from 0 to 1) or uint8 (default: float32)")  # fmt: skip
    add("--precision", default="float32",
        help="float32, float16, or int8 (ONNX only); the last two are never exact")  # fmt: skip
    add("--group", default="",
        help="the symmetry to certify (default: the model's own); C1 claims none")  # fmt: skip
    add("--licence", default="", metavar="TEXT",
        help="licence of the weights (default: that of pretrained weights, or of data that forbid "
        "commercial use)")  # fmt: skip
    add("--size", type=int, default=0, help="side of the images, if the model does not state it")
    add("--channels", type=int, default=0, help="1 or 3, if the model does not state it")
    add("--seed", type=int, default=0, help="draws the weights of an untrained model (default: 0)")


def export(args: argparse.Namespace) -> int:
    """Write a model as one ONNX or torch.export file. The file contains the preprocessing and
    takes any number of images. It is loaded again in its own runtime, compared with the model and
    certified. Exit status: 0 if it is the model, 1 if not; then no file is left."""
    from turnwise.deploy.export import CertificateError, certificate_path
    from turnwise.deploy.export import export as export_model
    from turnwise.files import require_writable
    from turnwise.inference.loading import open_model, weights_licence

    output = Path(args.output)
    for path in (output, certificate_path(output)):
        require_writable(path, "choose another --output")
    for name in ("size", "channels"):
        require(getattr(args, name) >= 0, f"--{name} {getattr(args, name)} must be positive.")
    model = open_model(args.target, args.settings, group=args.group, seed=args.seed)
    note(f"exporting {args.target}; this takes seconds to minutes")
    try:
        exported = export_model(
            model, output, format=args.format, pixels=args.pixels, precision=args.precision,
            group=args.group, licence=args.licence or weights_licence(args.target),
            size=args.size, channels=args.channels, source=args.target,
        )  # fmt: skip
    except CertificateError as error:
        note(f"turnwise export: {error}")
        return 1
    print(describe(exported))
    return 0


def describe(exported: "Exported") -> str:
    """Return what was written, and how exact it is."""
    from turnwise.deploy.export import certificate_path

    path, description = exported.path, exported.description
    worst = max(exported.changes.values())
    sizes = ", ".join(map(str, exported.changes))
    lines = [
        f"{path}: {path.stat().st_size:,} bytes, {description.precision}, outputs "
        f"{', '.join(description.outputs)}",
        f"largest relative difference from the model, in batches of {sizes}: {worst:.1e}",
    ]
    certificate = exported.certificate
    if certificate is None:
        lines.append(f"no certificate: {_why_none(exported)}")
    else:
        error = max(element.float32 or 0.0 for element in certificate.elements)
        verdict = "invariant" if exported.is_exact else "approximately invariant, NOT exact"
        lines.append(f"{verdict} under {certificate.claim}: largest error {error:.1e}")
        lines.append(f"certificate: {certificate_path(path)}")
    return "\n".join(lines)


def _why_none(exported: "Exported") -> str:
    from turnwise.groups import PlanarGroup

    group = PlanarGroup.named(exported.description.group)
    if group.exact_subgroup().order == 1:
        return "no symmetry is claimed"
    return f"the outputs are maps, which rotate with the image under {group.exact_subgroup().name}"
