"""Attention weights are the softmax of the formulas, and follow the image as the network does."""

import numpy as np
import pytest
import torch

from turnwise.attention.rotary import own_frame_phases
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.attention import (
    Query,
    attention_figure,
    attention_grid,
    attention_layers,
    attention_weights,
    position_maps,
    positions_figure,
    transform_query,
)

NAMES = ["gsa_net", "turnwise_vit_nano", "vit"]


def image_of(loaded):
    return loaded.examples.images[:1].double() / 255


def draw_attention(loaded, **options):
    """Draw image 3, and return the figure and the error of each column."""
    figure = attention_figure([loaded], FigureOptions(image=3, **options)).figure
    labels = [axes.get_xlabel() for axes in figure.axes]
    return figure, [float(label) for label in labels if label]


@pytest.mark.parametrize("name", NAMES)
def test_weights_sum_to_one_and_differ(make_model, name):
    loaded = make_model(name, dtype=torch.float64)
    image = image_of(loaded)
    for layer in range(len(attention_layers(loaded.model))):
        heads = attention_grid(loaded.model, image, layer)[-1]
        weights = attention_weights(loaded.model, image, Query(layer, heads - 1, 0, 2, 3))
        assert float(weights.sum()) == pytest.approx(1)
        assert weights.min() >= 0 and weights.std() > 1e-6


def test_weights_of_a_plain_layer_are_those_of_the_formula(make_model):
    """softmax(q·k / √dim), spelled out for one token and head of the first layer."""
    loaded = make_model("vit", dtype=torch.float64, qk_norm=False)
    model, image = loaded.model, image_of(loaded)
    block = model.blocks[0]
    tokens = block.norm_attention(model.patches(model.preprocess(image)) + model.position)
    projected = block.attention.to_query_key_value(tokens)[0]
    query, key, _ = projected.unflatten(-1, (3, 2, -1)).unbind(1)
    expected = torch.stack([query[1 * 4 + 2, 1] @ key[s, 1] / 8**0.5 for s in range(16)]).softmax(0)
    weights = attention_weights(model, image, Query(0, 1, 0, 1, 2))
    torch.testing.assert_close(weights, expected.detach().view(1, 4, 4))


def test_weights_of_a_rotary_layer_are_those_of_the_formula(make_model):
    """softmax(F_q·F_k / √dim) of group element 3; pairs of channels are complex numbers."""
    loaded = make_model("turnwise_vit_nano", dtype=torch.float64, qk_norm=False)
    model, image = loaded.model, image_of(loaded)
    layer, kept = attention_layers(model)[0], {}
    projection = layer.attention_taps().value
    handle = projection.register_forward_hook(lambda m, given, out: kept.update(projected=out))
    model(model.preprocess(image))
    handle.remove()
    split = kept["projected"].unflatten(-1, (3, 1, -1))[0, :, 3, :, 0]
    positions = pixel_centres(7, 7).flatten(0, 1)
    phases = own_frame_phases(layer.frequency, layer.matrices, positions)[3, 0]
    half = split.shape[-1] // 2
    complex_ = torch.complex(split[..., :half], split[..., half:]) * torch.exp(1j * phases)[:, None]
    query, key, _ = complex_.unbind(1)
    score = torch.stack([(query[9] * key[s].conj()).real.sum() for s in range(49)])
    expected = (score / (2 * half) ** 0.5).softmax(0).detach()
    weights = attention_weights(model, image, Query(0, 0, 3, 1, 2))
    torch.testing.assert_close(weights[3].flatten(), expected)
    assert float(weights.sum() - weights[3].sum()) == 0  # a group element attends to itself only


def test_weights_outside_the_window_are_zero(make_model):
    loaded = make_model("gsa_net", dtype=torch.float64)
    weights = attention_weights(loaded.model, image_of(loaded), Query(0, 0, 0, 5, 5)).sum(0)
    outside = weights.clone()
    outside[4:7, 4:7] = 0
    assert outside.abs().max() == 0 and (weights[4:7, 4:7] > 0).all()


def test_grids_are_those_of_the_layers(make_model):
    gsa, vit = make_model("gsa_net"), make_model("turnwise_vit_nano")
    assert attention_grid(gsa.model, image_of(gsa).float(), 0) == (4, 12, 12, 2)
    assert attention_grid(vit.model, torch.rand(1, 1, 28, 28), 1) == (4, 7, 7, 1)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(9, 0, 0, 0, 0), "there is no layer 9; they are 0 to 1"),
        (Query(0, 5, 0, 0, 0), "heads 0 to 1 and group elements 0 to 0"),
        (Query(0, 0, 1, 0, 0), "heads 0 to 1 and group elements 0 to 0"),
        (Query(0, 0, 0, 4, 0), "rows 0 to 3 and columns 0 to 3"),
    ],
)
def test_a_query_that_the_layer_does_not_have_is_refused(make_model, query, message):
    with pytest.raises(InputError, match=message):
        attention_weights(make_model("vit").model, torch.rand(1, 1, 28, 28), query)


def test_models_without_attention_or_positions_are_refused(quadrant):
    with pytest.raises(InputError, match="Quadrant has no attention"):
        attention_weights(quadrant.model, torch.rand(1, 1, 8, 8), Query(0, 0, 0, 0, 0))
    with pytest.raises(InputError, match="Quadrant has no positions"):
        position_maps(quadrant.model)


@pytest.mark.parametrize("g", range(8))
def test_a_query_moves_as_its_pixel_does(g):
    image = torch.arange(25).view(5, 5)
    query = transform_query(PlanarGroup.named("D4"), g, Query(0, 0, 0, 1, 3), 8, 5)
    assert act_on_image("D4", g, image)[query.row, query.col] == image[1, 3]


def test_a_query_changes_its_group_element_if_the_layer_has_several():
    d4 = PlanarGroup.named("D4")
    query = transform_query(d4, 1, Query(0, 0, 4, 0, 0), 8, 5)
    assert (query.row, query.col, query.element) == (4, 0, d4.compose(1, 4))
    assert transform_query(d4, 1, Query(0, 0, 0, 0, 0), 1, 5).element == 0


@pytest.mark.parametrize("name", ["gsa_net", "turnwise_vit_nano"])
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_attention_of_equivariant_models_follows_the_image(make_model, name, group):
    figure, errors = draw_attention(make_model(name, group), layer=1, element=1)
    assert len(errors) == PlanarGroup.named(group).order and max(errors) < 1e-4
    shown = [axes.images[0].get_array() for axes in figure.axes][len(errors) : 2 * len(errors)]
    np.testing.assert_allclose(shown[1], np.rot90(shown[0]), atol=1e-5)
    assert np.ptp(shown[0]) > 1e-4


def test_attention_of_a_plain_model_does_not_follow_the_image(make_model):
    _, errors = draw_attention(make_model("vit"))
    assert errors[0] == 0 and min(errors[1:]) > 1e-2


def test_the_query_token_is_marked_at_its_position(make_model):
    figure, _ = draw_attention(make_model("turnwise_vit_nano"), pixel=(0, 6))
    marks = [axes.lines[0].get_xydata()[0].tolist() for axes in figure.axes[:2]]
    assert marks == [[25.5, 1.5], [1.5, 1.5]]  # tokens have 4 pixels; upper right, then upper left


def test_an_orbit_is_refused(make_model):
    with pytest.raises(InputError, match="show the attention of the model inside"):
        draw_attention(make_model("orbit_vit"))


def test_position_maps_of_group_attention_rotate_with_the_group_element(make_model):
    model = make_model("gsa_net").model
    for maps in position_maps(model).values():
        assert maps.shape == (4, 3, 3)
        for h in range(4):
            torch.testing.assert_close(maps[h], torch.rot90(maps[0], h))
    offset = torch.tensor([[[1.0, -1.0]]])  # one row down, one column left, seen by the identity
    with torch.no_grad():
        expected = model.lift.place(offset)[0, 0]
    shown = torch.stack([maps[0, 2, 0] for maps in position_maps(model).values()])
    torch.testing.assert_close(shown, expected[: len(shown)])


def test_position_maps_of_rotary_attention_are_mean_cosines_and_rotate(make_model):
    model = make_model("turnwise_vit_nano").model
    (maps,) = position_maps(model).values()
    frequency = model.stages[0][0].attention.frequency[0].detach()
    expected = (frequency @ torch.tensor([3.0, 2.0])).cos().mean()  # three right, two up
    torch.testing.assert_close(maps[0, 7 - 2, 7 + 3], expected)
    torch.testing.assert_close(maps[1], torch.rot90(maps[0]))
    assert (maps[0] - maps[1]).abs().max() > 1e-3


def test_position_maps_of_a_plain_network_have_no_group_axis(make_model):
    model = make_model("vit").model
    maps = position_maps(model)["channel 1"]
    torch.testing.assert_close(maps[0].flatten(), model.position[:, 1].detach())


def test_the_positions_figure_shows_all_maps(make_model):
    figure = positions_figure([make_model("gsa_net")], FigureOptions()).figure
    assert len(figure.axes) == 3 * 4
    assert figure.axes[1].get_title() == "element 1:\nrotate by 90°"
    assert figure.axes[0].get_ylabel().startswith("channel 0\n±")
