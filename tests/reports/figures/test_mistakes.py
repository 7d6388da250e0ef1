"""Counts are counts, and the worst pictures are the worst."""

import numpy as np
import pytest

from turnwise.reports.figures.mistakes import confusion_figure, worst_falls, worst_figure


def test_confusion_upright_and_turned(quadrant):
    upright, turned, *_ = confusion_figure(quadrant).axes
    np.testing.assert_array_equal(upright.images[0].get_array(), np.eye(4))
    np.testing.assert_array_equal(turned.images[0].get_array(), np.roll(np.eye(4), 1, axis=1))
    assert upright.get_title() == "upright: 100.0 % right"
    assert turned.get_title() == "turned by 90°: 0.0 % right"
    cells = {text.get_position(): text.get_text() for text in upright.texts}
    assert cells == {(i, i): "1" for i in range(4)}
    assert [tick.get_text() for tick in upright.get_yticklabels()] == ["I", "II", "III", "IV"]


def test_the_worst_come_first(quadrant):
    quadrant.pictures.images[2] //= 2  # a dimmer spot is less sure of itself, and falls less
    falls = worst_falls(quadrant, pictures=4, count=4)
    assert falls[-1].number == 2
    depth = [fall.upright - fall.turned for fall in falls]
    assert depth == sorted(depth, reverse=True) and depth[-1] > 0
    assert all(fall.answer != fall.number for fall in falls)


def test_an_invariant_model_falls_only_off_the_grid(make_subject):
    for fall in worst_falls(make_subject("orbit_vit"), pictures=20, count=3):
        assert fall.degrees % 90 != 0 and fall.upright > fall.turned


def test_the_figure_tells_both_answers(quadrant):
    axes = worst_figure(quadrant, count=2).axes
    assert len(axes) == 4
    assert axes[0].get_title().startswith("upright\n“")
    assert "says “" in axes[2].get_title()
    assert pytest.approx(1.0) == np.asarray(axes[0].images[0].get_array()).max()
