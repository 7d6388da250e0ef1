"""The figures of classifiers whose predictions are known, and what a run stores."""

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from torch import nn

from turnwise.data import Examples, load_dataset
from turnwise.errors import InputError
from turnwise.evaluation import classification_scores, evaluate, evaluate_run
from turnwise.files import to_json_value
from turnwise.groups import PlanarGroup
from turnwise.inference import Predictor
from turnwise.models import orbit
from turnwise.runs import Run
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
# by how many times 90° each image must be rotated until its spot is where its label says
ROTATIONS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]


class BrightestQuadrant(nn.Module):
    """Quadrants are counted counter-clockwise, so a rotation by 90° adds one to the prediction."""

    def forward(self, images):
        top, bottom = images[:, 0, :2], images[:, 0, 2:]
        quadrants = (top[..., 2:], top[..., :2], bottom[..., :2], bottom[..., 2:])
        return 9 * torch.stack([q.amax((-2, -1)) for q in quadrants], dim=-1)


@pytest.fixture
def spots():
    """Image i has its spot in quadrant i mod 4; its label is ROTATIONS[i] quadrants further."""
    images = torch.zeros(10, 1, 4, 4, dtype=torch.uint8)
    corner = {0: (0, 3), 1: (0, 0), 2: (3, 0), 3: (3, 3)}
    for i in range(10):
        images[i, 0, *corner[i % 4]] = 255
    labels = torch.tensor([(i + rotation) % 4 for i, rotation in enumerate(ROTATIONS)])
    return Examples(images, labels)


def figures_of(model, examples, group="C4", angles=4):
    return evaluate(model, examples, CLASSES, PlanarGroup.named(group), angles=angles)


def test_accuracy_at_multiples_of_90_degrees_by_hand(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    angles = figures["angles"]
    assert angles["degrees"] == [0.0, 90.0, 180.0, 270.0]
    assert (angles["fill"], angles["score"]) == ("zeros", "accuracy")
    assert angles["accuracy"] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert figures["orbit_accuracy"] == [0.4, 0.3, 0.2, 0.1]
    assert figures["scores"]["accuracy"]["value"] == pytest.approx(0.4)
    assert figures["scores"]["accuracy"]["low"] < 0.4 < figures["scores"]["accuracy"]["high"]
    assert (figures["images"], figures["group"]) == (10, "C4")


def test_accuracy_over_a_group_with_reflections_by_hand(spots):
    """The reflection swaps quadrants 0 and 1, 2 and 3: q becomes 1 − q; then r adds k."""
    found = figures_of(BrightestQuadrant(), spots, group="D4")["orbit_accuracy"]
    labels = spots.labels.tolist()
    reflected = [
        sum((1 - i + k) % 4 == label for i, label in enumerate(labels)) / 10 for k in range(4)
    ]
    assert found == pytest.approx([0.4, 0.3, 0.2, 0.1, *reflected])
    assert sum(reflected) == pytest.approx(1)


def test_all_scores_over_the_orbit(spots):
    """The upright images are among the views that are scored."""
    figures = figures_of(BrightestQuadrant(), spots, group="D4")
    over_orbit = figures["orbit_scores"]
    assert over_orbit.keys() == figures["scores"].keys()
    accuracy = figures["orbit_accuracy"]
    assert over_orbit["accuracy"]["least"] == pytest.approx(min(accuracy))
    assert over_orbit["accuracy"]["mean"] == pytest.approx(sum(accuracy) / 8)
    for name, score in over_orbit.items():
        assert score["least"] < score["mean"]
        assert score["least"] <= figures["scores"][name]["value"] + 1e-6


def test_scores_of_each_class_by_hand(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    labels = spots.labels.tolist()
    for number, row in enumerate(figures["classes"]):
        correct = sum(i % 4 == number == label for i, label in enumerate(labels))
        assert row["name"] == CLASSES[number]
        assert row["count"] == labels.count(number)
        assert row["recall"] == pytest.approx(correct / labels.count(number))


def test_a_model_whose_prediction_always_changes_never_agrees(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    assert figures["orbit_agreement"] == figures["rotation_agreement"] == 0.0


def test_an_orbit_agrees_over_its_group_and_not_over_all_angles():
    images = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8)
    examples = Examples(images, torch.arange(40) % 4)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 4))
    nn.init.zeros_(inner[3].bias)  # which would decide for one class in all views
    figures = figures_of(orbit(inner, "C4"), examples, angles=8)
    assert figures["orbit_agreement"] == 1.0
    assert len(set(figures["orbit_accuracy"])) == 1
    assert figures["rotation_agreement"] < 1.0


def test_a_single_angle_is_the_upright_image(spots):
    figures = figures_of(BrightestQuadrant(), spots, angles=1)
    assert figures["angles"]["accuracy"] == pytest.approx([0.4])
    assert figures["rotation_agreement"] == 1.0


def test_figures_are_plain_values(spots):
    figures = figures_of(BrightestQuadrant(), spots)
    assert json.loads(json.dumps(figures)) == figures


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(make_recipe(RECIPE), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a trained run that was never evaluated."""
    return Run(shutil.copytree(trained.path, tmp_path / "run"))


def test_a_run_is_evaluated_on_its_test_split(run):
    result = evaluate_run(run)
    test = load_dataset("digits").test
    probabilities = Predictor(run.model()).probabilities(test.images)
    expected = classification_scores(probabilities, test.labels)
    assert result["scores"] == {name: asdict(score) for name, score in expected.items()}
    assert result["images"] == 500
    assert (result["model"], result["data"], result["group"]) == ("orbit_vit", "digits", "C4")
    assert result["angles"]["degrees"] == [0.0, 90.0, 180.0, 270.0]
    assert len(set(result["angles"]["accuracy"])) == 1
    assert result["orbit_agreement"] == 1.0


def test_evaluations_are_stored_and_counted(run):
    assert run.evaluation() is None
    first = evaluate_run(run)
    assert first["times_evaluated"] == 1
    assert run.evaluation() == to_json_value(first)
    second = evaluate_run(run.path)
    assert second["times_evaluated"] == 2
    assert run.evaluation() == to_json_value(second)
    assert json.dumps({**second, "times_evaluated": 1}) == json.dumps(first)


def test_an_evaluation_of_other_weights_is_not_shown_but_counted(run):
    """The run was resumed since; its test split was used all the same."""
    evaluate_run(run)
    model = run.model()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    run.save_model(model, model.classes)
    assert run.evaluation() is None
    assert evaluate_run(run)["times_evaluated"] == 2


def test_a_damaged_evaluation_is_found_before_the_test_split_is_used(run, monkeypatch):
    run.evaluation_file().write_text("{")
    monkeypatch.setattr(Run, "dataset", None)  # a call would fail
    with pytest.raises(InputError, match="is damaged"):
        evaluate_run(run)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the recipe .*recipe\.yaml: no such file"):
        evaluate_run(tmp_path)
