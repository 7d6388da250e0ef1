"""The settings of a user's own images."""

import pytest

from turnwise.data.reading import Columns, Reading
from turnwise.errors import InputError
from turnwise.options import convert
from turnwise.training.recipe import make_recipe

MODEL = {"name": "vit"}


def test_lists_may_be_written_with_commas():
    assert convert(tuple[str, ...], "low, mild,high", "classes") == ("low", "mild", "high")
    assert convert(tuple[str, ...], ["low", "mild"], "classes") == ("low", "mild")
    assert convert(tuple[str, ...], "cyst", "label") == ("cyst",)


def test_every_setting_is_a_key_of_a_recipe():
    data = {"name": "t.csv", "group_by": "patient", "on_error": "skip", "columns": {"path": "p"}}
    recipe = make_recipe({"model": MODEL, "data": data}, ["data.columns.label=a,b"])
    expected = Columns(path="p", label=("a", "b"))
    assert recipe.data.reading == Reading(group_by="patient", on_error="skip", columns=expected)
    again = make_recipe({**recipe.plain(), "model": MODEL})
    assert again.data == recipe.data


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "groups/class"}, r"unknown layout 'groups/class'\. Did you mean 'group/class"),
        ({"on_error": "ignore"}, "unknown on_error 'ignore'"),
        ({"target": "regression"}, "unknown target 'regression'"),
        ({"min_side": 0}, r"min_side = 0 must be at least 1\."),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        Reading(**settings)


def test_settings_that_change_what_is_read():
    assert Reading(group_by="patient").reads_differently
    assert not Reading(on_error="skip").reads_differently
