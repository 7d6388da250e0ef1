"""Own images from files to a tested run: groups, skipped files, and a size that is not exact."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.evaluation import evaluate_run
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

RECIPE = {
    "model": {"name": "orbit_vit", "group": "C4", "patch": 4, "width": 8, "depth": 1, "heads": 1},
    "optimisation": {"batch_size": 32},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "evaluation": {"angles": 2},
}


@pytest.fixture
def source(tmp_path, rng):
    """Twelve patients with images of 10×10 of both classes; one file is broken, one is odd."""
    for patient in range(12):
        for label in ("ill", "well"):
            folder = tmp_path / "own" / f"p{patient:02}" / label
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 256, (10, 10), np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "own" / "p03" / "ill" / "2.png").write_bytes(b"no image")
    Image.new("L", (10, 7)).save(tmp_path / "own" / "p05" / "well" / "1.png")
    return tmp_path / "own"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_from_files_to_a_tested_run(source, tmp_path, capsys):
    data = {"name": f"folder:{source}", "on_error": "skip"}
    run = train(make_recipe({**RECIPE, "data": data}), tmp_path / "run")
    assert (
        "images of 10 pixels are padded to 12, where the model is exact" in capsys.readouterr().err
    )
    with run.skipped_file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [
        str(source / "p03" / "ill" / "2.png"), str(source / "p05" / "well" / "1.png"),
    ]  # fmt: skip
    assert "cannot be read" in rows[0]["reason"] and "7×10 pixels" in rows[1]["reason"]
    model = run.model()
    images = torch.rand(2, 1, 10, 10)
    assert model.preprocess(images).shape[-1] == 12
    result = evaluate_run(run)
    assert sum(result["group_counts"].values()) == 12 and min(result["group_counts"].values()) >= 1
    assert run.environment["data"]["groups"] == result["group_counts"]


def test_nothing_is_skipped_nothing_is_listed(source, tmp_path):
    (source / "p03" / "ill" / "2.png").unlink()
    (source / "p05" / "well" / "1.png").unlink()
    run = train(make_recipe({**RECIPE, "data": {"name": f"folder:{source}"}}), tmp_path / "run")
    assert not run.skipped_file.exists()
