"""Kinds of targets: what every kind must offer, and what is stored with a model."""

import json

import pytest
import torch
from torch import nn

from turnwise.data.targets import kind_of, known_kinds, make_kind, read_kind
from turnwise.errors import InputError

NAMES = ("a", "b", "c")


def outputs_and_targets(kind, images=12):
    """Return random outputs of a model, and targets of the kind."""
    torch.manual_seed(0)
    if kind == "mask":
        masks = torch.randint(3, (images, 4, 4), dtype=torch.uint8)
        return torch.randn(images, 3, 4, 4), masks
    if kind == "instances":
        return torch.randn(images, 3, 8, 8), torch.randint(3, (images, 8, 8)).short()
    targets = {
        "class": torch.arange(images) % 3,
        "ordinal": torch.arange(images) % 3,
        "multilabel": torch.randint(2, (images, 3)).float(),
        "number": torch.randn(images, 3),
    }
    return torch.randn(images, 3), targets[kind]


@pytest.fixture(params=known_kinds())
def name(request):
    return request.param


@pytest.fixture
def kind(name):
    return make_kind(name, NAMES).fit(outputs_and_targets(name)[1])


def test_the_loss_falls_when_it_is_minimised(name, kind):
    outputs, targets = outputs_and_targets(name)
    outputs.requires_grad_()
    loss = kind.make_loss()
    before = loss(outputs, targets)
    (gradient,) = torch.autograd.grad(before, outputs)
    assert loss(outputs - 0.1 * gradient, targets).item() < before.item()
    assert not list(loss.state_dict()), "a loss is not stored with the weights"


def test_a_kind_accepts_its_targets_and_scores_them(name, kind):
    outputs, targets = outputs_and_targets(name)
    assert kind.accepts(targets) and not kind.accepts(targets.bool())
    predictions = kind.predict(outputs)
    scores = kind.point_scores(kind.measure(predictions, targets))
    assert kind.selection in scores and kind.falling <= scores.keys()
    assert kind.plain_scores <= scores.keys()
    assert [row["name"] for row in kind.details(kind.measure(predictions, targets))] == list(NAMES)
    assert isinstance(kind.describe(predictions[0]), str)


def test_weights_of_one_count_every_image_once(name, kind):
    """Scores with weights 2, 1, 0 are those of the images repeated as often."""
    outputs, targets = outputs_and_targets(name)
    often = torch.arange(len(outputs)) % 3
    rows = torch.arange(len(outputs)).repeat_interleave(often)
    predictions = kind.predict(outputs)
    measured = kind.measure(predictions, targets)
    weighted = kind.scores(measured, often[None].double())
    repeated = kind.point_scores(kind.measure(predictions[rows], targets[rows]))
    for score, value in repeated.items():
        assert float(weighted[score]) == pytest.approx(value, abs=1e-6), score


def test_the_same_outputs_keep_every_decision(name, kind):
    outputs, _ = outputs_and_targets(name)
    same = kind.compare(outputs, outputs)
    assert same.same.all() and float(same.size.max()) == 0 and (same.margin >= 0).all()
    other = kind.compare(outputs, outputs.flip(0))
    assert not other.same.all() and float(other.size.max()) > 0
    assert torch.equal(other.margin < 0, ~other.same)


def test_what_is_stored_is_read_back(name, kind):
    plain = json.loads(json.dumps(kind.plain()))
    assert read_kind(plain) == kind
    model = nn.Identity()
    model.target = plain
    assert kind_of(model) == kind


def test_a_model_that_says_nothing_predicts_classes():
    model = nn.Identity()
    assert kind_of(model) == make_kind("class")
    model.classes = ("x", "y")
    assert kind_of(model) == make_kind("class", ("x", "y"))


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"kind": "clas"}, "Did you mean 'class'"),
        ({"kind": "class", "size": 3}, "has no size"),
        ({"kind": "class", "names": "ab"}, "must be a list of texts"),
        ({"kind": "class", "names": [1]}, "must be a list of texts"),
        ({"kind": "class", "temperature": "hot"}, "target.temperature must be a number"),
        ({"kind": "number", "mean": 3.0}, "target.mean must be a list"),
        (["class"], "must have keys"),
    ],
)
def test_a_damaged_target_is_refused(plain, words):
    with pytest.raises(InputError, match=words):
        read_kind(plain)


def test_groups_of_one_target_have_it(name, kind):
    _, targets = outputs_and_targets(name)
    same = targets[:1].repeat(3, *(1 for _ in targets.shape[1:]))
    found = kind.group_target(same)
    if name in ("mask", "instances"):
        assert found is None
    else:
        torch.testing.assert_close(found, targets[0])
