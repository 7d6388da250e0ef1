"""Run commands in this process, in an empty folder, with one tiny run that all tests share."""

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
def empty_folder(monkeypatch, tmp_path):
    """Change to an empty working folder, without data sets of the machine and without network."""
    monkeypatch.delenv("TURNWISE_DATA", raising=False)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def turnwise(capsys):
    """Run a command; return its exit status, its output, and its output on stderr."""

    def run(*words):
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refused(turnwise):
    """Run a command that must fail with status 2 and one line on stderr; return the line."""

    def run(command, *words):
        status, _, error = turnwise(command, *words)
        assert status == 2
        assert error.startswith(f"turnwise {command}: ")
        assert error.count("\n") == 1 and error.endswith("\n"), "one line, and no traceback"
        return error

    return run


@pytest.fixture
def recipe(empty_folder):
    path = empty_folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return train(make_recipe(RECIPE), tmp_path_factory.mktemp("runs") / "trained")


@pytest.fixture
def run(trained, empty_folder):
    """Return a copy of the run, which a test may change."""
    return shutil.copytree(trained, empty_folder / "run")


@pytest.fixture
def unread(monkeypatch):
    """Run a command whose output nobody reads, as in `turnwise … 2>&1 | true`."""

    def run(*words):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w", buffering=1) as pipe, monkeypatch.context() as patch:
            for name in ("stdout", "stderr"):
                patch.setattr(sys, name, pipe)
            return main([str(word) for word in words])

    return run
