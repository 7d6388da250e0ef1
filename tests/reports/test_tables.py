"""Numbers and tables are written for readers: with units, aligned, and on one line."""

import math

import pytest

from turnwise.evaluation.metrics import Interval
from turnwise.reports.tables import (
    format_error,
    format_percent,
    is_number,
    markdown_table,
    text_table,
)


def test_a_fraction_is_written_in_percent():
    assert format_percent(0.972) == "97.2 %"
    assert format_percent(1.0) == "100.0 %"
    assert format_percent(0.97249, digits=2) == "97.25 %"


def test_an_interval_follows_its_value():
    assert format_percent(Interval(0.972, 0.961, 0.98)) == "97.2 % (96.1–98.0)"


def test_what_is_undefined_is_a_dash():
    assert format_percent(math.nan) == "–"
    assert format_percent(Interval(math.nan, math.nan, math.nan)) == "–"
    assert format_percent(Interval(1.0, math.nan, math.nan)) == "100.0 %"
    assert format_error(math.nan) == "–"


def test_errors_keep_their_magnitude():
    assert [format_error(e) for e in (3.33e-16, 0.0, math.inf)] == ["3.3e-16", "0", "inf"]


@pytest.mark.parametrize(
    "cell",
    ["7", "-3.5", "3.3e-16", "97.2 %", "97.2 % (96.1–98.0)", "1 234", "1.8×", "45°", "12 ms", "–"],
)
def test_quantities_are_numbers(cell):
    assert is_number(cell)


@pytest.mark.parametrize("cell", ["", "gsa", "C4", "4 images each", "7-segment", "e5"])
def test_names_are_not_numbers(cell):
    assert not is_number(cell)


def test_numbers_are_flush_right_and_words_flush_left():
    table = text_table(["model", "error"], [["a", "1.0e-16"], ["longer", "0"]])
    assert table.splitlines() == [
        "model     error",
        "------  -------",
        "a       1.0e-16",
        "longer        0",
    ]


def test_one_word_makes_a_column_of_words():
    assert text_table(["x"], [["7"], ["seven"]]).splitlines()[2] == "7"


def test_a_table_may_be_empty():
    assert text_table(["model", "error"], []) == "model  error\n-----  -----"


def test_wide_letters_keep_the_columns():
    """An ideograph takes two columns of the terminal, a combining accent none."""
    lines = text_table(["a", "b"], [["星", "x"], ["e\u0301", "y"]]).splitlines()
    assert lines[2:] == ["星  x", "e\u0301   y"]


def test_cells_cannot_control_the_terminal():
    table = text_table(["name"], [["\x1b[31mred\nnext"]])
    assert "\x1b" not in table
    assert len(table.splitlines()) == 3


def test_markdown_cells_cannot_break_the_table():
    table = markdown_table(["name", "share"], [["a|b\nc<script>", "1.0 %"]])
    assert table.splitlines() == [
        "| name | share |",
        "|:--|--:|",
        r"| a\|b c&lt;script> | 1.0 % |",
    ]
