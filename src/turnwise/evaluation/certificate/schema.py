"""The published form of a certificate (certificate.schema.json), and a check against it.

The check knows the words of JSON Schema that our schema uses, and no others.
"""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None),
}  # fmt: skip
WORDS = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "properties", "required",
    "additionalProperties", "items", "enum", "const", "anyOf", "minimum", "pattern",
}  # fmt: skip


def certificate_schema() -> dict[str, Any]:
    """The schema, as it is published with the package."""
    text = (
        files("turnwise.evaluation.certificate")
        .joinpath("certificate.schema.json")
        .read_text("utf-8")
    )
    return dict(json.loads(text))


def find_misfit(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str | None:
    """Where and how the value departs from the schema, e.g. ".elements[1]: lacks float64"."""
    assert schema.keys() <= WORDS, f"the check does not know {schema.keys() - WORDS}"
    if "$ref" in schema:
        return find_misfit(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        found = [find_misfit(value, choice, whole) for choice in schema["anyOf"]]
        return None if None in found else found[0]
    return _misfit_here(value, schema) or _misfit_inside(value, schema, whole)


def _misfit_here(value: Any, schema: Mapping[str, Any]) -> str | None:
    wanted = schema.get("type")
    if wanted is not None:
        is_flag = isinstance(value, bool) and wanted != "boolean"  # to Python, true is a number
        if is_flag or not isinstance(value, TYPES[wanted]):
            return f": must be {wanted}, is {_short(value)}"
    if "const" in schema and value != schema["const"]:
        return f": must be {schema['const']!r}, is {_short(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f": must be one of {schema['enum']}, is {_short(value)}"
    if "minimum" in schema and not value >= schema["minimum"]:
        return f": must be at least {schema['minimum']}, is {_short(value)}"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return f": must match {schema['pattern']}, is {_short(value)}"
    return None


def _misfit_inside(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str | None:
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        lacking = [name for name in schema.get("required", ()) if name not in value]
        if lacking:
            return f": lacks {', '.join(lacking)}"
        others = schema.get("additionalProperties", True)
        strange = [name for name in value if name not in known]
        if strange and others is False:
            return f": has {strange[0]}, which is unknown"
        rest = others if isinstance(others, dict) else {}
        parts = [(f".{name}", entry, known.get(name, rest)) for name, entry in value.items()]
    if isinstance(value, list):
        parts = [(f"[{i}]", entry, schema.get("items", {})) for i, entry in enumerate(value)]
    for where, entry, form in parts:
        misfit = find_misfit(entry, form, whole)
        if misfit is not None:
            return where + misfit
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
