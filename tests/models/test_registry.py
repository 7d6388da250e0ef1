"""Names, options, and the words of refusal."""

import pytest
import torch

import turnwise
from turnwise.checks import InputError
from turnwise.models import create_model, describe_model, list_models, model_options
from turnwise.models.registry import config_of


def test_every_model_can_be_made_and_described():
    for name in list_models():
        model = create_model(name, group="C2", num_classes=3, image_size=28)
        assert model(torch.rand(1, 1, 28, 28)).shape == (1, 3)
        assert describe_model(name)


def test_list_models_matches_patterns():
    assert "vit" in list_models()
    assert list_models("orbit_*") == [name for name in list_models() if name.startswith("orbit_")]
    assert list_models("nothing*") == []


def test_every_classifier_has_an_orbit_twin():
    plain = [name for name in list_models() if not name.startswith("orbit_")]
    assert plain
    assert all(f"orbit_{name}" in list_models() for name in plain)


def test_options_are_the_model_s_own():
    assert model_options("vit")["patch"] == 4
    assert model_options("orbit_vit")["combine"] == "mean"
    assert create_model("vit", patch=7, width=8, heads=2).patches.project.kernel_size == (7, 7)


def test_the_config_builds_the_same_model():
    made = create_model("orbit_vit", group="p4m", image_size=8, width=16, heads=2)
    config = config_of(made)
    assert config.options["group"] == "D4"
    again = create_model(config.name, **config.options)
    assert again.state_dict().keys() == made.state_dict().keys()
    by_hand = turnwise.orbit(
        create_model("vit", group="p4m", image_size=8, width=16, heads=2), "D4"
    )
    assert config_of(by_hand) == config


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: create_model("vti"), r"unknown model 'vti'\. Did you mean 'vit'\?"),
        (
            lambda: create_model("vit", widht=8),
            r"unknown option of vit 'widht'\. Did you mean 'width'",
        ),
        (lambda: create_model("vit", group="Q8"), "unknown group 'Q8'"),
        (lambda: create_model("vit", width="foo"), "width must be a whole number, got 'foo'"),
        (lambda: create_model("vit", drop_path="a"), "drop_path must be a number, got 'a'"),
        (lambda: create_model("vit", heads=0), "heads = 0 must be at least 1"),
        (lambda: create_model("vit", patch=0), "patch = 0 must be at least 1"),
        (lambda: create_model("vit", num_classes=0), "num_classes = 0 must be at least 1"),
        (lambda: create_model("vit", pretrained=True), "no weights of 'vit' are shipped"),
        (lambda: describe_model("vti"), "unknown model"),
    ],
)
def test_bad_input_says_what_would_work(call, words):
    with pytest.raises(InputError, match=words):
        call()
