"""Every figure of a model card is that of its record."""

import json

import pytest

from turnwise.models import weights
from turnwise.reports.model_card import (
    HEADERS,
    card_page,
    over_seeds,
    pretrained_cards,
    seed_figures,
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


def test_a_row_has_the_published_seed_and_the_range_over_all():
    (row,) = summary_rows([CARD])
    assert dict(zip(HEADERS, row, strict=True)) == {
        "name": "turnwise_vit_nano.rotmnist",
        "group": "D4",
        "parameters": "63,580",
        "test accuracy": "94.23 %",
        "over seeds": "95.24 %, 94.23 % to 96.25 % (2 seeds)",
        "bytes": "131,264",
        "licence": "MIT",
    }


def test_the_figures_are_those_of_the_published_seed():
    named = {"rotation_agreement": SEED["turn_agreement"], "times_evaluated": 1}
    old = ("turn_agreement", "times_examined")  # of records that 0.1.0 wrote
    assert seed_figures(CARD) == {k: v for k, v in SEED.items() if k not in old} | named
    assert seed_figures(CARD | {"seed": 0})["test_accuracy"] == 0.9625


def test_one_seed_has_no_mean():
    assert over_seeds(with_record(seeds={"1": SEED}), "test_accuracy") == "1 seed"
    assert "| seed | 1, the only one |" in card_page(with_record(seeds={"1": SEED}))


@pytest.mark.parametrize(
    "words",
    [
        "# turnwise_vit_nano.rotmnist\n",
        "| model | `turnwise_vit_nano`, group D4 |",
        "63,580 in 131,264 bytes; float16: the predicted class of all 2,000 validation images is",
        "| sha256 | `ab12` |",
        "| licence | MIT |",
        "| seed | 1, the best of 2 on validation |",
        "| trained | 7 epochs, 123 s |",
        "| commit | 123abc (today); published at 456def |",
        "| validation accuracy | 95.12 % | 94.56 %, 94.00 % to 95.12 % (2 seeds) |",
        "| at the worst angle | 93.11 % |",
        "The test split was evaluated once, rotated by 24 equal steps of 360°.",
        "over D4, of the weights in this folder, on 16 digits: 3.0e-16 in float64, 2.0e-07 in",
        "| provenance | generated from MNIST |",
        "| classes | cat, dog |",
        "| sha256 of train | `cd34` |",
        "evaluation:\n  angles: 24\n",
    ],
)
def test_the_page_states(words):
    assert words in card_page(CARD)


def test_the_page_states_what_is_unusual():
    often = card_page(with_record(seeds={"1": SEED | {"times_examined": 3}}, note="stopped once"))
    assert "evaluated 3 times" in often and "| note | stopped once |" in often
    assert "note" not in card_page(CARD)
    single = card_page(CARD | {"stored": {"precision": "float32"}})
    assert "bytes; float32, as trained |" in single


def test_images_that_were_not_rotated_have_no_angles():
    upright = CARD | {"recipe": {**CARD["recipe"], "evaluation": {"angles": 1}}}
    page = card_page(upright)
    assert "angle" not in page.partition("## Recipe")[0]
    assert "| same prediction over the group | 100.00 % |" in page


def test_cards_are_found_by_name_and_by_model(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "ROOT", tmp_path)
    monkeypatch.setattr(weights, "MORE", ())
    assert pretrained_cards() == []
    (tmp_path / CARD["name"]).mkdir()
    (tmp_path / CARD["name"] / "card.json").write_text(json.dumps(CARD))
    by_model, by_name = pretrained_cards("turnwise_vit_nano"), pretrained_cards("*.rotmnist")
    assert by_model == by_name == [CARD]
    assert pretrained_cards("turnwise_vit") == []
