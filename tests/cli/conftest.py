"""The command line in this process, in an empty folder, with one tiny run for all the tests."""

import os
import shutil
import sys

import pytest
import yaml

from turnwise.cli.main import main
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

RECIPE = {
    "model": {"name": "orbit_vit", "group": "C4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
    "data": {"name": "digits"},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}


@pytest.fixture(autouse=True)
def empty_place(monkeypatch, tmp_path):
    """An empty working folder, no data sets from outside, and no way to the network."""
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def turnwise(capsys):
    """Runs a command: its exit status, what it printed, and what it said on stderr."""

    def run(*words):
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refused(turnwise):
    """Runs a command that must be refused with status 2 and one line; returns the line."""

    def run(command, *words):
        status, _, said = turnwise(command, *words)
        assert status == 2
        assert said.startswith(f"turnwise {command}: ")
        assert said.count("\n") == 1 and said.endswith("\n"), "one line, and no traceback"
        return said

    return run


@pytest.fixture
def recipe(empty_place):
    path = empty_place / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return train(make_recipe(RECIPE), tmp_path_factory.mktemp("runs") / "trained")


@pytest.fixture
def run(trained, empty_place):
    """A copy of the run, which a test may change."""
    return shutil.copytree(trained, empty_place / "run")


@pytest.fixture
def unread(monkeypatch):
    """Runs a command of whose words nobody reads any, as in `turnwise … 2>&1 | true`."""

    def run(*words):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w", buffering=1) as pipe, monkeypatch.context() as patch:
            for name in ("stdout", "stderr"):
                patch.setattr(sys, name, pipe)
            return main([str(word) for word in words])

    return run
