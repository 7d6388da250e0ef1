"""A card is told as it is: every figure is the record's, and nothing is added."""

import json

import pytest

from turnwise.models import shipped
from turnwise.reports.model_card import (
    HEADERS,
    card_page,
    over_seeds,
    seed_figures,
    shipped_cards,
    summary_rows,
)

SEED = {
    "val_accuracy": 0.9512, "test_accuracy": 0.9423, "worst_angle": 0.9311, "angles": 24,
    "orbit_agreement": 1.0, "turn_agreement": 0.8765, "epochs": 7, "training_seconds": 123.4,
    "times_examined": 1,
}  # fmt: skip
CARD = {
    "format": 1,
    "name": "turnwise_vit_nano.rotmnist",
    "model": {
        "name": "turnwise_vit_nano",
        "options": {"group": "D4", "num_classes": 2},
        "classes": ["cat", "dog"],
        "sha256": "ab12",
    },
    "weights": 63580,
    "bytes": 131264,
    "stored": {"precision": "float16", "pictures": 2000, "before": 0.9512, "after": 0.9512},
    "data": {
        "name": "rotmnist", "title": "Rotated MNIST", "provenance": "generated from MNIST",
        "licence": "CC BY-SA 3.0", "citation": "H. Larochelle", "sha256": {"train": "cd34"},
    },
    "licence": "MIT",
    "recipe": {"model": {"name": "turnwise_vit_nano"}, "evaluation": {"angles": 24}, "seed": 1},
    "seed": 1,
    "equivariance": {"group": "D4", "float64": 3e-16, "float32": 2e-7, "pictures": "16 digits"},
    "record": {
        "command": "python run.py", "commit": "123abc", "machine": "a machine", "date": "today",
        "figures": {"seeds": {"0": SEED | {"test_accuracy": 0.9625, "val_accuracy": 0.94},
                              "1": SEED}},
    },
    "shipped": "456def",
}  # fmt: skip


def with_record(**figures):
    return CARD | {"record": CARD["record"] | {"figures": figures}}


def test_a_line_is_about_the_shipped_seed_and_beside_it_all():
    (row,) = summary_rows([CARD])
    assert dict(zip(HEADERS, row, strict=True)) == {
        "name": "turnwise_vit_nano.rotmnist",
        "group": "D4",
        "weights": "63,580",
        "test accuracy": "94.23 %",
        "over seeds": "95.24 %, 94.23 % to 96.25 % (2 seeds)",
        "bytes": "131,264",
        "licence": "MIT",
    }


def test_the_figures_are_those_of_the_shipped_seed():
    assert seed_figures(CARD) == SEED
    assert seed_figures(CARD | {"seed": 0})["test_accuracy"] == 0.9625


def test_one_seed_has_no_mean():
    assert over_seeds(with_record(seeds={"1": SEED}), "test_accuracy") == "1 seed"
    assert "| seed | 1, the only one |" in card_page(with_record(seeds={"1": SEED}))


@pytest.mark.parametrize(
    "words",
    [
        "# turnwise_vit_nano.rotmnist\n",
        "| model | `turnwise_vit_nano`, group D4 |",
        "63,580 in 131,264 bytes; float16: all 2,000 validation pictures get the same answer",
        "| sha256 | `ab12` |",
        "| licence | MIT |",
        "| seed | 1, the best of 2 on validation |",
        "| trained | 7 epochs, 123 s |",
        "| commit | 123abc (today); shipped at 456def |",
        "| validation accuracy | 95.12 % | 94.56 %, 94.00 % to 95.12 % (2 seeds) |",
        "| at the worst of the angles | 93.11 % |",
        "The test split was examined once, turned in 24 equal steps of 360°.",
        "over D4, of the weights in this folder, on 16 digits: 3.0e-16 in float64, 2.0e-07 in",
        "| these pictures | generated from MNIST |",
        "| classes | cat, dog |",
        "| sha256 of train | `cd34` |",
        "evaluation:\n  angles: 24\n",
    ],
)
def test_the_page_tells(words):
    assert words in card_page(CARD)


def test_the_page_tells_what_is_not_as_usual():
    often = card_page(with_record(seeds={"1": SEED | {"times_examined": 3}}, note="stopped once"))
    assert "examined 3 times" in often and "| note | stopped once |" in often
    assert "note" not in card_page(CARD)
    single = card_page(CARD | {"stored": {"precision": "float32"}})
    assert "bytes; float32, as trained |" in single


def test_pictures_that_were_not_turned_have_no_angles():
    upright = CARD | {"recipe": {**CARD["recipe"], "evaluation": {"angles": 1}}}
    page = card_page(upright)
    assert "angle" not in page.partition("## Recipe")[0]
    assert "| same answer over the group | 100.00 % |" in page


def test_cards_are_read_from_the_shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    assert shipped_cards() == []
    (tmp_path / CARD["name"]).mkdir()
    (tmp_path / CARD["name"] / "card.json").write_text(json.dumps(CARD))
    by_model, by_name = shipped_cards("turnwise_vit_nano"), shipped_cards("*.rotmnist")
    assert by_model == by_name == [CARD]
    assert shipped_cards("turnwise_vit") == []
