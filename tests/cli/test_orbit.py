"""A run becomes an invariant run, a model folder an invariant model folder, or one line says no."""

import json
import shlex
import shutil

import pytest
import torch
import yaml

from turnwise.evaluation import certify
from turnwise.models import create_model, load, save
from turnwise.runs.train import train
from turnwise.training.recipe import make_recipe

SMALL = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
PLAIN = {
    "model": {"name": "vit", "group": "C4", **SMALL},
    "data": {"name": "digits"},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of a plain transformer."""
    return train(make_recipe(PLAIN), tmp_path_factory.mktemp("runs") / "plain")


@pytest.fixture
def folder(empty_place):
    return save(create_model("vit", image_size=14, **SMALL), empty_place / "vit")


def test_a_run_becomes_a_run_that_can_be_tested_and_certified(turnwise, plain, empty_place):
    status, said, complaint = turnwise(
        "orbit", plain, "--group", "D4", "--combine", "most_certain", "--output", "new"
    )
    assert (status, complaint) == (0, "")
    assert said == (
        "vit in 8 views (D4), combined by most_certain; exactly invariant under D4\n"
        "written to new; measure it with: turnwise test new\n"
    )
    recipe = yaml.safe_load((empty_place / "new" / "recipe.yaml").read_text())
    assert recipe["model"]["name"] == "orbit_vit"
    assert (recipe["model"]["group"], recipe["model"]["combine"]) == ("D4", "most_certain")
    assert recipe["model"]["width"] == 16
    told = json.loads((empty_place / "new" / "environment.json").read_text())
    assert told["orbit_of"] == str(plain)
    assert torch.equal(load("new").model.position, load(plain).position)
    status, said, _ = turnwise("test", "new")
    assert status == 0
    assert "same answer over all exact elements of D4: 100.00 %" in said
    assert json.loads((empty_place / "new" / "test.json").read_text())["model"] == "orbit_vit"
    assert turnwise("certify", "new", "--angles", "4", "--pictures", "4")[0] == 0


def test_control_the_run_itself_is_not_invariant(turnwise, plain, empty_place):
    status, said, _ = turnwise(
        "certify", plain, "--group", "D4", "--angles", "4", "--pictures", "4", "--output", "c.json"
    )
    assert status == 1
    assert "NOT INVARIANT" in said


def test_a_model_folder_becomes_a_model_folder(turnwise, folder, empty_place):
    (empty_place / "new").mkdir()
    words = ("--group", "C16", "--mask", "--chunk", "4", "--background", "0.5", "--output", "new")
    status, said, _ = turnwise("orbit", folder, *words)
    assert status == 0
    assert "exactly invariant under C4, the angles between are interpolated" in said
    assert "turnwise certify new" in said
    assert {p.name for p in (empty_place / "new").iterdir()} == {"model.safetensors", "config.json"}
    model = load("new")
    assert (model.plan.mask, model.plan.chunk, model.plan.background) == (True, 4, 0.5)
    assert certify(model, "C16", torch.rand(4, 1, 14, 14), angles=2).holds


def test_a_combination_that_learns_says_how(turnwise, plain, empty_place):
    status, said, _ = turnwise("orbit", plain, "--combine", "learned_weights", "--output", "new")
    assert status == 0
    command = next(line.split() for line in said.splitlines() if line.startswith("  turnwise"))
    assert command[1] == "train"
    assert turnwise("train", *command[2:], "--output", "tuned")[0] == 0
    tuned, base = load("tuned"), load(plain)
    assert torch.equal(tuned.model.position, base.position), "the model inside is frozen"
    assert tuned.readout.score[2].weight.abs().max() > 0, "and the combination has learned"
    assert certify(tuned, "C4", torch.rand(4, 1, 28, 28), angles=2).holds


def test_what_it_says_is_the_orbit_that_was_made(turnwise, plain, folder, empty_place):
    """Another group than the model's own, a mask, and a level outside of it."""
    how = ("--group", "D4", "--mask", "--background", "0.3", "--combine", "learned_attention")
    said = turnwise("orbit", plain, *how, "--output", "new")[1]
    command = shlex.split(next(line for line in said.splitlines() if line.startswith("  turnwise")))
    assert turnwise("train", *command[2:], "--output", "tuned")[0] == 0
    made, tuned = load("new").config.options, load("tuned").config.options
    differ = {key for key in made if made[key] != tuned[key]}
    assert differ == {"tune"}
    assert "write a recipe for your data" in turnwise("orbit", folder, *how, "--output", "bare")[1]


def test_what_cannot_be_wrapped(refused, run, folder, empty_place):
    assert "is an orbit already (orbit_vit)" in refused("orbit", run, "--output", "new")
    assert "is not a model or run folder" in refused("orbit", "nothing", "--output", "new")
    words = ("--output", "new", "--combine", "median")
    assert "Did you mean 'mean'" in refused("orbit", folder, *words)
    assert "unknown group 'Q4'" in refused("orbit", folder, "--group", "Q4", "--output", "new")
    assert not (empty_place / "new").exists()


def test_nothing_is_overwritten(refused, folder):
    assert "exists and is not an empty folder" in refused("orbit", folder, "--output", folder)


def test_half_a_run_leaves_nothing_behind(refused, plain, empty_place):
    half = shutil.copytree(plain, empty_place / "half")
    (half / "environment.json").unlink()
    said = refused("orbit", half, "--output", "new")
    assert "environment.json cannot be read" in said
    assert not (empty_place / "new").exists()
