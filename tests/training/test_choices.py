"""The table of candidates: every row is a recipe, and settings of the user win."""

import pytest

from turnwise.errors import InputError
from turnwise.models import create_model
from turnwise.training.choices import advise, largest_side, read_choices
from turnwise.training.recipe import read_recipe
from turnwise.training.shipped import find_recipe

ROWS = [(device, row) for device in ("cpu", "cuda") for row in read_choices("folder:x", device)]


@pytest.mark.parametrize(("device", "row"), ROWS, ids=lambda value: str(getattr(value, "name", "")))
@pytest.mark.parametrize("side", [28, 50, 64])
def test_every_row_builds_an_exact_model(device, row, side):
    recipe = row.recipe("folder:x", (), side=min(side, row.side))
    model = create_model(
        recipe.model.name, group=recipe.model.group, in_chans=3,
        image_size=recipe.data.image_size, **recipe.model.options,
    )  # fmt: skip
    assert model.group.name == recipe.model.group == "D4"
    assert recipe.data.augment.policy == "standard"
    assert (recipe.trainer.precision == "bf16-mixed") == (device == "cuda")


def test_there_are_rows_for_any_number_of_images():
    for device in ("cpu", "cuda"):
        assert read_choices("folder:x", device)[0].images == 0


@pytest.mark.parametrize(("name", "group"), [("mnist", "C1"), ("cifar10", "D1"), ("eurosat", "D4")])
def test_known_sets_have_the_group_that_suits_them(name, group):
    for row in read_choices(name, "cpu"):
        assert row.recipe(name, ()).model.group == group


def test_settings_win():
    row = read_choices("folder:x", "cpu")[0]
    settings = ("model.group=D1", "optimisation.batch_size=8", "data.augment.rotation=5")
    recipe = row.recipe("folder:x", settings, batch=20)
    assert recipe.model.group == "D1" and recipe.optimisation.batch_size == 8
    assert recipe.data.augment.rotation == 5.0 and recipe.data.augment.hue > 0
    assert row.recipe("folder:x", (), batch=20).optimisation.batch_size == 20


def test_unequal_classes_are_weighted():
    (row, *_), (plain, *_) = (
        read_choices("folder:x", "cpu", unequal=unequal) for unequal in (True, False)
    )
    assert row.recipe("folder:x", ()).trainer.select == "balanced_accuracy"
    assert row.recipe("folder:x", ()).optimisation.class_weights == "balanced"
    assert plain.recipe("folder:x", ()).optimisation.class_weights is None


@pytest.mark.parametrize(("kind", "smoothing"), [("class", 0.1), ("number", 0), ("multilabel", 0)])
def test_only_classes_have_label_smoothing(kind, smoothing):
    for row in read_choices("folder:x", "cpu", kind=kind):
        assert row.recipe("folder:x", ()).optimisation.label_smoothing == smoothing


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["mask", "instances"])
def test_masks_have_models_of_maps(device, kind):
    for row in read_choices("nuclei", device, kind=kind):
        recipe = row.recipe("nuclei", ())
        model = create_model(
            recipe.model.name, group=recipe.model.group, image_size=64, **recipe.model.options
        )
        assert model.output == "map" and model.group.name == "D4"
        assert row.side <= largest_side(device, kind)


def test_other_kinds_are_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"no model can be chosen for the sound targets of x"):
        read_choices("x", "cpu", kind="sound")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["class", "ordinal", "number", "multilabel"])
def test_the_suggested_recipe_ships_and_takes_its_settings(device, kind):
    advice = advise(device, "C4", kind=kind, unequal=kind == "class")
    recipe = read_recipe(find_recipe(advice.recipe), advice.settings)
    assert recipe.model.group == "C4"
    assert (recipe.optimisation.label_smoothing > 0) == (kind == "class")
    assert recipe.optimisation.class_weights == ("balanced" if kind == "class" else None)
    assert ("no GPU" in advice.reason) == (device == "cpu")


def test_no_recipe_is_suggested_for_masks():
    assert advise("cpu", "D4", kind="mask") is None


def test_the_largest_side_is_that_of_a_row():
    for device in ("cpu", "cuda"):
        assert largest_side(device) == max(row.side for row in read_choices("folder:x", device))
