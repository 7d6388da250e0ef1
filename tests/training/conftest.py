"""A recipe that trains in a second and has every source of randomness in it."""

import pytest

from turnwise.training.recipe import make_recipe

VALUES = {
    "model": {"name": "orbit_vit", "group": "C4", "patch": 7, "width": 16, "depth": 2, "heads": 2},
    "data": {"name": "digits", "augment": {"rotation": 15, "shift": 1, "mirror": True}},
    "optimisation": {"batch_size": 400, "learning_rate": 0.003, "warmup_epochs": 1},
    "trainer": {"max_epochs": 2, "accelerator": "cpu"},
    "evaluation": {"angles": 4},
}


@pytest.fixture
def quick():
    """Makes the recipe, with overrides."""
    return lambda *overrides: make_recipe(VALUES, overrides)
