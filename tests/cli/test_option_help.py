"""Every option of a Performer is explained in the words of its design; others where they can be."""

from dataclasses import fields

import pytest

from turnwise.cli.option_help import PLAIN, described_names, design_of, option_texts
from turnwise.models import list_models, model_options


class Described:
    """What a user may choose: this, that.

    width:  of the network
    kernel: "elu", which is
            linear; or "softmax"

    Paper:    Horn et al.
    """


def test_texts_may_have_several_lines():
    assert described_names(Described) == {
        "width": "of the network",
        "kernel": '"elu", which is linear; or "softmax"',
        "Paper": "Horn et al.",
    }


@pytest.mark.parametrize("model", list_models("*performer"))
def test_every_option_of_a_performer_has_its_text(model):
    silent = set(model_options(model)) - set(option_texts(model))
    assert silent <= {"dropout"} | ({"kernel"} if "group" in model else set())


def test_choices_are_said():
    texts = option_texts("relative_performer")
    assert texts["variant"] == "exact or tep-2021 (as published)"
    assert texts["embedding"] == "of a pixel: linear, MLP, lookup"
    assert '"favor" (random features)' in texts["kernel"]
    assert "embedding" not in option_texts("vit")


@pytest.mark.parametrize("model", list_models("[!o]*"))
def test_a_design_is_that_of_its_model(model):
    """Else the words would be about another option of the same name."""
    design = design_of(model)
    if design is not None:
        assert set(model_options(model)) <= {field.name for field in fields(design)}


def test_an_orbit_explains_its_own_options_too():
    texts = option_texts("orbit_group_performer")
    assert "circular shifts" in texts["frequencies"]
    assert '"map", logits for each pixel' in texts["output"]
    assert texts["base_group"] == PLAIN["base_group"]
