"""Export a model as one file, and certify that file against the model, in the file's own runtime.

The file holds the model's preprocessing, its weights, and a description of itself (classes, sizes,
symmetry, hash and licence of the weights).  It is loaded again as its users will load it; then its
outputs are compared with those of the model at several batch sizes, and its invariance is
certified.  If either fails, no file is left.

float16 and int8 round more than the certificate of an exact model allows.  Such a file is kept if
its outputs are close to the model's, and its certificate states the errors that it has; it does
not hold.
"""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbelow

import torch
from torch import Tensor, nn

import turnwise
from turnwise.data.batches import to_unit
from turnwise.deploy.formats import open_written, require_format, write_file
from turnwise.deploy.program import Program, has_embedding, trace
from turnwise.errors import InputError, require, require_known
from turnwise.evaluation.certificate.certificate import Certificate
from turnwise.evaluation.certificate.certify import certify
from turnwise.evaluation.certificate.comparison import hash_weights, logit_change
from turnwise.evaluation.certificate.targets import Request, noisy_digits
from turnwise.evaluation.certificate.verification import describe_failures
from turnwise.files import fill_atomic, write_json
from turnwise.groups import PlanarGroup, act_on_image, equivariance_errors
from turnwise.groups.equivariance import COARSE_TOLERANCE, TOLERANCE
from turnwise.inference.description import PIXELS, Description
from turnwise.inference.exported import FileModel, to_bytes
from turnwise.inference.loading import class_names, image_shape
from turnwise.inference.predictor import PRECISIONS, Predictor
from turnwise.models.contract import TRIVIAL
from turnwise.models.registry import config_of

PRECISION_NAMES = ("float32", "float16", "int8")
BATCHES = (1, 3, 64)  # at which outputs are compared
IMAGES, ANGLES = 16, 8  # of the certificate
LIMIT = {"float32": TOLERANCE[torch.float32], "float16": COARSE_TOLERANCE, "int8": 0.25}


class CertificateError(InputError):
    """An exported file is not its model, or not as invariant as the model; it was removed."""


@dataclass(frozen=True)
class ExportOptions:
    """How a model is exported.

    format     "onnx", "pt2" or "aoti"; by default that of the file's suffix
    pixels     "float32": images in [0, 1]; "uint8": 0 to 255
    precision  of the weights and the computation: "float32", "float16", or "int8" (ONNX only)
    group      the symmetry to certify; by default the model's own; "C1" claims none
    channels, size  of the images, for a model that does not state them
    classes    their names, by default the model's
    licence    of the weights
    source     what the model is called, in the certificate
    """

    format: str = ""
    pixels: str = "float32"
    precision: str = "float32"
    group: str = ""
    channels: int = 0
    size: int = 0
    classes: tuple[str, ...] = ()
    licence: str = ""
    source: str = "the model in memory"

    def __post_init__(self) -> None:
        require_known(self.pixels, PIXELS, "type of pixels")
        require_known(self.precision, PRECISION_NAMES, "precision")


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    changes      the largest relative difference from the model's logits, for each batch size
    certificate  None where no symmetry is claimed, and for maps, which are only measured
    """

    path: Path
    description: Description
    changes: dict[int, float]
    certificate: Certificate | None

    @property
    def is_exact(self) -> bool:
        """Whether the file agrees with its model, and is invariant, to rounding in float32."""
        agrees = max(self.changes.values()) <= TOLERANCE[torch.float32]
        return agrees and (self.certificate is None or self.certificate.holds)


def certificate_path(path: Path) -> Path:
    """Return where the certificate of an exported file lies."""
    return path.with_name(f"{path.name}.certificate.json")


def export(model: nn.Module, path: str | Path, **options: object) -> Exported:
    """Write `model` as one .onnx or .pt2 file with a certificate beside it.

    Args:
        model: any classifier; of models that `create_model` built, sizes and classes are known.
        path: ends in .onnx or .pt2.
        options: the fields of `ExportOptions`.

    Raises `CertificateError`, and leaves no file, if the file is not what the model is.
    """
    chosen = ExportOptions(**options)  # type: ignore[arg-type]
    path = Path(path)
    require(
        not isinstance(model, FileModel),
        "this model is an exported file already; export the model that it was made from.",
    )
    kind = require_format(chosen.format, path)
    require(
        chosen.precision != "int8" or kind == "onnx",
        "int8 is written by onnxruntime, for ONNX files; choose .onnx or another precision.",
    )
    description, program, images = _prepare(model, chosen)
    graph = trace(program, _example(images, chosen))  # no parameter needs gradients
    found: list[Exported] = []

    def fill(temporary: Path) -> None:
        write_file(kind, graph, temporary, description)
        opened = open_written(kind, temporary, description)
        exported = _check(opened, model, images, chosen, path)
        if exported.certificate is not None:
            write_json(certificate_path(path), exported.certificate.plain())
        found.append(exported)

    fill_atomic(path, fill)
    return found[0]


def _prepare(model: nn.Module, options: ExportOptions) -> tuple[Description, Program, Tensor]:
    """Return the file's description, the program to trace, and images to check it on."""
    channels, size = image_shape(model)
    channels, size = options.channels or channels, options.size or size
    if channels is None or size is None:
        raise InputError(
            f"a {type(model).__name__} does not state which images it takes; give channels and "
            "size."
        )
    require(channels > 0 and size > 0, f"channels = {channels} and size = {size} must be positive.")
    own = getattr(model, "group", TRIVIAL)
    group = PlanarGroup.named(options.group or own)
    images = noisy_digits(max(BATCHES), channels, size)
    images = to_unit(to_bytes(images)) if options.pixels == "uint8" else images
    inside = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    embedding = has_embedding(inside, images[:2])
    logits = Predictor(inside).logits(images[:2])
    count = logits.shape[1]
    computing = options.precision if options.precision in PRECISIONS else "float32"
    program = Program(inside.to(PRECISIONS[computing]), computing, has_embedding=embedding).eval()
    kind = program.kind
    classes = options.classes or kind.names or class_names(model) or tuple(map(str, range(count)))
    require(
        len(classes) in (count, 2 if count == 1 else count),
        f"{len(classes)} class names were given for a model of {count} classes.",
    )
    description = Description(
        _name_of(model), group.name, classes, channels, size, options.pixels, options.precision,
        program.outputs, hash_weights(model), options.licence, turnwise.__version__,
        {**kind.plain(), "names": list(classes)},
    )  # fmt: skip
    return description, program, images


def _name_of(model: nn.Module) -> str:
    try:
        return config_of(model).name
    except InputError:
        return type(model).__name__


def _example(images: Tensor, options: ExportOptions) -> Tensor:
    """Return two images as the graph takes them."""
    return to_bytes(images[:2]) if options.pixels == "uint8" else images[:2]


def _check(
    opened: FileModel, model: nn.Module, images: Tensor, options: ExportOptions, path: Path
) -> Exported:
    """Compare the file with its model and certify it; raise unless it may be kept."""
    description = opened.description
    assert description is not None
    precision = options.precision
    changes = _changes(opened, model, images)
    worst = max(changes.values())
    require_close(worst, precision, path)
    certificate = None
    group = PlanarGroup.named(description.group)
    claims = group.exact_subgroup().order > 1
    if claims and Predictor(opened).logits(images[:1]).ndim == 4:
        _require_equivariant(opened, group, images[:4], precision, path)
    elif claims:
        request = Request(
            str(path), group.name, images=IMAGES, angles=ANGLES, shifts=0,
            precisions=("float32",), layers=False, against=options.source, fill="zeros",
            fresh_seed=randbelow(2**32),
        )  # fmt: skip
        certificate = certify(
            opened, group, images[:IMAGES], target=request.target,
            images_from="embedded digits, resampled, with noise", angles=ANGLES,
            scope=request.scope(), original=(options.source, model),
        )  # fmt: skip
        certificate = replace(certificate, request=request.plain())
        _require_certificate(certificate, precision, path)
    return Exported(path, description, changes, certificate)


def _require_equivariant(
    opened: FileModel, group: PlanarGroup, images: Tensor, precision: str, path: Path
) -> None:
    """Raise unless maps of logits rotate with the images; certificates are about single classes."""
    logits = Predictor(opened).logits
    exact = group.grid_elements()
    error = max(equivariance_errors(logits, group, images, act_out=act_on_image, elements=exact))
    if not error <= LIMIT[precision]:
        raise CertificateError(
            f"the maps of {path} do not rotate with the image (error {error:.1e} under "
            f"{group.name}); nothing was written. To export such a model, claim no symmetry: C1."
        )


def _changes(opened: FileModel, model: nn.Module, images: Tensor) -> dict[int, float]:
    """Return how far the file's outputs are from the model's, relative, for each batch size."""
    names = ("logits", "embedding") if opened.has_embedding else ("logits",)
    theirs = Predictor(model, names, batch_size=max(BATCHES), precision="float32").run(images)
    changes = {}
    for count in BATCHES:
        ours = Predictor(opened, names, batch_size=count).run(images[:count])
        differences = [
            logit_change(theirs[name][:count].double(), ours[name].double()) for name in names
        ]
        changes[count] = max(math.inf if math.isnan(d) else d for d in differences)
    return changes


def require_close(change: float, precision: str, path: Path) -> None:
    """Raise unless the outputs of a file are close to those of its model."""
    if not change <= LIMIT[precision]:
        raise CertificateError(
            f"the outputs of {path} differ from the model's by {change:.1e} of their size, and "
            f"{LIMIT[precision]:.1e} is the limit in {precision}; nothing was written."
        )


def _require_certificate(certificate: Certificate, precision: str, path: Path) -> None:
    """Raise unless the certificate holds; in a coarse precision, unless its controls pass."""
    if precision == "float32" and not certificate.holds:
        raise CertificateError(
            f"{path} is not invariant as claimed ({describe_failures(certificate)}); nothing was "
            "written. To export a model that is not invariant, claim no symmetry: group C1."
        )
    failed = [control.name for control in certificate.controls if not control.holds]
    if failed:
        raise CertificateError(
            f"a negative control of {path} failed ({failed[0]}); nothing was written."
        )
