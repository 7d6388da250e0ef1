"""Read YAML and JSON of unknown origin: plain values only, within limits.

YAML can name a part once and repeat it everywhere (`&name`, `*name`), so that 600 bytes unfold to
gigabytes, and it can name the type of a value (`!!timestamp`).  Recipes need neither, and both are
refused.  Depth, length and the number of digits are limited, because Python's own parsers fail on
extreme values in ways that depend on the interpreter.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from turnwise.errors import InputError

MAX_TEXT = 2**20  # bytes of a recipe
MAX_JSON = 2**26  # bytes of a JSON file; a certificate of hundreds of layers has 2**18
MAX_DEPTH = 32
MAX_DIGITS = 100


class _PlainLoader(yaml.SafeLoader):
    """A loader of mappings, lists, text, numbers, true, false and null."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise self._refusal("an alias (*name) is not read here; write the value itself", event)
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise self._refusal("a tag (!name) is not read here; write the value without it", event)
        if self.depth == MAX_DEPTH:
            raise self._refusal(f"parts lie in each other more than {MAX_DEPTH} deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # 0x_, or more digits than Python converts
            raise self._refusal("this is no number", node) from error
        if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
            raise self._refusal(f"a number has more than {MAX_DIGITS} digits", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key that appears twice: YAML would silently drop the first."""
        keys = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in keys:
                raise self._refusal(f"{name[:60]!r} stands twice in one part; leave one", key)
            keys.add(name)
        return super().construct_mapping(node, deep)

    def _refusal(self, words: str, where: Any) -> yaml.YAMLError:
        return yaml.constructor.ConstructorError(None, None, words, where.start_mark)


# dates stay text: no option is a date, and some dates do not exist
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str) -> Any:
    """Return the plain value in a YAML text; raise `InputError` with the reason in half a sentence.

    >>> parse_yaml("{width: 16, rate: .5, day: 2020-13-45}")
    {'width': 16, 'rate': 0.5, 'day': '2020-13-45'}
    """
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.YAMLError as error:
        raise InputError(_reason(error)) from error
    except RecursionError as error:
        raise InputError("its parts lie too deep in each other") from error


def _reason(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, on one line."""
    mark = getattr(error, "problem_mark", None)
    words = " ".join(str(getattr(error, "problem", None) or error).split())
    return words if mark is None else f"{words} (line {mark.line + 1}, column {mark.column + 1})"


def parse_json(content: bytes) -> Any:
    """Return the plain value in a JSON text; raise `InputError` with the reason.

    >>> parse_json(b'{"width": 16}')
    {'width': 16}
    """
    try:
        value = json.loads(content.decode("utf-8"), parse_int=_parse_int)
    except RecursionError as error:
        raise InputError("its parts lie too deep in each other") from error
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error
    _require_shallow(value)
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _require_shallow(value: Any) -> None:
    """Raise if lists and mappings lie too deep in each other for recursive code."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inside = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for part in inside for v in part if isinstance(v, dict | list) and v]
        if not level:
            return
    raise InputError("its parts lie too deep in each other")


def read_json(path: Path) -> Any:
    """Return the plain value in a JSON file; raise `InputError` with the reason."""
    try:
        return parse_json(read_limited(path, MAX_JSON))
    except OSError as error:
        raise InputError((error.strerror or str(error)).lower()) from error


def read_text(path: Path) -> str:
    """Return the content of a text file; raise `InputError` with the reason."""
    try:
        return read_limited(path, MAX_TEXT).decode("utf-8")
    except OSError as error:
        raise InputError((error.strerror or str(error)).lower()) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError("it is not text") from error


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a file; one of more than `limit` bytes is not read to its end."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"it has more than {limit:,} bytes")
    return content
