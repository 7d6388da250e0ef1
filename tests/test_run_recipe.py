"""Seeds that are trained later join those of the last record, if they were trained alike."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.reports.records import append_record, read_records

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "run_recipe.py"
RECIPE = """
model: {name: vit, patch: 14, width: 8, depth: 1, heads: 1}
data: {name: digits, fraction: 0.05}
trainer: {max_epochs: 1}
evaluation: {angles: 1}
"""
EARLIER = {"test_accuracy": 0.5, "val_accuracy": 0.5, "epochs": 1, "weights": 1}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    return tmp_path


def record(place, **figures):
    append_record(place / "records.jsonl", "x", {"recipe": "small"} | figures)


def run(place, *words):
    command = [sys.executable, str(SCRIPT), "small.yaml", *words, "--records", "records.jsonl"]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_seeds_join_those_of_the_last_record_on_the_same_data(place):
    record(place, data="digits", seeds={"0": EARLIER | {"test_accuracy": 0.1}})
    record(place, seeds={"0": EARLIER})  # one that names no data is of the recipe's own
    record(place, data="mnist", seeds={"7": EARLIER})
    done = run(place, "--seeds", "1", "--add")
    assert done.returncode == 0, done.stderr
    last = read_records(place / "records.jsonl")[-1]["figures"]
    assert sorted(last["seeds"]) == ["0", "1"]
    assert last["seeds"]["0"]["test_accuracy"] == 0.5 and "commit" in last["seeds"]["0"]
    assert last["mean"] == (0.5 + last["seeds"]["1"]["test_accuracy"]) / 2


def test_seeds_of_other_epochs_are_refused_before_anything_is_trained(place):
    record(place, data="digits", seeds={"0": EARLIER | {"epochs": 3}})
    done = run(place, "--seeds", "1", "--add")
    assert done.returncode == 1
    assert done.stderr.strip() == "seed 0 had 3 epochs, these have 1; leave out --add"
    assert not (place / "runs").exists()
    assert len(read_records(place / "records.jsonl")) == 1
