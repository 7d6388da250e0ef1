"""The answers are those of the model inside to each view, and the surest view moves along."""

import pytest
import torch

from turnwise.groups import act_on_image
from turnwise.reports.figures.orbit import Orbit, orbit_figure, trusted, view_answers


def test_definition(quadrant):
    """φ(h⁻¹f) view by view: turning back by h quarters takes h from the quadrant."""
    asked = Orbit.of(quadrant)
    answers = view_answers(asked, quadrant.pictures.images.float() / 255)
    said = answers.argmax(-1)
    for label in range(4):
        assert said[label].tolist() == [(label - h) % 4 for h in range(4)]


@pytest.mark.parametrize("name", ["orbit_vit", "vit"])
def test_law_answers_to_views_are_a_function_on_the_group(make_subject, name):
    subject = make_subject(name, dtype=torch.float64)
    asked, images = Orbit.of(subject), subject.pictures.images[:3].double() / 255
    before = view_answers(asked, images)
    after = view_answers(asked, act_on_image(asked.group, 1, images))
    for h in range(4):
        torch.testing.assert_close(after[:, h], before[:, asked.group.compose(3, h)])
    assert (after - before).abs().max() > 1e-3  # witness


def test_the_surest_view():
    answers = torch.tensor([[[0.5, 0.5], [0.1, 0.9]], [[0.8, 0.2], [0.4, 0.6]]])
    assert trusted(answers).tolist() == [1, 0]


def test_an_orbit_model_is_asked_as_it_is_and_another_is_wrapped(make_subject):
    kept, plain = make_subject("orbit_vit"), make_subject("vit")
    assert Orbit.of(kept).whole is kept.model and Orbit.of(kept).inner is kept.model.model
    assert Orbit.of(plain).inner is plain.model and Orbit.of(plain).group.name == "C4"


def test_the_figure_marks_the_surest_view(quadrant):
    figure = orbit_figure(quadrant, picture=0)
    labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
    assert len(labels) == 5 and labels[-1] == "all together"
    assert sum("▲" in label for label in labels) == 1
    heights = [bar.get_height() for bar in figure.axes[-1].patches]
    assert sum(heights[:4]) == pytest.approx(1) == sum(heights[4:])
