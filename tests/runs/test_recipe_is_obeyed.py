"""Each key of a recipe reaches the training: mutants that ignored one once survived all tests."""

import torch

from turnwise.data import Dataset
from turnwise.layers.normalise import Normalise
from turnwise.runs.run import load_recipe_data
from turnwise.runs.train import build_model


def initial_weights(recipe, dataset):
    return torch.cat([p.flatten() for p in build_model(recipe, dataset).parameters()])


def test_the_initial_weights_are_drawn_from_the_seed(quick, digits):
    first, again, other = (initial_weights(quick(f"seed={seed}"), digits) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, initial_weights(quick("seed=0"), digits))


def test_only_the_fraction_of_the_training_images_is_used(quick):
    whole, tenth = (load_recipe_data(quick(f"data.fraction={f}"), None) for f in (1, 0.1))
    assert len(whole.train) == 1500 and len(tenth.train) == 150
    assert len(tenth.val) == len(whole.val) and len(tenth.test) == len(whole.test)


def test_the_normalisation_is_fitted_on_training_images_alone(quick, digits):
    """With validation and test images all white, the mean is that of the training images."""

    def white(examples):
        return examples.move(
            lambda tensor: torch.full_like(tensor, 255) if tensor.dtype == torch.uint8 else tensor
        )

    changed = {"val": white(digits.val), "test": white(digits.test)}
    fields = {name: getattr(digits, name) for name in digits.__dataclass_fields__}
    model = build_model(quick(), Dataset(**{**fields, **changed}))
    (normalise,) = (m for m in model.modules() if isinstance(m, Normalise))
    pixels = digits.train.images.double() / 255
    assert abs(normalise.mean.item() - pixels.mean().item()) < 1e-4
