"""What `turnwise models` shows of families, parameters and results."""

import pytest

from turnwise.models import create_model, list_models
from turnwise.reports.model_table import describe, model_facts, model_tables


@pytest.mark.parametrize("name", ["vit", "gsa_net", "turnwise_vit_nano"])
def test_parameters_are_those_of_the_model(name):
    model = create_model(name, group="C4", in_chans=3, image_size=64)
    assert model_facts()[name]["parameters"] == sum(p.numel() for p in model.parameters())


def test_facts_are_of_models_that_exist():
    assert set(model_facts()) <= set(list_models())


def test_models_of_a_family_stand_together():
    tables = model_tables(["gsa_net", "resnet18", "ge_vit"]).split("\n\n")
    assert len(tables) == 2
    assert "GSA-Net and GE-ViT" in tables[0] and "ge_vit" in tables[0] and "gsa_net" in tables[0]


def test_a_row_shows_at_most_three_results():
    row = next(
        line for line in model_tables(["metaformer_s12_pppa"]).splitlines() if "eurosat" in line
    )
    assert row.count("%") == 3 and row.endswith("1 more")


def test_all_results_of_one_model_name_their_recipe():
    text = describe("metaformer_s12_pppa")
    assert text.count("test accuracy") == 4 and "eurosat_metaformer" in text
