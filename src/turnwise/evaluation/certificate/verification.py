"""Measure a certificate again: does it still hold, for the same weights on the same images?"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import InputError, require, shown
from turnwise.evaluation.certificate.certificate import Certificate, read_certificate
from turnwise.evaluation.certificate.targets import certify_request, open_target, read_request
from turnwise.inference.loading import FILES, is_code
from turnwise.models import list_models
from turnwise.models.storage import find_model
from turnwise.models.weights import pretrained_folder
from turnwise.options import to_plain

# figures that may differ between machines: below the floor they are rounding
FLOORS = {
    "float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-2, "agreement": 1e-9,
    "threshold": 0.0, "degrees": 0.0,
}  # fmt: skip
FLOOR, RELATIVE = 1e-4, 1e-2
WORST = "worst"  # the image with the largest error: where all is rounding, any image may be it
COMPARED = (
    "group", "exact_subgroup", "images", "elements", "controls", "sizes", "conditions", "angles",
    "transformations", "worst_images", "layers", "error_source", "original", "fill",
)  # fmt: skip
CLAIMS = ("group", "exact_subgroup", "images", "elements", "controls", "sizes")  # of version 0.1


@dataclass(frozen=True)
class Verification:
    """The certificate as stored, as measured now, and the objections to it, in sentences."""

    before: Certificate
    now: Certificate
    objections: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.objections


def verify(
    path: str | Path,
    *,
    target: str | None = None,
    against: str | None = None,
    data_dir: str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Verification:
    """Measure again what the certificate in a file claims.

    A file must not choose what code runs here.  A certificate of module:callable is verified only
    if the caller names that code.

    Args:
        path: a certificate as JSON.
        target: where the model is now; by default in the folder of the certificate, or as stored.
        against: where the model is that the target was exported from.
        data_dir: the folder of data sets.
        device: where to run the model.
        progress: show progress bars.
    """
    before, stated = read_certificate(path)
    require(
        bool(before.request),
        f"{path} does not say how to repeat the measurement (it was made in Python).",
    )
    try:
        request = read_request(before.request)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error} Certify again.") from error
    for word, stored, given in (
        ("target", request.target, target), ("against", request.against, against),
    ):  # fmt: skip
        require(
            given is not None or not is_code(stored),
            f"{path} is about the code {stored}, which a file must not run; if you trust that "
            f"code, give it yourself as `{word}`.",
        )
    request = replace(
        request,
        target=target or _find_target(Path(path), request.target),
        against=against or request.against,
    )
    now, _ = certify_request(
        request, open_target(request), data_dir, device=device, progress=progress
    )
    return Verification(before, now, tuple(find_objections(before, now, stated)))


def _find_target(certificate: Path, target: str) -> str:
    """Return the run or model folder that the certificate lies in, otherwise the stored target.

    A folder may have been moved or copied together with its certificate.  Then the copy must be
    measured, not what it was copied from.
    """
    is_file = Path(target).suffix.lower() in FILES
    is_pretrained = pretrained_folder(target) is not None
    if is_file or is_pretrained or is_code(target) or target in list_models():
        return target
    try:
        find_model(certificate.parent)
    except InputError:
        return target
    return str(certificate.parent)


def find_objections(before: Certificate, now: Certificate, stated: bool) -> list[str]:
    """Return what is wrong with a certificate; nothing if it still holds.

    Every figure is compared with the one that was measured now.  `stated` is the verdict in the
    file.
    """
    found = []
    if stated != before.holds:
        found.append("the verdict in the file does not follow from its own figures")
    if not before.holds:
        found.append(f"its figures do not show invariance under {before.claim}")
    if before.original and now.original:  # it may lie elsewhere now; its weights are compared
        now = replace(now, original=replace(now.original, target=before.original.target))
    for name in CLAIMS if before.is_of_0_1 else COMPARED:
        old, new = to_plain(getattr(before, name)), to_plain(getattr(now, name))
        difference = find_difference(old, new, name)
        if difference:
            found.append(f"“{name}” is not what was measured again: {difference}")
    if before.request.get("target") != before.target:
        found.append("“target” does not fit the request that the file states")
    if before.versions.keys() != now.versions.keys():
        found.append("“versions” lists other programs than a certificate does")
    if before.weights_sha256 != now.weights_sha256:
        found.append("the weights are not those that were certified")
    meaning = "" if before.is_of_0_1 else find_difference(before.model, now.model, "model")
    if meaning:
        found.append(f"the weights do not mean what they meant: {meaning}")
    if before.data_sha256 != now.data_sha256:
        found.append("the images are not those that it was measured on")
    if not now.holds:
        found.append(f"measured again, {describe_failures(now)}")
    return found


def find_difference(old: Any, new: Any, name: str) -> str:
    """Return the first difference of two plain values that is no rounding, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in {**old, **new} if key != "refusal"]
        found = (find_difference(old.get(key), new.get(key), key) for key in keys)
        return next((f"{name}, {words}" for words in found if words), "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        found = (find_difference(a, b, f"{name}[{i}]") for i, (a, b) in pairs)
        return next((words for words in found if words), "")
    return "" if _is_same(old, new, name) else f"{name} was {shown(old)} and is {shown(new)}"


def _is_same(old: Any, new: Any, name: str) -> bool:
    """Return whether two values agree; numbers may differ by rounding."""
    if name == WORST and isinstance(old, int) and isinstance(new, int):
        return True
    numbers = [v for v in (old, new) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 2 or all(isinstance(v, int) for v in numbers):
        return bool(old == new)
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    floor = FLOORS.get(name, FLOOR)
    return math.isclose(old, new, rel_tol=RELATIVE if floor > 1e-9 else 0.0, abs_tol=floor)


def describe_failures(certificate: Certificate) -> str:
    """Return what does not hold, in words."""
    parts = [
        *(f"“{e.meaning}” fails" for e in certificate.elements if not e.holds),
        *(f"size {s.size} fails" for s in certificate.sizes if not s.holds),
        *(f"“{c.condition}” fails" for c in certificate.conditions if not c.holds),
        *(f"the control “{c.name}” fails" for c in certificate.controls if not c.holds),
    ]
    original, source = certificate.original, certificate.error_source
    if original is not None and not original.holds:
        parts.append(f"the outputs are not those of {original.target}")
    entry = f"; the error enters at {source}" if source else ""
    return f"under {certificate.group}: {', '.join(parts) or 'nothing fails'}{entry}"
