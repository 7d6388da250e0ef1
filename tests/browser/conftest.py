"""Fixtures of the browser tests: Chromium, and two small trained models."""

import shutil

import pytest
from chromium import NAMES, Browser

from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}); apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser):
    """The browser; a test fails if it caused an error or a warning."""
    yield browser
    browser.evaluate("1")  # receives the events that are still on their way
    assert browser.problems == []


def tiny_recipe(name):
    return make_recipe(
        {
            "model": {"name": name, "group": "C4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
            "data": {"name": "digits"},
            "optimisation": {"batch_size": 200, "learning_rate": 0.003},
            "trainer": {"max_epochs": 2, "accelerator": "cpu"},
        }
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A small equivariant model and its baseline, trained for two epochs."""
    folder = tmp_path_factory.mktemp("runs")
    names = {"equivariant": "orbit_vit", "baseline": "vit"}
    return [train(tiny_recipe(model), folder / name).path for name, model in names.items()]
