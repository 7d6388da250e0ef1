"""The benchmark of --minutes: its files, its commands, its choice by validation, its table."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import minutes
import pytest
import torch
from records import append_record

from turnwise.data import load_dataset
from turnwise.training.choices import read_choices

JOB = {"set": "eurosat", "model": "chosen", "rate": "default", "minutes": 2.0, "seed": 1,
       "changes": []}  # fmt: skip


@pytest.fixture(scope="module")
def tiles():
    data = load_dataset("tiles")
    few = {
        split: getattr(data, split).take(torch.arange(0, len(getattr(data, split)), 20))
        for split in ("train", "val", "test")
    }
    return replace(data, **few)


def test_the_files_are_the_data_set(tiles, tmp_path):
    """With a copy of a test image in train, which is left out."""
    train = tiles.train
    copied = replace(train, images=train.images.clone())
    copied.images[3] = tiles.test.images[5]
    table = minutes.write_files(replace(tiles, train=copied), tmp_path)
    assert minutes.write_files(tiles, tmp_path) == table, "what exists is not written again"
    with table.open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 100 - 1
    again = load_dataset(str(table))
    assert again.classes == tiles.classes
    for split in ("val", "test"):
        assert torch.equal(getattr(again, split).images, getattr(tiles, split).images)
        assert torch.equal(getattr(again, split).labels, getattr(tiles, split).labels)
    kept = torch.arange(len(train)) != 3
    assert torch.equal(again.train.images, train.images[kept])


@pytest.mark.parametrize("model", minutes.MODELS)
def test_every_candidate_takes_the_settings_of_a_model(model, tmp_path):
    words = minutes.command_of({**JOB, "model": model, "rate": "0.001"}, tmp_path, tmp_path / "r")
    settings = [word for word in words if "=" in word]
    for row in read_choices("eurosat", "cpu"):
        recipe = row.recipe("eurosat", settings)
        plain = model != minutes.CHOSEN
        assert (recipe.model.name == "roto_resnet18") == (not plain)
        assert recipe.symmetry.name == "D4" and recipe.optimisation.learning_rate == 0.001
        assert recipe.evaluation.angles == 24 and recipe.trainer.select == "accuracy"


def test_final_runs_take_the_plain_model_that_validation_chose(tmp_path):
    for model, rate, value in (("ViT", "0.001", 0.7), ("ResNet-18", "0.004", 0.9),
                               ("chosen", "default", 0.95)):  # fmt: skip
        figures = {**JOB, "model": model, "rate": rate, "validation": value}
        append_record(tmp_path / "search.jsonl", "search", figures)
    args = SimpleNamespace(
        search=tmp_path / "search.jsonl", sets=["eurosat"], minutes=2.0, changes=[], seeds=[1, 2],
        models=list(minutes.MODELS),
    )  # fmt: skip
    found = [(job["model"], job["rate"], job["seed"]) for job in minutes.final_jobs(args)]
    assert found == [
        ("chosen", "default", 1), ("ResNet-18", "0.004", 1),
        ("chosen", "default", 2), ("ResNet-18", "0.004", 2),
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="no plain model was searched on eurosat with 5 minutes"):
        list(minutes.final_jobs(SimpleNamespace(**{**vars(args), "minutes": 5.0})))


def test_the_table_has_the_mean_and_the_range(tmp_path):
    for seed, value in ((1, 0.90), (2, 0.94)):
        test = {"accuracy": value, "accuracy_at_45": value - 0.01, "fill": "reflect",
                "accuracy_with_corners": value, "agreement": 1.0}  # fmt: skip
        figures = {**JOB, "seed": seed, "score": "accuracy", "network": "roto_resnet18",
                   "image_size": 64, "epochs": 30, "test": test}  # fmt: skip
        append_record(tmp_path / "final.jsonl", "final", figures)
    row = minutes.table(SimpleNamespace(records=tmp_path / "final.jsonl")).splitlines()[-1]
    for cell in ("92.0 % (90.0–94.0)", "91.0 % (89.0–93.0)", "reflect", "30", "2"):
        assert f"| {cell} |" in row
