"""What is trained in a given time: chosen by measured steps, and over when the time is."""

import time

import numpy as np
import pytest
from PIL import Image

from turnwise.errors import InputError
from turnwise.runs import planning
from turnwise.runs.planning import plan_training
from turnwise.runs.train import train
from turnwise.training.choices import read_choices


@pytest.fixture
def pretend(monkeypatch):
    """Let each row of the table take so many seconds per step."""

    def steps(*seconds):
        left = list(seconds)
        monkeypatch.setattr(planning, "seconds_per_step", lambda *_: left.pop(0))

    return steps


def write_images(folder, sizes, **counts):
    random = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (*sizes[number % len(sizes)], 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return f"folder:{folder}"


def test_the_dearest_row_with_enough_epochs_is_chosen(pretend):
    """Tiles have 1,200 training images of 32 pixels: 18 steps an epoch, and validation."""
    pretend(0.1, 0.3, 5.0)
    plan = plan_training("tiles", 10.0)
    rows = read_choices("tiles", "cpu")
    assert (
        plan.recipe.model.options["widths"] == rows[1].recipe("tiles", ()).model.options["widths"]
    )
    assert plan.recipe.trainer.max_epochs == pytest.approx(0.85 * 598 / (0.3 * 20 + 0.3), abs=3)
    assert plan.recipe.data.image_size == 32 == plan.dataset.image_size
    text = "\n".join(plan.reasons)
    assert "1,200 colour training images of 32 pixels, 10 classes" in text
    assert "chosen: roto_resnet18, 32 pixels" in text and "rotations up to 45°" in text


def test_with_too_little_time_the_cheapest_is_trained(pretend):
    pretend(2.0)
    plan = plan_training("tiles", 1.0)
    assert plan.recipe.trainer.max_epochs == 1
    assert "the cheapest candidate; more minutes would allow more epochs" in plan.reasons[-3]


def test_the_reasons_are_those_of_the_model_that_is_trained(pretend):
    """A plain model has no symmetry, and learns that of the recipe from augmentation."""
    pretend(2.0)
    plain = ("model.name=resnet18", "model.oriented=0")
    reasons = plan_training("tiles", 1.0, plain).reasons
    assert reasons[-2] == "this model has no symmetry of its own"
    assert "rotations up to 180° and flips: what a model that is exact under C1" in reasons[-1]
    pretend(2.0)
    reasons = plan_training("digits", 1.0).reasons  # C1: a 6 rotated by 180° is a 9
    assert "rotations up to 15°: what" in reasons[-1]


def test_settings_win_over_the_choice(pretend):
    pretend(*[0.001] * 9)
    settings = (
        "trainer.max_epochs=7",
        "model.group=C4",
        "optimisation.ema=null",
        "data.fraction=0.5",
    )
    recipe = plan_training("tiles", 1.0, settings).recipe
    assert (recipe.trainer.max_epochs, recipe.model.group) == (7, "C4")
    assert recipe.optimisation.ema is None and recipe.data.fraction == 0.5


def test_epochs_are_limited_and_the_average_follows_the_number_of_steps(pretend):
    pretend(*[0.0001] * 9)
    recipe = plan_training("tiles", 10.0).recipe
    assert recipe.trainer.max_epochs == planning.MOST_EPOCHS
    assert (recipe.optimisation.ema, recipe.optimisation.warmup_epochs) == (0.998, 5.0)
    pretend(0.9)
    recipe = plan_training("tiles", 1.0).recipe
    assert recipe.optimisation.ema is None
    assert recipe.optimisation.warmup_epochs == recipe.trainer.max_epochs / 10


def test_own_images_of_several_sizes(tmp_path, pretend):
    pretend(*[0.01] * 9)
    source = write_images(tmp_path / "own", [(50, 40), (30, 90)], many=40, few=10)
    plan = plan_training(source, 5.0)
    assert plan.dataset.image_size == 30 == plan.recipe.data.image_size
    assert plan.recipe.optimisation.batch_size <= len(plan.dataset.train)
    assert plan.recipe.trainer.select == "balanced_accuracy"
    assert "selection by balanced_accuracy: the largest class has 4" in plan.reasons[-1]


def test_large_images_are_resampled_to_the_side_of_the_row(tmp_path, pretend):
    """What is trained on is read anew, as the recipe says, so that the run can be tested."""
    pretend(0.01, 99.0)
    source = write_images(tmp_path / "own", [(100, 100)], a=12, b=12)
    plan = plan_training(source, 5.0)
    first = read_choices(source, "cpu")[0]
    assert plan.recipe.data.image_size == first.side == plan.dataset.image_size
    again = planning.load_dataset(source, image_size=first.side)
    assert again.digests() == plan.dataset.digests()


@pytest.mark.parametrize("minutes", [0.0, -1.0, 1e6, float("nan")])
def test_impossible_times(minutes):
    with pytest.raises(InputError, match=r"minutes = .* must be above 0"):
        plan_training("tiles", minutes)


def test_training_ends_in_the_stated_time(tmp_path):
    """9 seconds and a tenth, though there are three times as many epochs as were planned."""
    began, minutes = time.monotonic(), 0.15
    plan = plan_training("tiles", minutes, ("data.fraction=0.2",), began=began)
    hopeful = planning.replace(plan.recipe.trainer, max_epochs=plan.recipe.trainer.max_epochs * 3)
    recipe = planning.replace(plan.recipe, trainer=hopeful)
    run = train(recipe, tmp_path / "run", dataset=plan.dataset)
    assert time.monotonic() - began < 1.1 * 60 * minutes + 3  # a busy machine
    assert run.model() is not None and run.metrics


@pytest.mark.parametrize("kind", ["number", "multilabel"])
def test_other_targets_than_classes_are_trained(tmp_path, kind):
    write_images(tmp_path, [(16, 16)], all=60)
    columns = "size" if kind == "number" else "cyst,stone"
    values = [f"{n / 7:.2f}" if kind == "number" else f"{n % 2},{n % 3 % 2}" for n in range(60)]
    rows = [f"all/{n}.png,{value}" for n, value in enumerate(values)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join([f"path,{columns}", *rows]))
    settings = ["trainer.max_epochs=1", f"data.columns.label=[{columns}]", f"data.target={kind}"]
    plan = plan_training(str(table), 0.2, settings)
    run = train(plan.recipe, tmp_path / "run", dataset=plan.dataset)
    assert plan.dataset.target.kind == kind and run.metrics
