"""The tables of docs/papers/orbits.md are made from records, and records from one pass per view."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from turnwise.data import Examples
from turnwise.layers.orbit.combinations import COMBINATIONS, LEARNED
from turnwise.models import create_model, orbit

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return the module that makes the tables, with records of its own."""
    import posthoc_table

    shutil.copy(BENCHMARKS / "recipes.jsonl", tmp_path)
    monkeypatch.setattr(posthoc_table, "HERE", tmp_path)
    return posthoc_table


def add(path, **figures):
    record = dict.fromkeys(("command", "commit", "machine", "date"), "") | {"figures": figures}
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def row(table, name):
    (found,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_the_page_is_up_to_date(monkeypatch):
    import posthoc_table

    monkeypatch.setattr(sys, "argv", ["posthoc_table.py", "--check"])
    assert posthoc_table.main() == 0, "run python benchmarks/posthoc_table.py"


def test_every_table_is_in_the_page():
    import posthoc_table

    text = posthoc_table.PAGE.read_text(encoding="utf-8")
    begun = re.findall(r"<!-- (\w+): made by benchmarks/posthoc_table.py -->\n", text)
    assert sorted(begun) == sorted(posthoc_table.TABLES)
    assert begun == re.findall(r"<!-- (\w+) ends -->", text)


def test_our_columns_appear_with_their_records(tables, tmp_path):
    (tmp_path / "recipes.jsonl").write_text("")
    before = tables.experiment_table("tenth")
    assert "rotmnist_tenth_resnet" not in before
    assert row(before, "max_features") == ["88.73 %", "88.96 %", "89.41 %"]
    seeds = {"0": {"test_accuracy": 0.95}, "1": {"test_accuracy": 0.96}}
    add(tmp_path / "recipes.jsonl", recipe="rotmnist_tenth_orbit_resnet_c16_whole", seeds=seeds)
    add(
        tmp_path / "posthoc.jsonl",
        recipe="rotmnist_tenth_resnet",
        seeds={"0": {"bare": 0.5, "max": 0.75}},
    )
    after = tables.experiment_table("tenth")
    assert row(after, "mean_features") == [
        "88.99 %", "89.20 %", "89.73 %", "–", "95.50 ± 0.50 %",
    ]  # fmt: skip
    assert row(after, "max") == ["–", "–", "–", "75.00 %", "–"]
    assert tables.experiment_table("galaxies") == "No record yet."


def test_every_recipe_of_an_orbit_belongs_to_a_table(tables):
    """Its data are those of a table; its base is a recipe of the same data and model."""
    recipes = [p for p in sorted(tables.RECIPES.glob("*.yaml")) if tables.base_of(p)]
    assert len(recipes) >= 20
    for path in recipes:
        recipe = tables.read_recipe(path)
        base = tables.read_recipe(tables.RECIPES / f"{tables.base_of(path)}.yaml")
        assert tables.experiment_of(recipe) is not None
        assert tables.experiment_of(recipe) == tables.experiment_of(base)
        assert recipe.model.name == f"orbit_{base.model.name}"
        assert {"combine", "tune"} <= recipe.model.options.keys()
        own = base.model.options
        assert {k: recipe.model.options.get(k) for k in own if k != "drop_path"} == {
            k: v for k, v in own.items() if k != "drop_path"
        }, path.stem


def test_one_pass_per_view_gives_every_combination():
    import posthoc

    torch.manual_seed(0)
    bare = create_model("vit", width=16, depth=1, heads=2, image_size=8).eval()
    images = torch.rand(5, 1, 8, 8)
    logits = posthoc.answers_of_all(orbit(bare, "C8", "mean_features", mask=True), images)
    assert set(logits) == set(COMBINATIONS) - set(LEARNED)
    for name, found in logits.items():
        torch.testing.assert_close(found, orbit(bare, "C8", name, mask=True)(images))


def test_accuracies_are_counted():
    import posthoc

    torch.manual_seed(0)
    bare = create_model("vit", width=16, depth=1, heads=2, image_size=8).eval()
    examples = Examples(
        torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8), torch.randint(0, 10, (7,))
    )
    found = posthoc.accuracies(bare, "C4", False, examples, batch_size=3)
    seen = bare.preprocess(examples.images.float() / 255)
    for name, model in (("bare", bare), ("max", orbit(bare, "C4", "max"))):
        right = (model(seen).argmax(dim=1) == examples.labels).double().mean()
        assert found[name] == pytest.approx(float(right))
