"""What an exported file states about itself: classes, image size, symmetry, origin.

`turnwise.export` stores it in the metadata of the file, as JSON under one key.  Files of other
programs have none.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from turnwise.data.targets import read_kind
from turnwise.errors import InputError, require
from turnwise.groups import PlanarGroup

KEY = "turnwise"  # in the metadata of an ONNX file
EXTRA = "turnwise.json"  # in the archive of a .pt2 file
FORMAT = 1
PIXELS = ("float32", "uint8")
MAX_TEXT = 10_000_000  # characters


@dataclass(frozen=True)
class Description:
    """The metadata of an exported file.

    name            of the model: a registered name or a class
    group           under which the outputs are claimed to be invariant; C1 claims nothing
    classes         the names of the classes, labels or columns of numbers
    target          the kind of target that it predicts, as `TargetKind.plain` returns it
    channels, size  of the images
    pixels          "float32": numbers from 0 to 1; "uint8": integers from 0 to 255
    precision       in which the graph computes
    outputs         their names, logits first
    weights_sha256  of the model that was exported, as its certificate states it
    licence         of the weights; empty if unknown
    turnwise        the version that wrote the file
    """

    name: str
    group: str
    classes: tuple[str, ...]
    channels: int
    size: int
    pixels: str
    precision: str
    outputs: tuple[str, ...]
    weights_sha256: str
    licence: str
    turnwise: str
    target: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False)


def read_description(text: str | None, path: Path) -> Description | None:
    """Return the description in the metadata of a file, None if there is none."""
    if text is None:
        return None
    try:
        require(len(text) <= MAX_TEXT, "it is too long")
        plain = json.loads(text)
        require(isinstance(plain, dict), "it is no table")
        require(plain.pop("format", None) == FORMAT, "it has another format")
        return _from_plain(plain)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"the description inside {path} cannot be read ({reason}); export the model again."
        ) from error


def _from_plain(plain: dict[str, Any]) -> Description:
    known = {field.name: field.type for field in fields(Description)}
    odd = sorted(plain.keys() ^ known.keys())
    require(not odd, f"{odd[0] if odd else ''} is missing or unknown")
    for name, kind in known.items():
        value = plain[name]
        if kind is int:
            fits = type(value) is int and value > 0
        elif name == "target":
            fits = isinstance(value, dict) and bool(read_kind(value))
        elif kind is str:
            fits = isinstance(value, str)
        else:
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        require(fits, f"{name} has another type")
    require(plain["pixels"] in PIXELS, f"pixels must be {' or '.join(PIXELS)}")
    PlanarGroup.named(plain["group"])
    lists = {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
    return Description(**{**plain, **lists})
