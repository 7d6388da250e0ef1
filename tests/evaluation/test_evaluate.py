"""The figures of classifiers whose answers are known, and the record that a run keeps."""

import json
import shutil
from importlib import import_module

import pytest
import torch
from torch import nn

from turnwise.data import Examples, load_dataset
from turnwise.errors import InputError
from turnwise.evaluation import evaluate, evaluate_run, read_evaluation
from turnwise.evaluation.rotations import predict_probabilities
from turnwise.files import to_json_value
from turnwise.groups import PlanarGroup
from turnwise.models import load, orbit, save
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

RECIPE = {
    "model": {"name": "orbit_vit", "group": "C4", "patch": 7, "width": 16, "depth": 1, "heads": 2},
    "data": {"name": "digits"},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}
CLASSES = ("top right", "top left", "bottom left", "bottom right")
# by how many quarter turns each picture must turn until its spot is where its label says
TURNS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]


class BrightestQuadrant(nn.Module):
    """Quadrants are counted counter-clockwise, so a quarter turn adds one to the answer."""

    def preprocess(self, images):
        return images

    def forward(self, images):
        top, bottom = images[:, 0, :2], images[:, 0, 2:]
        quadrants = (top[..., 2:], top[..., :2], bottom[..., :2], bottom[..., 2:])
        return 9 * torch.stack([q.amax((-2, -1)) for q in quadrants], dim=-1)


@pytest.fixture
def spots():
    """Picture i has its spot in quadrant i mod 4, and the label of TURNS[i] quadrants further."""
    images = torch.zeros(10, 1, 4, 4, dtype=torch.uint8)
    corner = {0: (0, 3), 1: (0, 0), 2: (3, 0), 3: (3, 3)}
    for i in range(10):
        images[i, 0, *corner[i % 4]] = 255
    labels = torch.tensor([(i + turn) % 4 for i, turn in enumerate(TURNS)])
    return Examples(images, labels)


def figures_of(model, pictures, group="C4", angles=4):
    return evaluate(model, pictures, CLASSES, PlanarGroup.named(group), angles=angles)


def test_accuracy_at_quarter_turns_by_hand(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    assert figures["angles"] == {
        "degrees": [0.0, 90.0, 180.0, 270.0],
        "accuracy": [0.4, 0.3, 0.2, 0.1],
    }
    assert figures["orbit_accuracy"] == [0.4, 0.3, 0.2, 0.1]
    assert figures["scores"]["accuracy"]["value"] == pytest.approx(0.4)
    assert figures["scores"]["accuracy"]["low"] < 0.4 < figures["scores"]["accuracy"]["high"]
    assert (figures["pictures"], figures["group"]) == (10, "C4")


def test_accuracy_over_a_group_with_mirrors_by_hand(spots):
    """The mirror swaps quadrants 0 and 1, 2 and 3: q becomes 1 − q; then r adds k."""
    said = figures_of(BrightestQuadrant(), spots, group="D4")["orbit_accuracy"]
    labels = spots.labels.tolist()
    mirrored = [
        sum((1 - i + k) % 4 == label for i, label in enumerate(labels)) / 10 for k in range(4)
    ]
    assert said == pytest.approx([0.4, 0.3, 0.2, 0.1, *mirrored])
    assert sum(mirrored) == pytest.approx(1)


def test_all_scores_over_the_orbit(spots):
    """Every element is scored as the upright pictures are, which are one of them."""
    figures = figures_of(BrightestQuadrant(), spots, group="D4")
    orbit = figures["orbit_scores"]
    assert orbit.keys() == figures["scores"].keys()
    accuracy = figures["orbit_accuracy"]
    assert orbit["accuracy"]["least"] == pytest.approx(min(accuracy))
    assert orbit["accuracy"]["mean"] == pytest.approx(sum(accuracy) / 8)
    for name, score in orbit.items():
        assert score["least"] < score["mean"]
        assert score["least"] <= figures["scores"][name]["value"] + 1e-6


def test_classes_by_hand(spots):
    """Labels against spots: what is counted, found and missed in every class."""
    figures = figures_of(BrightestQuadrant(), spots)
    labels = spots.labels.tolist()
    for number, row in enumerate(figures["classes"]):
        found = sum(i % 4 == number == label for i, label in enumerate(labels))
        assert row["name"] == CLASSES[number]
        assert row["count"] == labels.count(number)
        assert row["recall"] == pytest.approx(found / labels.count(number))


def test_a_model_that_always_changes_its_answer_never_agrees(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    assert figures["orbit_agreement"] == figures["turn_agreement"] == 0.0


def test_an_orbit_model_always_agrees():
    """Over the group it must; over all angles it need not, and this one does not."""
    images = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8)
    pictures = Examples(images, torch.arange(40) % 4)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 4))
    nn.init.zeros_(inner[3].bias)  # which would decide for one class in all views
    model = orbit(inner, "C4")
    figures = figures_of(model, pictures, angles=8)
    assert figures["orbit_agreement"] == 1.0
    assert len(set(figures["orbit_accuracy"])) == 1
    assert figures["turn_agreement"] < 1.0


def test_one_angle_is_the_upright_picture(spots):
    figures = figures_of(BrightestQuadrant(), spots, angles=1)
    assert figures["angles"]["accuracy"] == [0.4]
    assert figures["turn_agreement"] == 1.0


def test_figures_are_ready_for_json(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    assert json.loads(json.dumps(figures)) == figures


@pytest.fixture(scope="module")
def fresh_run(tmp_path_factory):
    return train(make_recipe(RECIPE), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(fresh_run, tmp_path):
    """A copy of a trained run that was never examined."""
    return shutil.copytree(fresh_run, tmp_path / "run")


def test_a_run_is_examined_on_its_test_split(run):
    result = evaluate_run(run)
    pictures = load_dataset("digits").test
    right = predict_probabilities(load(run), pictures).argmax(-1) == pictures.labels
    assert result["scores"]["accuracy"]["value"] == pytest.approx(right.double().mean().item())
    assert result["pictures"] == 500
    assert (result["model"], result["data"], result["group"]) == ("orbit_vit", "digits", "C4")
    assert result["angles"]["degrees"] == [0.0, 90.0, 180.0, 270.0]
    assert len(set(result["angles"]["accuracy"])) == 1
    assert result["orbit_agreement"] == 1.0


def test_examinations_are_kept_and_counted(run):
    assert read_evaluation(run) is None
    first = evaluate_run(run)
    assert first["times_examined"] == 1
    assert read_evaluation(run) == to_json_value(first)
    second = evaluate_run(run)
    assert second["times_examined"] == 2
    assert read_evaluation(run) == to_json_value(second)
    assert json.dumps({**second, "times_examined": 1}) == json.dumps(first)


def test_figures_of_other_weights_are_not_shown_but_counted(run):
    """A run that was resumed since; the split has been looked at all the same."""
    evaluate_run(run)
    model = load(run)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    save(model, run / "model", classes=model.classes)
    assert read_evaluation(run) is None
    assert evaluate_run(run)["times_examined"] == 2


def test_figures_without_a_hash_are_believed(run):
    """As earlier versions kept them."""
    figures = evaluate_run(run)
    del figures["weights_sha256"]
    (run / "test.json").write_text(json.dumps(to_json_value(figures)))
    assert read_evaluation(run) == to_json_value(figures)


@pytest.mark.parametrize("content", ["", "{", "3", "[]", "{}", "null", '{"times_examined": 1}'])
def test_a_damaged_record_is_not_believed(run, content):
    (run / "test.json").write_text(content)
    with pytest.raises(InputError, match=r"test\.json is damaged \(.*\); remove it to test again"):
        read_evaluation(run)


def test_a_damaged_record_is_found_before_the_test_split_is_seen(run, monkeypatch):
    (run / "test.json").write_text("{")
    module = import_module("turnwise.evaluation.evaluate")
    monkeypatch.setattr(module, "load_run_data", None)  # a call would fail
    with pytest.raises(InputError, match="is damaged"):
        evaluate_run(run)


def test_bytes_that_are_no_text(run):
    (run / "test.json").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(InputError, match="is damaged"):
        read_evaluation(run)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the recipe .*recipe\.yaml: no such file"):
        evaluate_run(tmp_path)
