"""Every set of weights that comes with the package: whole, invariant, and as its card says."""

import hashlib
import re
from pathlib import Path

import pytest
import torch

import turnwise
from turnwise.data.catalogue import entry
from turnwise.groups import assert_equivariant
from turnwise.models.shipped import list_pretrained, read_card, weights_folder
from turnwise.reports.model_card import card_page, seed_figures
from turnwise.reports.records import read_records

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(params=list_pretrained())
def name(request):
    return request.param


@pytest.fixture
def card(name):
    return read_card(weights_folder(name))


def test_the_promised_ones_are_there():
    nano = {"dermamnist", "fashionmnist", "fashionmnist_rotated", "rotmnist"}
    promised = {f"turnwise_vit_nano.{data}" for data in nano}
    small = {"fashionmnist", "fashionmnist_rotated", "rotmnist"}
    promised |= {f"turnwise_vit_small.{data}" for data in small}
    assert promised <= set(list_pretrained())


def test_they_know_turned_digits():
    """Of the embedded digits, some of which they were trained on, turned by a quarter."""
    digits = turnwise.load_dataset("digits").test
    images = digits.images[:200].float() / 255
    model = turnwise.load("turnwise_vit_nano.rotmnist")
    with torch.no_grad():
        answers = model(model.preprocess(images.rot90(1, (2, 3)))).argmax(1)
    assert (answers == digits.labels[:200]).float().mean() > 0.97


def test_it_loads_and_matches_its_hash(name, card):
    content = (weights_folder(name) / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == card["model"]["sha256"]
    model = turnwise.load(name)
    assert model.config.name == name.partition(".")[0] == card["model"]["name"]
    assert len(content) == card["bytes"]
    assert sum(p.numel() for p in model.parameters()) == card["weights"]
    assert all(p.dtype is torch.float32 and p.isfinite().all() for p in model.parameters())
    assert len(model.classes) == model.config.options["num_classes"]


def test_it_is_invariant_and_not_constant(name, card):
    model = turnwise.load(name).double()
    exact, options = model.group.exact_subgroup(), model.config.options
    assert exact.order > 1 and exact.name == card["equivariance"]["group"]
    size, channels = options["image_size"], options["in_chans"]
    images = torch.rand(2, channels, size, size, dtype=torch.float64)
    assert_equivariant(lambda x: model(model.preprocess(x)), exact, images, tolerance=1e-10)
    assert card["equivariance"]["float64"] <= 1e-10
    assert card["equivariance"]["float32"] <= 1e-4


def test_its_figures_are_those_of_its_record(name, card):
    records = [r for path in BENCHMARKS.glob("*.jsonl") for r in read_records(path)]
    assert card["record"] in records, "the card's record is no line of benchmarks/*.jsonl"
    seeds = card["record"]["figures"]["seeds"].values()
    chosen = seed_figures(card)
    assert chosen["val_accuracy"] == max(seed["val_accuracy"] for seed in seeds)
    assert chosen["times_examined"] == 1
    assert card["recipe"]["seed"] == card["seed"]


def test_its_page_is_made_from_its_card(name, card):
    written = (weights_folder(name) / "card.md").read_text(encoding="utf-8")
    assert written == card_page(card), "run python benchmarks/ship_weights.py"


def test_its_licence_allows_no_more_than_its_data(name, card):
    known = entry(card["data"]["name"])
    closed = re.search("-NC|non-commercial", known.licence)
    assert card["licence"] == (known.licence if closed else "MIT")
    assert name.partition(".")[2].startswith(known.name)


def test_all_together_stay_small():
    files = [weights_folder(name) / "model.safetensors" for name in list_pretrained()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
