"""The words of an error are part of the interface."""

import pytest

from turnwise.checks import InputError, require, require_divisible, require_known


def test_require_raises_its_message():
    require(True, "never said")
    with pytest.raises(InputError, match=r"^said$"):
        require(False, "said")


def test_an_unknown_name_gets_the_nearest_spelling():
    require_known("vit", ["vit", "orbit_vit"], "model")
    with pytest.raises(
        InputError, match=r"unknown model 'vti'\. Did you mean 'vit'\? Known: a, vit\."
    ):
        require_known("vti", ["vit", "a"], "model")
    with pytest.raises(InputError, match=r"unknown model 'zzz'\. Known: vit\."):
        require_known("zzz", ["vit"], "model")


def test_a_size_that_does_not_divide_gets_the_nearest_that_do():
    require_divisible(8, 4, "width", "heads")
    with pytest.raises(
        InputError, match=r"width = 10 must be a multiple of 4 \(heads\); try 8 or 12\."
    ):
        require_divisible(10, 4, "width", "heads")
    with pytest.raises(InputError, match="try 4"):
        require_divisible(0, 4, "width", "heads")
