"""Every figure of a certificate is shown, in words that fit the verdict."""

from dataclasses import replace

import pytest
import torch

from turnwise.evaluation import Scope, certify
from turnwise.models import create_model
from turnwise.reports.pages.certificate_tables import (
    angle_table,
    control_table,
    describe,
    element_table,
    findings,
    layer_table,
    move_table,
    size_table,
    verdict,
    worst_table,
)

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}


def certificate_of(name):
    torch.manual_seed(0)
    model = create_model(name, group="C4", **SMALL)
    images = torch.rand(3, 1, 8, 8)
    scope = Scope(sizes=(8, 10))
    return certify(model, "C4", images, angles=4, scope=scope, original=("twin", model))


@pytest.fixture(scope="module")
def plain():
    return certificate_of("vit")


@pytest.fixture(scope="module")
def exact():
    return certificate_of("orbit_vit")


def test_the_verdict_is_the_last_word(plain, exact):
    assert describe(exact).endswith("\n\nINVARIANT under C4")
    assert describe(plain).endswith("\n\nNOT INVARIANT under C4")
    assert verdict(replace(exact, group="C8")) == "INVARIANT under C4, the exact part of C8"


def test_elements_hold_or_fail(plain, exact):
    column = element_table(plain).headers.index("≤ 1e-10, ≤ 1e-4")
    assert [row[column] for row in element_table(plain).rows] == ["holds"] + 3 * ["FAILS"]
    assert {row[column] for row in element_table(exact).rows} == {"holds"}
    assert describe(plain).count("FAILS") == 4, "three elements, and another size"


def test_only_precisions_that_were_measured_are_shown(plain):
    single = replace(plain, elements=tuple(replace(e, float64=None) for e in plain.elements))
    assert element_table(plain).headers[2:5] == ["float64", "float32", "≤ 1e-10, ≤ 1e-4"]
    assert element_table(single).headers[2:4] == ["float32", "≤ 1e-4"]


def test_sizes_hold_fail_or_are_refused(plain, exact):
    assert size_table(plain).rows[0][-1] == "FAILS"
    words = [row[-1] for row in size_table(exact).rows]
    assert words[0] == "holds"
    assert words[1].startswith("refused: the model takes pictures of shape")


def test_every_row_has_a_cell_for_each_header(plain):
    makers = (
        element_table, control_table, size_table, angle_table, move_table, worst_table, layer_table,
    )  # fmt: skip
    for make in makers:
        table = make(plain)
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.headers)}


def test_the_layers_near_the_entry_are_shown_in_the_terminal(plain, exact):
    shown = layer_table(plain, nearby=True).rows
    assert [row[0] for row in shown if row[-1] == "enters here"] == ["patches.project"]
    assert len(shown) < len(layer_table(plain).rows)
    assert layer_table(exact, nearby=True).rows == []


def test_findings_are_sentences(plain, exact):
    assert findings(plain)[0].startswith("The error enters at patches.project (Conv2d)")
    assert findings(exact) == ["Answers like twin: change 0, same decision 100.0 %."]
    unlike = replace(exact, likeness=replace(exact.likeness, change=0.5, agreement=0.0))
    assert findings(unlike)[0].startswith("DOES NOT ANSWER like twin")


def test_a_silent_control_is_said(exact):
    silent = replace(exact, controls=tuple(replace(c, change=0.0) for c in exact.controls))
    assert [row[-1] for row in control_table(silent).rows] == ["IS SILENT"] * 3
    assert {row[-1] for row in control_table(exact).rows} == {"speaks"}


def test_worst_pictures_tell_the_move_and_the_decision(plain):
    row, worst = worst_table(plain).rows[0], plain.worst[0]
    assert row[0] == str(worst.picture)
    assert row[1] == worst.move
    assert row[4] == f"{worst.before} → {worst.after}"
