"""The tables of docs/papers/roto.md, made from records with known figures."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from turnwise.training.recipe import make_recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("roto_tables")
    sys.modules.pop("roto_tables", None)


def run(stem, data="dermamnist", scores=(0.7, 0.8), **more):
    """Return a recipe and a record of its seeds; at the worst element scores are 0.1 lower."""
    recipe = make_recipe({"model": {"name": "resnet18"}, "data": {"name": "dermamnist"}})
    names = ("accuracy", "balanced_accuracy", "macro_f1", "auc")
    seeds = {
        str(number): {
            "scores": dict.fromkeys(names, score),
            "orbit_scores": {name: {"mean": score, "least": score - 0.1} for name in names},
            "weights": 1_500_000,
        }
        for number, score in enumerate(scores)
    }
    return stem, recipe, {"figures": {"recipe": stem, "data": data, "seeds": seeds, **more}}


def test_scores_are_given_upright_and_at_the_worst_element(tables):
    line = tables.scores([run("some")]).splitlines()[-1]
    assert line.startswith("| dermamnist, 28 | [some](../../recipes/some.yaml) | 1.50 M |")
    assert line.count("75.0 ± 5.0 / 65.0") == 4
    assert line.endswith("| 2 |")


def test_both_splits_of_the_data_are_in_the_table_and_other_data_are_not(tables):
    runs = [run("some", "dermamnist_c"), run("some"), run("other", "rotmnist")]
    data = [line.split(" | ")[0] for line in tables.scores(runs).splitlines()[2:]]
    assert data == ["| dermamnist, 28", "| dermamnist_c, 28"]


def test_a_record_without_scores_over_the_orbit_has_no_row(tables):
    stem, recipe, record = run("some")
    del record["figures"]["seeds"]["0"]["orbit_scores"]
    assert tables.scores([(stem, recipe, record)]) == tables.NONE


def test_speeds_are_ratios_to_the_plain_step_of_the_newest_measurement(tables):
    def record(step, device="cuda", compiled=True):
        times = {"plain": {"step": 0.004}, "auto": {"step": step}}
        case = {"case": "m @128", "geometry": "even", "times": times}
        figures = {"device": device, "batch": 96, "precision": "bf16", "compiled": compiled}
        return {"figures": {**figures, "results": [case]}, "machine": "H200"}

    records = [record(0.01), record(0.005), record(0.02, compiled=False), record(1.0, "cpu")]
    rows = tables.speed(records, "cuda").splitlines()[2:4]
    assert rows == [
        "| m @128 | even | batch 96, bf16, compiled | 4.0 ms | 1.25 |",
        "| m @128 | even | batch 96, bf16 | 4.0 ms | 5.00 |",
    ]
    assert tables.speed([], "cuda") == tables.NONE
