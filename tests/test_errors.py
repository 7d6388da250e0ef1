"""The text of an error message is part of the interface."""

import pytest

from turnwise.errors import (
    InputError,
    import_extra,
    require,
    require_divisible,
    require_kind,
    require_known,
    require_positive,
)


def test_require_raises_its_message():
    require(True, "never raised")
    with pytest.raises(InputError, match=r"^the message$"):
        require(False, "the message")


def test_an_unknown_name_suggests_the_nearest_spelling():
    require_known("vit", ["vit", "orbit_vit"], "model")
    with pytest.raises(
        InputError, match=r"unknown model 'vti'\. Did you mean 'vit'\? Known: a, vit\."
    ):
        require_known("vti", ["vit", "a"], "model")
    with pytest.raises(InputError, match=r"unknown model 'zzz'\. Known: vit\."):
        require_known("zzz", ["vit"], "model")


def test_a_value_that_is_not_divisible_suggests_the_nearest_that_are():
    require_divisible(8, 4, "width", "heads")
    with pytest.raises(
        InputError, match=r"width = 10 must be a multiple of 4 \(heads\); try 8 or 12\."
    ):
        require_divisible(10, 4, "width", "heads")
    with pytest.raises(InputError, match="try 4"):
        require_divisible(0, 4, "width", "heads")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, int),
        (1, float),
        (1.5, float),
        ("a", str),
        (True, bool),
        ((1, 2), tuple),
        ([[1], [2, 3]], tuple),
        ([], tuple),
    ],
)
def test_a_value_of_the_right_type_passes(value, kind):
    require_kind(value, kind, "x")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "x must be a whole number, got True"),
        (1.5, int, r"x must be a whole number, got 1\.5"),
        ("1", float, "x must be a number, got '1'"),
        (4, str, "x must be text, got 4"),
        (1, bool, "x must be true or false, got 1"),
        (True, float, "x must be a number, got True"),
        (20, tuple, "x must be a list, got 20"),
        ("20", tuple, "x must be a list, got '20'"),
        ({20: 1}, tuple, r"x must be a list, got \{20: 1\}"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(value, kind, message):
    with pytest.raises(InputError, match=message):
        require_kind(value, kind, "x")


def test_counts_must_be_at_least_one():
    require_positive(heads=1)
    with pytest.raises(InputError, match="heads = 0 must be at least 1"):
        require_positive(width=4, heads=0)


def test_the_extra_of_a_missing_package_is_named():
    words = r"a map needs the package no_such; install it with pip install turnwise\[slides\]\."
    with pytest.raises(InputError, match=words):
        import_extra("no_such.part", "slides", "a map")
