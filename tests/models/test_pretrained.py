"""Shipped weights by the name of their model: what comes with them, and what contradicts them."""

import json

import pytest
import torch

import turnwise
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, assert_equivariant
from turnwise.models import shipped
from turnwise.models.pretrained import chosen_weights, with_new_head
from turnwise.models.storage import read_config

NANO = {"group": "D4", "depths": [1], "num_classes": 4, "image_size": 8}


def put(name, **options):
    """A shelf's folder, with as much of a card as loading asks for."""
    model = turnwise.create_model(name.partition(".")[0], **options)
    classes = [f"class {n}" for n in range(options["num_classes"])]
    folder = turnwise.save(model, shipped.ROOT / name, classes=classes)
    config = read_config(folder)
    card = dict.fromkeys(shipped.PARTS)
    card |= {"format": 1, "model": {key: config[key] for key in shipped.DESCRIBED}}
    (folder / "card.json").write_text(json.dumps(card))
    return model


@pytest.fixture
def nano(tmp_path, monkeypatch):
    """The model whose weights are the only ones on the shelf."""
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "weights")
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
def test_every_spelling_finds_the_weights(nano, name, options):
    model = turnwise.create_model(name, **options)
    assert same(model, nano)
    assert (model.group.name, model.config.options) == ("D4", nano.config.options)
    assert model.classes == ("class 0", "class 1", "class 2", "class 3")
    assert model.training, "as all that create_model makes"
    assert model.config.name == "turnwise_vit_nano", "what is saved is a model, not a shipped name"


def test_control_without_the_word_the_weights_are_drawn(nano):
    assert not same(turnwise.create_model("turnwise_vit_nano", **NANO), nano)


def test_saying_the_same_again_is_fine(nano):
    said = {"group": "p4m", "depths": (1,), "num_classes": 4, "image_size": 8, "stem": "conv"}
    assert same(turnwise.create_model("turnwise_vit_nano.rotmnist", **said), nano)
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
        ("num_classes", 0, "num_classes = 0 must be at least 1"),
    ],
)
def test_contradictions_are_one_line(nano, option, value, words):
    with pytest.raises(InputError, match=words) as refused:
        turnwise.create_model("turnwise_vit_nano", pretrained=True, **{option: value})
    assert "\n" not in str(refused.value)


def test_another_number_of_classes_is_a_new_head_on_the_same_body(nano):
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


def test_a_new_head_keeps_the_law(nano):
    model = turnwise.create_model("turnwise_vit_nano.rotmnist", num_classes=7).double().eval()
    assert_equivariant(model, "D4", torch.rand(2, 1, 8, 8, dtype=torch.float64))


def test_a_new_head_is_saved_and_opened(nano, tmp_path):
    model = turnwise.create_model("turnwise_vit_nano.rotmnist", num_classes=7)
    assert same(turnwise.load(turnwise.save(model, tmp_path / "mine")), model)


def test_an_orbit_has_a_head_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "weights")
    small = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
    old = put("orbit_vit.letters", group="D4", num_classes=3, **small)
    new = turnwise.create_model("orbit_vit.letters", num_classes=5)
    assert torch.equal(new.model.position, old.model.position)
    assert (new.group.name, new.model.head.out_features) == ("D4", 5)


def test_what_names_no_classes_has_no_new_head():
    model = turnwise.create_model("turnwise_vit_nano", readout="orientation", **NANO)
    with pytest.raises(InputError, match="does not name classes, so it takes no num_classes = 9"):
        with_new_head(model, 9)


def test_half_precision_is_computed_with_in_single(nano):
    for parameter in nano.parameters():
        parameter.data = parameter.data.half()
    folder = turnwise.save(nano, shipped.ROOT.parent / "half")
    opened = turnwise.load(folder)
    assert all(p.dtype is torch.float32 for p in opened.parameters())
    assert torch.equal(opened.head.weight, nano.head.weight.float())


def test_two_sets_of_weights_are_told_apart(nano):
    """pretrained=True means those of rotated digits, or the only ones; else it must be said."""
    put("turnwise_vit_nano.rotmnist_c4", **NANO | {"group": "C4"})
    assert chosen_weights("turnwise_vit_nano", True) == "turnwise_vit_nano.rotmnist"
    for data in ("letters", "shapes"):
        put(f"turnwise_vit_tiny.{data}", **NANO)
    with pytest.raises(InputError, match=r"say pretrained = 'letters' or 'shapes'\.$"):
        turnwise.create_model("turnwise_vit_tiny", pretrained=True)
    model = turnwise.create_model("turnwise_vit_nano", pretrained="rotmnist_c4")
    assert model.group.name == "C4"
    assert chosen_weights("turnwise_vit_nano", "rotmnist") == "turnwise_vit_nano.rotmnist"


@pytest.mark.parametrize(
    ("name", "pretrained", "words"),
    [
        ("vit", True, r"no weights of 'vit' are shipped \(of others: turnwise_vit_nano.rotmnist\)"),
        ("vit.rotmnist", False, "no weights of 'vit' are shipped"),
        ("turnwise_vit_nano", "cifar10", "for 'cifar10' are shipped; say pretrained = 'rotmnist'"),
        ("turnwise_vit_nano.cifar10", False, "for 'cifar10' are shipped; say pretrained = 'rotm"),
        ("turnwise_vit_nano.rotmnist", "cifar10", "name different weights; leave one out"),
        ("turnwise_vit_nona", True, r"unknown model .* Did you mean 'turnwise_vit_nano'"),
        ("turnwise_vit_nona.rotmnist", False, r"unknown model .* Did you mean 'turnwise_vit_nano'"),
    ],
)
def test_what_is_not_shipped(nano, name, pretrained, words):
    with pytest.raises(InputError, match=words) as refused:
        turnwise.create_model(name, pretrained=pretrained)
    assert "\n" not in str(refused.value)


def test_nothing_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"of 'vit' are shipped \(of others: none\); train one"):
        turnwise.create_model("vit", pretrained=True)
