"""Hostile YAML and JSON are refused in one line, without long work or much memory."""

import time
import tracemalloc

import pytest

from turnwise.errors import InputError, require_kind, shown
from turnwise.parsing import MAX_DEPTH, MAX_JSON, MAX_TEXT, parse_json, parse_yaml, read_json
from turnwise.training.recipe import make_recipe, read_recipe

LEVELS = "\n".join(
    f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(10))}}}" for n in range(1, 12)
)
LISTS = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10))
HOSTILE = {
    "mappings that unfold": f"a0: &a0 {{x: 1}}\n{LEVELS}",
    "lists that unfold": f"l0: &l0 [lol]\n{LISTS}\nmodel: *l9",
    "an anchor inside itself": "model: &m {name: vit, inner: *m}",
    "a merge of itself": "a: &a\n  <<: *a",
    "a date that does not exist": "!!timestamp abc",
    "a tag on a number": "seed: !!int abc",
    "a tag that makes Python objects": "seed: !!python/object/apply:os.system [true]",
    "5,000 digits": f"seed: {'9' * 5000}",
    "5,000 hexadecimal digits": f"seed: 0x{'f' * 5000}",
    "no digit": "seed: 0x_",
    "no binary digit": "seed: 0b_",
    "deep lists": "[" * 5000,
    "deep mappings": "{a: " * 5000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(200)),
    "a long text": "a" * (MAX_TEXT + 1),
    "binary": "\0\1\2",
    "an unhashable key": "? {a: 1}\n: 2",
    "a key that is twice there": "seed: 1\nseed: 2",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_yaml_is_refused_quickly_and_in_little_memory(tmp_path, text):
    (tmp_path / "r.yaml").write_text(text)
    tracemalloc.start()
    start = time.monotonic()
    with pytest.raises(InputError, match=r"^[^\n]{1,400}$"):
        read_recipe(tmp_path / "r.yaml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.monotonic() - start < 5 and peak < 2**26


@pytest.mark.parametrize(
    "value", [v for v in HOSTILE.values() if len(v) < 20_000 and "\n" not in v]
)
def test_hostile_overrides_are_refused_in_one_line(value):
    values = {"model": {"name": "vit"}, "data": {"name": "digits"}}
    with pytest.raises(InputError, match=r"^[^\n]{1,400}$"):
        make_recipe(values, [f"seed={value}"])
    with pytest.raises(InputError, match=r"^[^\n]{1,400}$"):
        make_recipe(values, ["a." * 5000 + f"b={value[:9]}"])


def test_a_date_is_text():
    with pytest.raises(InputError, match="seed must be a whole number, got '2020-13-45'"):
        make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}}, ["seed=2020-13-45"])


def test_what_recipes_use_is_read():
    text = "a: {b: [1, 0x10, 1_000, -3, .5, 1e-3, yes, null, 'x', \"y\"]}\nc: |\n  text\n? d\n: e"
    assert parse_yaml(text) == {
        "a": {"b": [1, 16, 1000, -3, 0.5, "1e-3", True, None, "x", "y"]},
        "c": "text\n",
        "d": "e",
    }
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1))


def test_the_reason_names_the_place():
    with pytest.raises(InputError, match=r"alias .* \(line 2, column 4\)"):
        parse_yaml("a: &a 1\nb: *a")


def test_a_value_is_shown_in_few_words():
    loop: list = []
    loop.append([loop] * 100)
    assert len(shown(loop)) < 100
    assert shown(10**5000) == "a huge number" and shown("x" * 999).count("x") < 60
    with pytest.raises(InputError, match=r"^seed must be a whole number, got .{1,300}$"):
        require_kind([[["x" * 99] * 99] * 99] * 99, int, "seed")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "too deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "too deep"),
        (b"[" + b"9" * 5000 + b"]", "more than 100 digits"),
        (b"\xff\xfe", "utf-8"),
        (b"{", "Expecting"),
    ],
)
def test_hostile_json_is_refused(content, reason):
    with pytest.raises(InputError, match=reason):
        parse_json(content)


def test_a_huge_json_file_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_JSON * 100)
    with pytest.raises(InputError, match="more than 67,108,864 bytes"):
        read_json(path)
    assert parse_json(b'{"a": [1, {"b": []}]}') == {"a": [1, {"b": []}]}
