"""All pretrained weights of the package: complete, invariant, and as described by their cards."""

import hashlib
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from records import read_records

import turnwise
from turnwise.data.catalogue import entry
from turnwise.groups import assert_equivariant
from turnwise.models import weights as pretrained
from turnwise.models.weights import CHECKOUT, ROOT, list_pretrained, read_card, weights_folder
from turnwise.reports.model_card import card_page, seed_figures

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(params=list_pretrained())
def name(request):
    return request.param


@pytest.fixture
def card(name):
    return read_card(weights_folder(name))


def test_the_documented_weights_exist():
    nano = {"dermamnist", "fashionmnist", "fashionmnist_rotated", "rotmnist"}
    documented = {f"turnwise_vit_nano.{data}" for data in nano}
    small = {"fashionmnist", "fashionmnist_rotated", "rotmnist"}
    documented |= {f"turnwise_vit_small.{data}" for data in small}
    assert documented <= set(list_pretrained())


def test_only_the_small_set_is_in_the_package():
    """The wheel of turnwise is under the MIT licence, and small."""
    inside = [path.parent for path in ROOT.glob("*/card.json")]
    assert [path.name for path in inside] == ["turnwise_vit_nano.rotmnist"]
    assert read_card(inside[0])["licence"] == "MIT"


def test_the_metadata_of_the_second_wheel_states_every_licence():
    project = tomllib.loads((CHECKOUT.parents[1] / "pyproject.toml").read_text())["project"]
    cards = [read_card(path.parent) for path in CHECKOUT.glob("*/card.json")]
    spelled = {card["licence"].replace("CC BY", "CC-BY").replace(" ", "-") for card in cards}
    assert spelled == set(project["license"].split(" AND "))


def test_installed_weights_are_found(tmp_path, monkeypatch):
    package = tmp_path / "turnwise_weights"
    shutil.copytree(ROOT / "turnwise_vit_nano.rotmnist", package / "turnwise_vit_nano.other")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert pretrained.find_more() == (package,)
    monkeypatch.setattr(pretrained, "MORE", pretrained.find_more())
    assert "turnwise_vit_nano.other" in list_pretrained()
    with pytest.raises(turnwise.InputError, match=r"turnwise_vit_nano.other"):
        turnwise.load("turnwise_vit_nano.absent")


def test_they_classify_rotated_digits():
    """The embedded digits, on some of which they were trained, rotated by 90°."""
    digits = turnwise.load_dataset("digits").test
    images = digits.images[:200].float() / 255
    model = turnwise.load("turnwise_vit_nano.rotmnist")
    with torch.no_grad():
        classes = model(model.preprocess(images.rot90(1, (2, 3)))).argmax(1)
    assert (classes == digits.labels[:200]).float().mean() > 0.97


def test_weights_load_and_match_their_hash(name, card):
    content = (weights_folder(name) / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == card["model"]["sha256"]
    model = turnwise.load(name)
    assert model.config.name == name.partition(".")[0] == card["model"]["name"]
    assert len(content) == card["bytes"]
    assert sum(p.numel() for p in model.parameters()) == card["weights"]
    assert all(p.dtype is torch.float32 and p.isfinite().all() for p in model.parameters())
    assert len(model.classes) == model.config.options["num_classes"]


def test_weights_are_invariant_and_not_constant(name, card):
    model = turnwise.load(name).double()
    exact, options = model.group.exact_subgroup(), model.config.options
    assert exact.order > 1 and exact.name == card["equivariance"]["group"]
    size, channels = options["image_size"], options["in_chans"]
    images = torch.rand(2, channels, size, size, dtype=torch.float64)
    assert_equivariant(lambda x: model(model.preprocess(x)), exact, images, tolerance=1e-10)
    assert card["equivariance"]["float64"] <= 1e-10
    assert card["equivariance"]["float32"] <= 1e-4


def test_the_figures_of_a_card_are_those_of_its_record(name, card):
    records = [r for path in BENCHMARKS.glob("*.jsonl") for r in read_records(path)]
    assert card["record"] in records, "the card's record is no line of benchmarks/*.jsonl"
    seeds = card["record"]["figures"]["seeds"].values()
    chosen = seed_figures(card)
    assert chosen["val_accuracy"] == max(seed["val_accuracy"] for seed in seeds)
    assert chosen["times_evaluated"] == 1
    assert card["recipe"]["seed"] == card["seed"]


def test_the_page_is_made_from_the_card(name, card):
    written = (weights_folder(name) / "card.md").read_text(encoding="utf-8")
    assert written == card_page(card), "run python benchmarks/ship_weights.py"


def test_the_licence_allows_no_more_than_that_of_the_data(name, card):
    known = entry(card["data"]["name"])
    closed = re.search("-NC|non-commercial", known.licence)
    assert card["licence"] == (known.licence if closed else "MIT")
    assert name.partition(".")[2].startswith(known.name)


def test_all_weights_together_are_small():
    files = [weights_folder(name) / "model.safetensors" for name in list_pretrained()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
