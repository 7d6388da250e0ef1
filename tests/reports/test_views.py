"""Views move pixels as they say, and answers are those of the model itself."""

import pytest
import torch

from turnwise.groups import act_on_image
from turnwise.reports.views import (
    answers_to,
    rotated_views,
    scores_of,
    shift_image,
    shifted_views,
    steps_around,
)


def test_quarter_turns_are_exact():
    picture = torch.randint(256, (3, 4, 4), dtype=torch.uint8)
    views = rotated_views(picture, [0.0, 90.0, 180.0, 270.0])
    for k, view in enumerate(views):
        assert torch.equal(view, act_on_image("C4", k, picture.float() / 255))


@pytest.mark.parametrize(("right", "up"), [(0, 0), (2, 0), (-1, 0), (0, 1), (0, -2), (1, 2)])
def test_a_shift_moves_every_pixel(right, up):
    """Pixel by pixel on a rectangle: what lands at (row, col) came from (row + up, col − right)."""
    images = torch.rand(2, 3, 4, 5)
    moved = shift_image(images, right, up)
    assert moved.shape == images.shape
    for row in range(4):
        for col in range(5):
            inside = 0 <= row + up < 4 and 0 <= col - right < 5
            expected = images[..., row + up, col - right] if inside else torch.zeros(2, 3)
            assert torch.equal(moved[..., row, col], expected)


def test_steps_go_row_by_row_from_the_upper_left():
    assert steps_around(1)[:4] == [(-1, 1), (0, 1), (1, 1), (-1, 0)]
    assert len(steps_around(5)) == 121 and steps_around(5)[60] == (0, 0)


def test_shifted_views_follow_the_steps():
    picture = torch.zeros(1, 3, 3, dtype=torch.uint8)
    picture[0, 1, 1] = 255
    places = [divmod(int(view[0].argmax()), 3) for view in shifted_views(picture, steps_around(1))]
    assert places == [(row, col) for row in range(3) for col in range(3)]


def test_answers_are_the_softmax_of_the_scores(quadrant):
    views = rotated_views(quadrant.pictures.images[0], [0.0, 90.0])
    expected = scores_of(quadrant.model, views).softmax(-1)
    torch.testing.assert_close(answers_to(quadrant.model, views), expected)
    assert answers_to(quadrant.model, views).argmax(-1).tolist() == [0, 1]


def test_many_views_are_asked_in_parts_and_the_model_is_left_as_it_was(quadrant):
    quadrant.model.train()
    views = torch.rand(300, 1, 8, 8)
    whole = quadrant.model(views).softmax(-1)
    torch.testing.assert_close(answers_to(quadrant.model, views), whole)
    assert quadrant.model.training


def test_double_precision_stays(quadrant):
    assert answers_to(quadrant.model, torch.rand(1, 1, 8, 8).double()).dtype is torch.float64
