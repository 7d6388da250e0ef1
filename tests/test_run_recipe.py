"""Seeds that are trained later are added to the last record, if its seeds were trained alike."""

import subprocess
import sys
from pathlib import Path

import pytest
from records import append_record, read_records

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "run_recipe.py"
RECIPE = """
model: {name: vit, patch: 14, width: 8, depth: 1, heads: 1}
data: {name: digits, fraction: 0.05}
trainer: {max_epochs: 1}
evaluation: {angles: 1}
"""
EARLIER = {"test_accuracy": 0.5, "val_accuracy": 0.5, "epochs": 1, "weights": 1}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    return tmp_path


def record(folder, **figures):
    append_record(folder / "records.jsonl", "x", {"recipe": "small"} | figures)


def run(folder, *words):
    command = [sys.executable, str(SCRIPT), "small.yaml", *words, "--records", "records.jsonl"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_seeds_are_added_to_the_last_record_on_the_same_data(folder):
    record(folder, data="digits", seeds={"0": EARLIER | {"test_accuracy": 0.1}})
    record(folder, seeds={"0": EARLIER})  # without data it is on the recipe's own
    record(folder, data="mnist", seeds={"7": EARLIER})
    ended = run(folder, "--seeds", "1", "--add")
    assert ended.returncode == 0, ended.stderr
    last = read_records(folder / "records.jsonl")[-1]["figures"]
    assert sorted(last["seeds"]) == ["0", "1"]
    assert last["seeds"]["0"]["test_accuracy"] == 0.5 and "commit" in last["seeds"]["0"]
    assert last["mean"] == (0.5 + last["seeds"]["1"]["test_accuracy"]) / 2


def test_seeds_with_other_epochs_are_refused_before_training(folder):
    record(folder, data="digits", seeds={"0": EARLIER | {"epochs": 3}})
    ended = run(folder, "--seeds", "1", "--add")
    assert ended.returncode == 1
    assert ended.stderr.strip() == "seed 0 had 3 epochs, these have 1; leave out --add"
    assert not (folder / "runs").exists()
    assert len(read_records(folder / "records.jsonl")) == 1
