"""Every recipe in the repository can be read, says what to expect, and its model can be built."""

import re
from pathlib import Path

import pytest

from turnwise.data.catalogue import entry
from turnwise.models import create_model
from turnwise.training.recipe import read_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path):
    recipe = read_recipe(path)
    data = entry(recipe.data.name)
    assert create_model(
        recipe.model.name,
        group=recipe.model.group,
        num_classes=len(data.classes),
        in_chans=recipe.data.channels or data.channels,
        image_size=recipe.data.image_size or data.image_size,
        **recipe.model.options,
    )
    head = re.findall(r"^# (\w+): +(.+)", path.read_text(), re.MULTILINE)
    assert [key for key, _ in head] == ["Run", "Expect", "Takes", "Paper"]
    assert f"turnwise train recipes/{path.name}" in head[0][1]


def test_there_are_recipes():
    assert RECIPES
