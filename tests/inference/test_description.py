"""The description in a file is read back, and refused in one line if it was changed."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.inference.description import Description, read_description

DESCRIPTION = Description(
    "vit",
    "C4",
    ("a", "b"),
    1,
    28,
    "float32",
    "float32",
    ("logits",),
    "00",
    "MIT",
    "0.1",
    {"kind": "class", "names": ["a", "b"]},
)
PATH = Path("net.onnx")


def changed(**values):
    return json.dumps({"format": 1, **asdict(DESCRIPTION), **values})


def test_a_description_is_read_back():
    assert read_description(DESCRIPTION.to_json(), PATH) == DESCRIPTION


def test_other_files_have_none():
    assert read_description(None, PATH) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, changed(format=2), changed(size="28"), changed(size=True),
     changed(size=0), changed(classes="ab"), changed(classes=[1]), changed(group="E8"),
     changed(pixels="int64"), changed(more=1), changed(target=[]), changed(target={"kind": "x"}),
     json.dumps({"format": 1})],
)  # fmt: skip
def test_a_changed_description_is_refused(text):
    with pytest.raises(InputError, match=r"the description inside net\.onnx cannot be read") as e:
        read_description(text, PATH)
    assert "\n" not in str(e.value)
