"""Every recipe of the repository can be read, states what to expect, and builds its model."""

import re
from pathlib import Path

import pytest
from records import read_records

from turnwise.data.catalogue import entry
from turnwise.models import create_model
from turnwise.training.recipe import read_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_model_of_a_recipe_is_built(path):
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


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_expected_result_was_measured(path):
    """A recipe says "not yet run" if and only if it has no record."""
    records = read_records(path.parents[1] / "benchmarks" / "recipes.jsonl")
    measured = path.stem in {record["figures"]["recipe"] for record in records}
    assert ("# Expect:  not yet run" in path.read_text()) != measured


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_published_result_is_stated_as_the_table_needs_it(path):
    """For GSA-Net and GE-ViT benchmarks/gsa_tables.py makes a column of it."""
    text = " ".join(path.read_text().replace("\n#", " ").split())
    published = re.search(r"published [\d.]+ %, selected on the (test|validation) split", text)
    is_other = not re.search("_gsa_net_|_ge_vit_", path.stem)
    assert published or is_other or "nothing was published" in text


def test_recipes_are_found():
    assert RECIPES
