"""Pretrained weights: found by name, checked against their cards and the arguments."""

import json

import pytest
import torch

import turnwise
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, assert_equivariant
from turnwise.models import weights as pretrained
from turnwise.models.storage import read_config
from turnwise.models.weights import chosen_weights, list_pretrained, pretrained_folder, read_card

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8, "num_classes": 3}
NAME = "orbit_vit.letters"


@pytest.fixture
def folder_of_weights(tmp_path, monkeypatch):
    """Return a folder with one set of pretrained weights, and work in another one."""
    root = tmp_path / "weights"
    monkeypatch.setattr(pretrained, "ROOT", root)
    monkeypatch.setattr(pretrained, "MORE", ())
    model = turnwise.create_model("orbit_vit", group="D4", **SMALL)
    folder = turnwise.save(model, root / NAME, classes=["a", "b", "c"])
    config = read_config(folder)
    card = dict.fromkeys(pretrained.PARTS)
    card |= {"format": 1, "model": {key: config[key] for key in pretrained.DESCRIBED}}
    (folder / "card.json").write_text(json.dumps(card))
    (root / "README.md").write_text("no weights")
    (root / ".half_written.letters").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def test_an_empty_or_missing_folder_has_no_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "ROOT", tmp_path)
    monkeypatch.setattr(pretrained, "MORE", ())
    assert list_pretrained() == []
    monkeypatch.setattr(pretrained, "ROOT", tmp_path / "nowhere")
    monkeypatch.setattr(pretrained, "MORE", ())
    assert list_pretrained() == []


def test_only_folders_of_weights_are_listed(folder_of_weights):
    assert list_pretrained() == [NAME]
    assert list_pretrained("orbit_*") == [NAME]
    assert list_pretrained("gsa*") == []


def test_weights_are_opened_by_name(folder_of_weights):
    by_name, by_path = turnwise.load(NAME), turnwise.load(folder_of_weights / NAME)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(by_name(x), by_path(x))
    assert by_name.classes == ("a", "b", "c") and not by_name.training


def test_an_existing_path_takes_precedence_over_a_name(folder_of_weights, tmp_path):
    assert pretrained_folder(NAME) == folder_of_weights / NAME
    turnwise.save(turnwise.create_model("vit", **SMALL), tmp_path / "here" / NAME)
    assert pretrained_folder(NAME) is None
    assert turnwise.load(NAME).config.name == "vit"


def test_the_error_for_an_unknown_name_lists_the_weights(folder_of_weights):
    assert pretrained_folder("orbit_vit.digits") is None
    with pytest.raises(InputError, match=rf"config\.json\. Pretrained weights are: {NAME}\.$"):
        turnwise.load("orbit_vit.digits")


def damage_card(folder):
    (folder / "card.json").write_text("{")


def lose_card(folder):
    (folder / "card.json").unlink()


def cut_card(folder):
    (folder / "card.json").write_text('{"format": 1}')


def write_list_as_card(folder):
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
    """Write weights and configuration that agree with each other, but not with the card."""
    model = turnwise.create_model("orbit_vit", group="D4", **SMALL)
    turnwise.save(model, folder, classes=["a", "b", "c"])


def rename_classes(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classes": ["c", "b", "a"]}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_card, r"card\.json cannot be read: .*; reinstall turnwise\.$"),
        (lose_card, r"card\.json cannot be read: no such file or directory; reinstall"),
        (cut_card, r"card\.json lacks bytes, data, .*; reinstall"),
        (write_list_as_card, r"card\.json lacks bytes, data, .*; reinstall"),
        (age_card, r"card\.json has format 2, this version reads 1; update turnwise"),
        (empty_model, r"card\.json describes no model; reinstall"),
        (flip_a_bit, r"model\.safetensors is not the file .* \(its hash differs\)"),
        (put_other_weights, r"is not what its card\.json describes \(sha256 differ\); reinstall"),
        (rename_classes, r"is not what its card\.json describes \(classes differ\); reinstall"),
    ],
)
def test_damaged_weights_are_refused_in_one_line(folder_of_weights, damage, words):
    damage(folder_of_weights / NAME)
    with pytest.raises(InputError, match=words) as refused:
        turnwise.load(NAME)
    assert "\n" not in str(refused.value)


def test_a_card_in_a_user_folder_is_ignored(folder_of_weights, tmp_path):
    folder = turnwise.save(turnwise.create_model("vit", **SMALL), tmp_path / "mine")
    (folder / "card.json").write_text("{")
    assert turnwise.load(folder).config.name == "vit"
    with pytest.raises(InputError):
        read_card(folder)


NANO = {"group": "D4", "depths": [1], "num_classes": 4, "image_size": 8}


def put(name, **options):
    """Store fresh weights as pretrained ones, with the parts of a card that loading needs."""
    model = turnwise.create_model(name.partition(".")[0], **options)
    classes = [f"class {n}" for n in range(options["num_classes"])]
    folder = turnwise.save(model, pretrained.ROOT / name, classes=classes)
    config = read_config(folder)
    card = dict.fromkeys(pretrained.PARTS)
    card |= {"format": 1, "model": {key: config[key] for key in pretrained.DESCRIBED}}
    (folder / "card.json").write_text(json.dumps(card))
    return model


@pytest.fixture
def nano(tmp_path, monkeypatch):
    """Return the model whose weights are the only pretrained ones."""
    monkeypatch.setattr(pretrained, "ROOT", tmp_path / "weights")
    monkeypatch.setattr(pretrained, "MORE", ())
    return put("turnwise_vit_nano.rotmnist", **NANO)


def same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("turnwise_vit_nano", {"pretrained": True}),
        ("turnwise_vit_nano", {"pretrained": "rotmnist"}),
        ("turnwise_vit_nano", {"pretrained": "turnwise_vit_nano.rotmnist"}),
        ("turnwise_vit_nano.rotmnist", {}),
        ("turnwise_vit_nano.rotmnist", {"pretrained": True}),
        ("turnwise_vit_nano.rotmnist", {"pretrained": "rotmnist"}),
    ],
)
def test_pretrained_weights_can_be_named_in_several_ways(nano, name, options):
    model = turnwise.create_model(name, **options)
    assert same(model, nano)
    assert (model.group.name, model.config.options) == ("D4", nano.config.options)
    assert model.classes == ("class 0", "class 1", "class 2", "class 3")
    assert model.training, "like everything that create_model returns"
    assert model.config.name == "turnwise_vit_nano", "the name of the model, not of the weights"


def test_negative_control_without_pretrained_the_weights_are_random(nano):
    assert not same(turnwise.create_model("turnwise_vit_nano", **NANO), nano)


def test_arguments_may_repeat_those_of_the_weights(nano):
    given = {"group": "p4m", "depths": (1,), "num_classes": 4, "image_size": 8, "stem": "conv"}
    assert same(turnwise.create_model("turnwise_vit_nano.rotmnist", **given), nano)
    group = PlanarGroup.named("D4")
    assert same(turnwise.create_model("turnwise_vit_nano.rotmnist", group), nano)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("group", "C4", r"rotmnist has group = D4, not C4; leave group out, or train"),
        ("image_size", 28, "has image_size = 8, not 28; leave image_size out"),
        ("in_chans", 3, "has in_chans = 1, not 3"),
        ("depths", [2], r"has depths = \[1\], not \[2\]"),
        ("stem", "patch", "has stem = conv, not patch"),  # not in the configuration: the default
        ("group", "Q8", "unknown group 'Q8'"),
        ("width", "foo", "width must be a whole number, got 'foo'"),
        ("widht", 8, r"unknown option of turnwise_vit_nano 'widht'\. Did you mean 'width'"),
        ("num_classes", -1, "num_classes = -1 must be at least 0"),
    ],
)
def test_arguments_that_contradict_the_weights_are_refused_in_one_line(nano, option, value, words):
    with pytest.raises(InputError, match=words) as refused:
        turnwise.create_model("turnwise_vit_nano", pretrained=True, **{option: value})
    assert "\n" not in str(refused.value)


def test_another_number_of_classes_replaces_the_classifier_only(nano):
    model = turnwise.create_model("turnwise_vit_nano.rotmnist", num_classes=7)
    ours, theirs = model.state_dict(), nano.state_dict()
    fresh = {key for key in ours if ours[key].shape != theirs[key].shape}
    assert fresh == {"head.weight", "head.bias"}
    assert all(torch.equal(ours[key], theirs[key]) for key in ours.keys() - fresh)
    x = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(model.eval().forward_features(x), nano.eval().forward_features(x))
    assert model(x).shape == (2, 7) and model.head.weight.std() > 0
    assert model.config.options["num_classes"] == 7
    assert not getattr(model, "classes", ()), "the new classes have no names yet"


def test_a_model_with_a_new_classifier_is_invariant(nano):
    model = turnwise.create_model("turnwise_vit_nano.rotmnist", num_classes=7).double().eval()
    assert_equivariant(model, "D4", torch.rand(2, 1, 8, 8, dtype=torch.float64))


def test_a_model_with_a_new_classifier_is_saved_and_loaded(nano, tmp_path):
    model = turnwise.create_model("turnwise_vit_nano.rotmnist", num_classes=7)
    assert same(turnwise.load(turnwise.save(model, tmp_path / "mine")), model)


def test_an_orbit_replaces_the_classifier_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "ROOT", tmp_path / "weights")
    monkeypatch.setattr(pretrained, "MORE", ())
    small = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
    old = put("orbit_vit.letters", group="D4", num_classes=3, **small)
    new = turnwise.create_model("orbit_vit.letters", num_classes=5)
    assert torch.equal(new.model.position, old.model.position)
    assert (new.group.name, new.model.head.out_features) == ("D4", 5)


def test_weights_without_classes_take_no_number_of_classes(nano):
    put("turnwise_vit_nano.orientation", **NANO, readout="orientation")
    with pytest.raises(InputError, match="has no classes, so it takes no num_classes = 9"):
        turnwise.create_model("turnwise_vit_nano.orientation", num_classes=9)


def test_weights_in_half_precision_are_loaded_in_single_precision(nano):
    for parameter in nano.parameters():
        parameter.data = parameter.data.half()
    folder = turnwise.save(nano, pretrained.ROOT.parent / "half")
    opened = turnwise.load(folder)
    assert all(p.dtype is torch.float32 for p in opened.parameters())
    assert torch.equal(opened.head.weight, nano.head.weight.float())


def test_one_of_several_weights_must_be_named(nano):
    """pretrained=True means those for rotated digits, or the only ones."""
    put("turnwise_vit_nano.rotmnist_c4", **NANO | {"group": "C4"})
    assert chosen_weights("turnwise_vit_nano", True) == "turnwise_vit_nano.rotmnist"
    for data in ("letters", "shapes"):
        put(f"turnwise_vit_tiny.{data}", **NANO)
    with pytest.raises(InputError, match=r"set pretrained = 'letters' or 'shapes'\.$"):
        turnwise.create_model("turnwise_vit_tiny", pretrained=True)
    model = turnwise.create_model("turnwise_vit_nano", pretrained="rotmnist_c4")
    assert model.group.name == "C4"
    assert chosen_weights("turnwise_vit_nano", "rotmnist") == "turnwise_vit_nano.rotmnist"


@pytest.mark.parametrize(
    ("name", "pretrained", "words"),
    [
        ("vit", True, r"no pretrained weights of 'vit' \(of others: turnwise_vit_nano.rotmnist\)"),
        ("vit.rotmnist", False, "no pretrained weights of 'vit'"),
        ("turnwise_vit_nano", "cifar10", "for 'cifar10'; set pretrained = 'rotmnist'"),
        ("turnwise_vit_nano.cifar10", False, "for 'cifar10'; set pretrained = 'rotm"),
        ("turnwise_vit_nano.rotmnist", "cifar10", "name different weights; leave one out"),
        ("turnwise_vit_nona", True, r"unknown model .* Did you mean 'turnwise_vit_nano'"),
        ("turnwise_vit_nona.rotmnist", False, r"unknown model .* Did you mean 'turnwise_vit_nano'"),
    ],
)
def test_weights_that_do_not_exist_are_refused(nano, name, pretrained, words):
    with pytest.raises(InputError, match=words) as refused:
        turnwise.create_model(name, pretrained=pretrained)
    assert "\n" not in str(refused.value)


def test_the_error_where_there_are_no_weights_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "ROOT", tmp_path / "nowhere")
    monkeypatch.setattr(pretrained, "MORE", ())
    with pytest.raises(InputError, match=r"of 'vit' \(of others: none\); train the"):
        turnwise.create_model("vit", pretrained=True)
