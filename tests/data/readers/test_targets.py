"""Targets from columns: inferred from what they hold, or as the setting says."""

import pytest
import torch

from turnwise.data.dataset import Target
from turnwise.data.readers.targets import read_targets
from turnwise.data.reading import Reading
from turnwise.errors import InputError


def read(cells, **settings):
    return read_targets(cells, Reading(**settings), "t.csv")


@pytest.mark.parametrize(
    ("cells", "target", "values"),
    [
        ({"y": ["dog", "cat", "dog"]}, Target("class", ("cat", "dog")), [1, 0, 1]),
        ({"y": ["10", "9", "10"]}, Target("class", ("9", "10")), [1, 0, 1]),
        ({"y": ["1", "0", "1"]}, Target("class", ("0", "1")), [1, 0, 1]),
        ({"y": ["1", "b", "1"]}, Target("class", ("1", "b")), [0, 1, 0]),
        ({"y": ["1.5", "2", "-1e3"]}, Target("number", ("y",)), [[1.5], [2], [-1000]]),
        (
            {"a": ["1", "0"], "b": ["true", "False"]},
            Target("multilabel", ("a", "b")),
            [[1, 1], [0, 0]],
        ),
        ({"a": ["1", "2"], "b": ["0", "1"]}, Target("number", ("a", "b")), [[1, 0], [2, 1]]),
    ],
)
def test_inferred(cells, target, values):
    found, targets = read(cells)
    assert found == target and found.accepts(targets)
    assert targets.tolist() == values


def test_stated():
    target, values = read({"y": ["3", "1", "2"]}, target="number", unit="mm")
    assert target == Target("number", ("y",), "mm")
    assert values.tolist() == [[3], [1], [2]]
    target, values = read({"y": ["10", "9", "1"]}, target="ordinal")
    assert (target, values.tolist()) == (Target("ordinal", ("1", "9", "10")), [2, 1, 0])
    target, values = read({"y": ["hi", "lo"]}, target="ordinal", classes=("lo", "hi"))
    assert (target, values.tolist()) == (Target("ordinal", ("lo", "hi")), [1, 0])
    target, values = read({"y": ["cyst|stone", "", "stone; cyst", "stone"]}, target="multilabel")
    assert target == Target("multilabel", ("cyst", "stone"))
    assert values.tolist() == [[1, 1], [0, 0], [1, 1], [0, 1]] and values.dtype == torch.float32


@pytest.mark.parametrize(
    ("cells", "settings", "message"),
    [
        ({"a": ["x"], "b": ["y"]}, {}, r"columns a, b of t\.csv must all hold 0 and 1, or all num"),
        ({"a": ["0"], "b": ["1"]}, {"target": "class"}, r"takes one label column, .*label=a\."),
        ({"a": ["hi", "lo"]}, {"target": "ordinal"}, r"needs the order .* classes=hi,lo in asc"),
        (
            {"a": ["x", "y"]},
            {"classes": ("x", "z")},
            r"classes = x, z must be the classes of t\.csv, a",
        ),
        ({"a": ["x", "x"]}, {}, r"'a' of t\.csv has one class only, 'x'"),
        ({"a": ["1", "nan"]}, {"target": "number"}, r"t\.csv, row 2: a = 'nan' must be a finite"),
        ({"a": ["1"], "b": ["2"]}, {"target": "multilabel"}, "row 1: b = '2' must be 0 or 1"),
        ({"a": ["", ""]}, {"target": "multilabel"}, r"label column of t\.csv is empty"),
    ],
)
def test_refused(cells, settings, message):
    with pytest.raises(InputError, match=message):
        read(cells, **settings)
