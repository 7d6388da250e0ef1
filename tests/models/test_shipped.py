"""Shipped weights are found by name, and held against their cards."""

import json

import pytest
import torch

import turnwise
from turnwise.errors import InputError
from turnwise.models import shipped
from turnwise.models.shipped import list_pretrained, read_card, shipped_folder
from turnwise.models.storage import read_config

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8, "num_classes": 3}
NAME = "orbit_vit.letters"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A shelf with one set of weights, and a working folder elsewhere."""
    root = tmp_path / "weights"
    monkeypatch.setattr(shipped, "ROOT", root)
    model = turnwise.create_model("orbit_vit", group="D4", **SMALL)
    folder = turnwise.save(model, root / NAME, classes=["a", "b", "c"])
    config = read_config(folder)
    card = dict.fromkeys(shipped.PARTS)
    card |= {"format": 1, "model": {key: config[key] for key in shipped.DESCRIBED}}
    (folder / "card.json").write_text(json.dumps(card))
    (root / "README.md").write_text("no weights")
    (root / ".half_written.letters").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def test_an_empty_shelf_and_none(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    assert list_pretrained() == []
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "nowhere")
    assert list_pretrained() == []


def test_only_folders_of_weights_are_listed(shelf):
    assert list_pretrained() == [NAME]
    assert list_pretrained("orbit_*") == [NAME]
    assert list_pretrained("gsa*") == []


def test_a_name_opens_the_weights(shelf):
    by_name, by_path = turnwise.load(NAME), turnwise.load(shelf / NAME)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(by_name(x), by_path(x))
    assert by_name.classes == ("a", "b", "c") and not by_name.training


def test_what_is_here_goes_before_what_is_shipped(shelf, tmp_path):
    assert shipped_folder(NAME) == shelf / NAME
    turnwise.save(turnwise.create_model("vit", **SMALL), tmp_path / "here" / NAME)
    assert shipped_folder(NAME) is None
    assert turnwise.load(NAME).config.name == "vit"


def test_other_names_are_told_what_there_is(shelf):
    assert shipped_folder("orbit_vit.digits") is None
    with pytest.raises(InputError, match=rf"config\.json\. Shipped weights are: {NAME}\.$"):
        turnwise.load("orbit_vit.digits")


def damage_card(folder):
    (folder / "card.json").write_text("{")


def lose_card(folder):
    (folder / "card.json").unlink()


def cut_card(folder):
    (folder / "card.json").write_text('{"format": 1}')


def list_for_a_card(folder):
    (folder / "card.json").write_text("[]")


def age_card(folder):
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"format": 2}))


def empty_model(folder):
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"model": None}))


def flip_a_bit(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def put_other_weights(folder):
    """Whole in itself: weights, configuration and its hash; only the card knows better."""
    model = turnwise.create_model("orbit_vit", group="D4", **SMALL)
    turnwise.save(model, folder, classes=["a", "b", "c"])


def rename_classes(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classes": ["c", "b", "a"]}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_card, r"card\.json cannot be read: .*; install turnwise again\.$"),
        (lose_card, r"card\.json cannot be read: no such file or directory; install"),
        (cut_card, r"card\.json lacks bytes, data, .*; install"),
        (list_for_a_card, r"card\.json lacks bytes, data, .*; install"),
        (age_card, r"card\.json has format 2, this version reads 1; update turnwise"),
        (empty_model, r"card\.json describes no model; install"),
        (flip_a_bit, r"model\.safetensors is not the file .* \(its hash differs\)"),
        (put_other_weights, r"is not what its card\.json describes \(sha256 differ\); install"),
        (rename_classes, r"is not what its card\.json describes \(classes differ\); install"),
    ],
)
def test_damage_is_one_line(shelf, damage, words):
    damage(shelf / NAME)
    with pytest.raises(InputError, match=words) as refused:
        turnwise.load(NAME)
    assert "\n" not in str(refused.value)


def test_a_card_elsewhere_is_somebody_else_s(shelf, tmp_path):
    """A folder of the user's may hold a card.json of any kind."""
    folder = turnwise.save(turnwise.create_model("vit", **SMALL), tmp_path / "mine")
    (folder / "card.json").write_text("{")
    assert turnwise.load(folder).config.name == "vit"
    with pytest.raises(InputError):
        read_card(folder)
