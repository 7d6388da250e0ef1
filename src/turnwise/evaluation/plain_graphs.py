"""A torch.export file is read only if it holds a graph of plain operations and numbers.

torch's reader of these files unpickles custom objects, loads compiled libraries and evaluates
expressions as Python.  So the archive is looked through first: it may hold the parts named here and
no others, expressions of sizes in a small vocabulary, and operations of torch alone.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnwise.checks import InputError, require

PARTS = re.compile(
    r"[^/]+/(models/\w+\.json|data/weights/(weight_\d+|\w+_weights_config\.json)"
    r"|data/constants/(tensor_\d+|\w+_constants_config\.json)|data/sample_inputs/\w+\.pt"
    r"|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id))"
)
OPERATIONS = re.compile(
    r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.(getitem|\w{2,8}div|mul|add|sub"
    r"|eq|ne|le|lt|ge|gt|neg|pow|mod|and_|or_|not_)|math\.\w+|torch\.sym_\w+"
)
SIZES = {
    "Symbol", "Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "FloorDiv",
    "CleanDiv", "CeilDiv", "PythonMod", "ModularIndexing", "Equality", "Unequality", "LessThan",
    "GreaterThan", "StrictLessThan", "StrictGreaterThan", "And", "Or", "Not", "Eq", "Ne", "Le",
    "Lt", "Ge", "Gt", "positive", "nonnegative", "integer", "True", "False", "true", "false", "oo",
    "int_oo", "L", "size", "args", "and", "or", "not",
}  # fmt: skip
SYMBOL = re.compile(r"[a-z]{1,2}\d+")  # s31, u0
STRINGS = re.compile(r"'\w+'")
SIGNS = re.compile(r"[\w\s()\[\],=<>!+\-*/%.]*")


def require_plain_graph(path: Path) -> None:
    """Refuse an archive that holds more than weights and a graph of torch's operations."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            strange = [name for name in names if not PARTS.fullmatch(name)]
            graphs = [json.loads(archive.read(n)) for n in names if "/models/" in n]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is no file of torch.export; write one with torch.export.save."
        ) from error
    require(
        not strange,
        f"{path} holds {strange[0] if strange else ''}, which is neither weights nor a graph, and "
        "might run on its own; export the model alone, with torch.export.save.",
    )
    require(bool(graphs), f"{path} holds no graph; write one with torch.export.save.")
    for graph in graphs:
        for kind, text in _texts(graph):
            _require_harmless(path, kind, text)


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Everything in the graph that torch would evaluate, or look up as a function."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key in ("expr_str", "target") and isinstance(entry, str):
                yield key, entry
            elif key == "guards_code" and isinstance(entry, list):
                yield from (("expr_str", str(guard)) for guard in entry)
            else:
                yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _require_harmless(path: Path, kind: str, text: str) -> None:
    if kind == "target":
        harmless = OPERATIONS.fullmatch(text) is not None
    else:
        bare = STRINGS.sub("", text)
        words = re.findall(r"[A-Za-z_]\w*", bare)
        harmless = SIGNS.fullmatch(bare) is not None and all(
            word in SIZES or SYMBOL.fullmatch(word) for word in words
        )
    require(
        harmless,
        f"{path} holds {text[:60]!r}, which is no operation of torch and no size; it was not "
        "evaluated. Export the model again.",
    )


@contextmanager
def only_weights() -> Iterator[None]:
    """Inside, torch.load opens nothing but tensors and plain values, whoever calls it."""
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before
