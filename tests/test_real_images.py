"""The benchmark on real images: its recipes, its choice by validation, its table."""

import json
from types import SimpleNamespace

import pytest
import real_images
import torch
from records import append_record

from turnwise.data.catalogue import entry
from turnwise.models import create_model
from turnwise.training.recipe import make_recipe

CELL = {"set": "eurosat", "fraction": 1.0, "epochs": 3, "device": "cpu", "changes": []}


def job(**facts):
    return {**CELL, "model": "ResNet-18", "setting": "1e-3", "seed": 0, "stage": "search", **facts}


@pytest.mark.parametrize("name", real_images.SETS)
@pytest.mark.parametrize("model", real_images.MODELS)
def test_every_model_fits_every_set(name, model):
    recipe = make_recipe(real_images.values_of(job(set=name, model=model)))
    data = entry(recipe.data.name)
    with torch.device("meta"):
        made = create_model(
            recipe.model.name, group=recipe.model.group, in_chans=data.channels,
            image_size=real_images.SETS[name]["side"], **recipe.model.options,
        )  # fmt: skip
    assert (made.group.order == 1) == (model in real_images.PLAIN)


def scores(value):
    return {"accuracy": value, "balanced_accuracy": value, "auc": value, "agreement": 1.0}


def args(tmp_path, **facts):
    defaults = {
        "search": tmp_path / "search.jsonl", "records": tmp_path / "final.jsonl",
        "sets": ["eurosat"], "fractions": [1.0], "models": ["ResNet-18"], "epochs": 3,
        "device": "cpu", "changes": [], "seeds": [1, 2],
        "setting": None,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **facts})


def test_final_runs_take_what_validation_chose(tmp_path):
    for setting, value in (("1e-3", 0.7), ("2e-3", 0.9), ("4e-3", 0.8)):
        figures = job(setting=setting) | {"score": "accuracy", "validation": scores(value)}
        append_record(tmp_path / "search.jsonl", "search", figures)
    found = list(real_images.final_jobs(args(tmp_path)))
    assert [(j["setting"], j["seed"]) for j in found] == [("2e-3", 1), ("2e-3", 2)]
    with pytest.raises(SystemExit, match=r"no search of ViT on eurosat at 100%"):
        list(real_images.final_jobs(args(tmp_path, models=["ViT"])))
    without_search = list(real_images.final_jobs(args(tmp_path, models=["ViT"], setting="4e-3")))
    assert [(j["setting"], j["seed"]) for j in without_search] == [("4e-3", 1), ("4e-3", 2)]


def test_the_table_has_means_and_ranges_and_the_best_model_first(tmp_path):
    more = {"score": "accuracy", "parameters": 1000, "minutes": 1.5, "images_per_second": 9.0}
    for seed, value in ((1, 0.8), (2, 0.9)):
        figures = job(seed=seed) | more | {"test": scores(value), "test_over_group": scores(0.95)}
        append_record(tmp_path / "final.jsonl", "final", figures)
    ours = job(model="group ResNet", seed=1) | more | {"test": scores(0.9)}
    append_record(tmp_path / "final.jsonl", "final", ours)
    lines = real_images.table(tmp_path / "final.jsonl").splitlines()
    assert lines[0] == "**eurosat**, 100% of the training images"
    names = [line.split("|")[1].strip() for line in lines[4:]]
    assert names == ["ResNet-18, mean over D4", "group ResNet", "ResNet-18"]
    assert "| 85.0 % (80.0 %–90.0 %) |" in lines[-1] and lines[-1].endswith("| 2 |")


def test_a_result_needs_three_seeds(tmp_path):
    records = tmp_path / "final.jsonl"
    more = {"score": "accuracy", "parameters": 1000, "minutes": 1.5, "validation": scores(0.7)}
    for seed, value in ((1, 0.8), (2, 0.9), (3, 0.85)):
        assert real_images.results(records) == []
        append_record(records, "final", job(seed=seed) | more | {"test": scores(value)})
    (result,) = real_images.results(records)
    assert (result.data, result.images, result.side, result.exact) == ("eurosat", 2800, 64, False)
    assert result.accuracy == "85.00 ± 5.00 %" and result.validation == pytest.approx(0.7)


def test_a_recorded_run_is_not_repeated(tmp_path, capsys):
    done = job() | {"validation": scores(0.5)}
    append_record(tmp_path / "search.jsonl", "search", done)
    assert real_images.same(job(), json.loads(json.dumps(done)))
    assert not real_images.same(job(seed=1), done)
    options = args(tmp_path, stage="search", jobs=1, minutes=1.0, threads="1")
    assert real_images.run_all([job()], options) == 0
    assert "0 of 1 runs are left" in capsys.readouterr().out
