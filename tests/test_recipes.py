"""Every recipe in the repository can be read, says what to expect, and its model can be built."""

import re
from pathlib import Path

import pytest

from turnwise.data.catalogue import entry
from turnwise.models import create_model
from turnwise.reports.records import read_records
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


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_what_to_expect_was_measured(path):
    """A recipe says "not yet run" as long as it has no record, and no longer."""
    records = read_records(path.parents[1] / "benchmarks" / "recipes.jsonl")
    measured = path.stem in {record["figures"]["recipe"] for record in records}
    assert ("# Expect:  not yet run" in path.read_text()) != measured


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_what_was_published_is_said_in_the_words_that_the_table_reads(path):
    """Of GSA-Net and GE-ViT: benchmarks/gsa_tables.py makes a column of it."""
    text = " ".join(path.read_text().replace("\n#", " ").split())
    said = re.search(r"published [\d.]+ %, selected on the (test|validation) split", text)
    ours = not re.search("_gsa_net_|_ge_vit_", path.stem)
    assert said or ours or "nothing was published" in text


def test_there_are_recipes():
    assert RECIPES
