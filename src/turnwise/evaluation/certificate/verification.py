"""A certificate, measured again: does it still hold, for the same weights on the same pictures?"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import InputError, require
from turnwise.evaluation.certificate.certificate import FORMAT, Certificate, from_plain
from turnwise.evaluation.certificate.schema import certificate_schema, find_misfit
from turnwise.evaluation.certificate.scores import PRECISIONS
from turnwise.evaluation.certificate.targets import (
    FILES,
    certify_request,
    is_code,
    open_target,
    read_request,
)
from turnwise.groups import PlanarGroup
from turnwise.models import list_models
from turnwise.models.shipped import shipped_folder
from turnwise.models.storage import CONFIG

# parts of a certificate, and what of their entries does not depend on the machine
MEASURED = {
    "elements": ("element", "meaning", *PRECISIONS),
    "controls": ("name",),
    "sizes": ("size", *PRECISIONS),
    "pictures": (),
}


@dataclass(frozen=True)
class Verification:
    """The certificate as it was, as it is now, and what speaks against it, in sentences."""

    before: Certificate
    now: Certificate
    objections: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.objections


def read_certificate(path: str | Path) -> tuple[Certificate, bool]:
    """The certificate in a JSON file, and the verdict that the file claims."""
    path = Path(path)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason}; give a certificate.json.") from error
    written = plain.get("format", 1) if isinstance(plain, dict) else None
    require(
        written == FORMAT,
        f"{path} is no certificate of format {FORMAT} (it has {written}); certify again.",
    )
    schema = certificate_schema()
    misfit = find_misfit(plain, schema, schema)
    require(misfit is None, f"{path} is damaged, at {misfit}; certify again.")
    return from_plain(plain), plain["holds"]


def verify(
    path: str | Path,
    *,
    target: str | None = None,
    against: str | None = None,
    data_dir: str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Verification:
    """Measure again what the certificate claims; `target` says where the model is now.

    A file must not choose what code runs here: a certificate of module:callable is verified only
    if the caller names that code as `target` (and an original of that kind as `against`).
    """
    before, claimed = read_certificate(path)
    require(
        bool(before.request),
        f"{path} does not say how it was made (it was made in Python); use turnwise certify.",
    )
    try:
        request = read_request(before.request)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error} Certify again.") from error
    for word, named, given in (
        ("target", request.target, target), ("against", request.against, against),
    ):  # fmt: skip
        require(
            given is not None or not is_code(named),
            f"{path} is about the code {named}, which a file must not run; if you trust that code, "
            f"say --{word} {named}.",
        )
    request = replace(
        request,
        target=target or _where(Path(path), request.target),
        against=against or request.against,
    )
    now, _ = certify_request(
        request, open_target(request), data_dir, device=device, progress=progress
    )
    return Verification(before, now, tuple(objections(before, now, claimed)))


def _where(certificate: Path, target: str) -> str:
    """What a certificate is about, or the run or model folder that it lies in.

    A folder may have been moved or copied with its certificate inside: a copy is to be measured
    itself, and not what it was copied from.
    """
    inside = certificate.parent
    is_model = any((folder / CONFIG).is_file() for folder in (inside, inside / "model"))
    return str(inside) if is_model and _names_folder(target) else target


def _names_folder(target: str) -> bool:
    """Whether a target is, or was, a run or model folder: nothing else that can be named."""
    is_file, is_shipped = Path(target).suffix.lower() in FILES, shipped_folder(target) is not None
    return not (is_file or is_shipped or is_code(target) or target in list_models())


def objections(before: Certificate, now: Certificate, claimed: bool) -> list[str]:
    """What speaks against the certificate; nothing where it still holds."""
    found = []
    if claimed != before.holds:
        found.append("the verdict in the file is not the one that its own figures give")
    if not before.holds:
        found.append(f"its figures do not show invariance under {before.claim}")
    told = {name: (getattr(before, name), getattr(now, name)) for name in ("group", "exact_part")}
    told |= {name: (_measured(before, name), _measured(now, name)) for name in MEASURED}
    for name, (said, found_now) in told.items():
        if said != found_now:
            found.append(f"under “{name}” it has not what it says was asked for")
    if before.request.get("target") != before.target:
        found.append("under “target” it has not what it says was asked for")
    if before.weights_sha256 != now.weights_sha256:
        found.append("the weights are not those that were certified")
    if before.data_sha256 != now.data_sha256:
        found.append("the pictures are not those that it was measured on")
    if not now.holds:
        found.append(f"measured again, {failures(now)}")
    return found


def _measured(certificate: Certificate, part: str) -> list[Any]:
    """What a part of the certificate is about: which elements in which precisions, and so on."""
    if part == "pictures":
        return [certificate.pictures]
    return [
        tuple(value if isinstance(value, (int, str)) else value is None
              for key, value in asdict(entry).items() if key in MEASURED[part])
        for entry in getattr(certificate, part)
    ]  # fmt: skip


def failures(certificate: Certificate) -> str:
    """What does not hold, in words."""
    group = PlanarGroup.named(certificate.group).name
    parts: list[Any] = [
        *(f"“{e.meaning}” fails" for e in certificate.elements if not e.holds),
        *(f"size {s.size} fails" for s in certificate.sizes if not s.holds),
        *(f"the control “{c.name}” is silent" for c in certificate.controls if not c.holds),
    ]
    if certificate.likeness is not None and not certificate.likeness.holds:
        parts.append(f"the answers are not those of {certificate.likeness.target}")
    entry = f"; the error enters at {certificate.entry}" if certificate.entry else ""
    return f"under {group}: {', '.join(parts) or 'nothing fails'}{entry}"
