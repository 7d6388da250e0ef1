"""Recipes are found by name: in a checkout, and in a package that holds them."""

import tomllib
from pathlib import Path

import pytest

from turnwise.models import list_models
from turnwise.training import shipped

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "recipes").glob("*.yaml"))


def test_every_recipe_of_the_checkout_is_found_by_name():
    assert shipped.list_recipes() == [path.stem for path in FILES]
    for path in FILES:
        assert shipped.find_recipe(path.stem).samefile(path)


@pytest.mark.parametrize("name", ["own_images_cpu", "own_images_gpu"])
def test_there_are_recipes_for_own_images(name):
    assert shipped.find_recipe(name) is not None


@pytest.mark.parametrize("name", ["", "nothing", "../recipes/rotmnist_vit", "recipes/rotmnist_vit"])
def test_other_words_are_no_recipes(name):
    assert shipped.find_recipe(name) is None


def test_a_package_that_holds_recipes_needs_no_checkout(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "turnwise"
    (package / "recipes").mkdir(parents=True)
    (package / "recipes" / "own.yaml").write_text("{}")
    monkeypatch.setattr(shipped, "PACKAGE", package)
    assert shipped.list_recipes() == ["own"]
    assert shipped.find_recipe("own") == package / "recipes" / "own.yaml"
    assert shipped.find_recipe("rotmnist_vit") is None


def test_the_wheel_holds_the_recipes_where_they_are_searched():
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert included == {"recipes": f"{shipped.PACKAGE.name}/recipes"}


def test_no_recipe_is_called_like_a_model():
    """`turnwise train NAME` would be ambiguous."""
    assert not set(shipped.list_recipes()) & set(list_models())
