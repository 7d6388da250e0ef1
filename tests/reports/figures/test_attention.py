"""A gaze turns with the picture, exactly where the network does; positions are those learned."""

import numpy as np
import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.figures.attention import (
    attention_figure,
    moved_gaze,
    moved_place,
    position_maps,
    positions_figure,
)
from turnwise.reports.figures.attention_maps import Gaze


@pytest.mark.parametrize("g", range(8))
def test_a_place_moves_as_the_picture_does(g):
    picture = torch.arange(25).view(5, 5)
    row, col = moved_place(PlanarGroup.named("D4"), g, 1, 3, 5)
    assert act_on_image("D4", g, picture)[row, col] == picture[1, 3]


def test_a_gaze_moves_in_place_and_pose():
    d4 = PlanarGroup.named("D4")
    moved = moved_gaze(d4, 1, Gaze(0, 0, 4, 0, 0), 8, 5)
    assert (moved.row, moved.col, moved.pose) == (4, 0, d4.compose(1, 4))
    assert moved_gaze(d4, 1, Gaze(0, 0, 0, 0, 0), 1, 5).pose == 0


@pytest.mark.parametrize("name", ["gsa_net", "turnwise_vit_nano"])
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_law(make_subject, name, group):
    figure, gaps = attention_figure(make_subject(name, group), picture=3, layer=1, element=1)
    assert len(gaps) == PlanarGroup.named(group).order and max(gaps) < 1e-4
    shown = [axes.images[0].get_array() for axes in figure.axes][len(gaps) : 2 * len(gaps)]
    np.testing.assert_allclose(shown[1], np.rot90(shown[0]), atol=1e-5)
    assert np.ptp(shown[0]) > 1e-4


def test_control(make_subject):
    _, gaps = attention_figure(make_subject("vit"), picture=3)
    assert gaps[0] == 0 and min(gaps[1:]) > 1e-2


def test_the_token_is_marked_where_it_is(make_subject):
    figure, _ = attention_figure(make_subject("turnwise_vit_nano"), picture=3, pixel=(0, 6))
    marks = [axes.lines[0].get_xydata()[0].tolist() for axes in figure.axes[:2]]
    assert marks == [[25.5, 1.5], [1.5, 1.5]]  # tokens have 4 pixels; upper right, then upper left


def test_an_orbit_is_refused(make_subject):
    with pytest.raises(InputError, match="show the attention of that model"):
        attention_figure(make_subject("orbit_vit"))


def test_encodings_of_group_attention_turn_with_the_pose(make_subject):
    model = make_subject("gsa_net").model
    for maps in position_maps(model).values():
        assert maps.shape == (4, 3, 3)
        for h in range(4):
            torch.testing.assert_close(maps[h], torch.rot90(maps[0], h))
    steps = torch.tensor([[[1.0, -1.0]]])  # one row down, one column left, as pose 0 sees it
    with torch.no_grad():
        expected = model.lift.place(steps)[0, 0]
    shown = torch.stack([maps[0, 2, 0] for maps in position_maps(model).values()])
    torch.testing.assert_close(shown, expected[: len(shown)])


def test_rotary_maps_are_the_mean_cosine_and_turn(make_subject):
    model = make_subject("turnwise_vit_nano").model
    (maps,) = position_maps(model).values()
    frequency = model.stages[0][0].attention.frequency[0].detach()
    expected = (frequency @ torch.tensor([3.0, 2.0])).cos().mean()  # three right, two up
    torch.testing.assert_close(maps[0, 7 - 2, 7 + 3], expected)
    torch.testing.assert_close(maps[1], torch.rot90(maps[0]))
    assert (maps[0] - maps[1]).abs().max() > 1e-3


def test_positions_of_a_plain_network_have_no_pose(make_subject):
    model = make_subject("vit").model
    maps = position_maps(model)["channel 1"]
    torch.testing.assert_close(maps[0].flatten(), model.position[:, 1].detach())


def test_the_figure_shows_all_maps(make_subject):
    figure = positions_figure(make_subject("gsa_net"))
    assert len(figure.axes) == 3 * 4
    assert figure.axes[1].get_title() == "pose 1:\nturn by 90°"
    assert figure.axes[0].get_ylabel().startswith("channel 0\n±")


def test_a_model_without_positions(quadrant):
    with pytest.raises(InputError, match="Quadrant has no positions"):
        position_maps(quadrant.model)
