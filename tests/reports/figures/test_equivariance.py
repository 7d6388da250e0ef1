"""Features and logits follow the image by known amounts; those of a plain network do not."""

import re

import numpy as np
import pytest
import torch

from turnwise.errors import InputError
from turnwise.evaluation.layer_trace import layer_errors, layer_features
from turnwise.evaluation.steerability import change_over_angles, spots
from turnwise.groups import act_on_image
from turnwise.inference.predictor import Predictor
from turnwise.models import orbit
from turnwise.reports.figures import FigureOptions
from turnwise.reports.figures.equivariance import artefact_figure, features_figure

EQUIVARIANT = ("orbit_vit", "gsa_net", "turnwise_vit_nano")


def cells_of(text):
    """Return the body of a text table; columns are two or more spaces apart."""
    return [re.split(" {2,}", line) for line in text.splitlines()[2:]]


def draw_features(loaded, **options):
    """Draw image 3, and return the maps row by row and the errors by layer."""
    plot = features_figure([loaded], FigureOptions(image=3, **options))
    errors = {name: list(map(float, cells)) for name, *cells in cells_of(plot.text)}
    columns = len(next(iter(errors.values())))
    maps = [np.asarray(axes.images[0].get_array()) for axes in plot.figure.axes]
    return [maps[i : i + columns] for i in range(0, len(maps), columns)], errors


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_every_map_of_a_row_is_the_first_one_rotated(make_model, name):
    maps, errors = draw_features(make_model(name))
    for shown, difference in zip(*[iter(maps[1:])] * 2, strict=True):
        for k in range(4):
            np.testing.assert_allclose(shown[k], np.rot90(shown[0], k), atol=1e-4)
            assert np.abs(difference[k]).max() < 1e-4
    assert max(max(row) for row in errors.values()) < 1e-4


def test_the_maps_are_not_constant(make_model):
    maps, _ = draw_features(make_model("gsa_net"))
    assert all(np.ptp(row[0]) > 1e-3 for row in maps[1::2])


def test_the_features_of_a_plain_network_do_not_follow_the_image(make_model):
    maps, errors = draw_features(make_model("vit"))
    assert all(np.abs(row[1]).max() > 0.01 for row in maps[2::2])
    assert all(row[1] > 0.1 for row in errors.values())


def test_rows_and_columns_are_named(make_model):
    loaded = make_model("turnwise_vit_nano", "D4")
    plot = features_figure([loaded], FigureOptions(image=3, channel=1))
    names = [line[0] for line in cells_of(plot.text)]
    assert names == list(layer_features(loaded.model, loaded.examples.images[:1] / 255))
    head = plot.text.splitlines()[0]
    assert head.startswith("layer") and head.count("rotate by") == 6 and "identity" in head
    labels = [axes.get_ylabel() for axes in plot.figure.axes if axes.get_ylabel()]
    assert labels == [label for name in names for label in (name, "difference")]


@pytest.mark.parametrize("channel", [-1, 9999])
def test_a_channel_that_no_layer_has_is_refused(make_model, channel):
    with pytest.raises(InputError, match=rf"channel = {channel} must be from 0 to \d+; in layers"):
        draw_features(make_model("gsa_net"), channel=channel)


def test_a_finer_group_shows_its_exact_subgroup(make_model):
    _, errors = draw_features(make_model("turnwise_vit_nano", "C8"))
    assert all(len(row) == 4 and max(row) < 1e-4 for row in errors.values())


def images_of(loaded):
    return loaded.examples.images[:2].double() / 255


@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_every_layer_is_equivariant_and_not_invariant(make_model, name, group):
    loaded = make_model(name, group, torch.float64)
    before = layer_features(loaded.model, images_of(loaded))
    for g in range(loaded.group.order):
        compared = layer_errors(loaded.model, loaded.group, images_of(loaded), g)
        assert max(error for _, _, error in compared.values()) < 1e-10
        changes = [(before[n] - after).abs().max() for n, (after, _, _) in compared.items()]
        assert g == 0 or min(changes) > 1e-3


def test_the_layers_of_a_plain_network_are_not_equivariant(make_model):
    loaded = make_model("vit", dtype=torch.float64)
    compared = layer_errors(loaded.model, loaded.group, images_of(loaded), 1)
    assert min(error for _, _, error in compared.values()) > 0.1


def test_a_field_of_an_orbit_holds_the_features_of_each_view(make_model):
    """F(h) = h·φ(h⁻¹f), view by view, with φ the layers of the model inside."""
    loaded = make_model("orbit_vit", dtype=torch.float64)
    group, images = loaded.group, images_of(loaded)
    fields = layer_features(loaded.model, images)
    for h in range(group.order):
        inner = layer_features(loaded.model.model, act_on_image(group, group.invert(h), images))
        for (name, field), plain in zip(fields.items(), inner.values(), strict=True):
            assert name.startswith("model.")
            expected = act_on_image(group, h, plain[:, 0].movedim(-1, 1)).movedim(1, -1)
            torch.testing.assert_close(field[:, h], expected)


def test_features_are_fields_in_the_order_of_the_network(make_model):
    fields = layer_features(make_model("gsa_net").model, torch.rand(1, 1, 12, 12))
    assert [name.split(".")[0] for name in fields][:1] == ["lift"]
    fields = layer_features(make_model("turnwise_vit_nano").model, torch.rand(1, 1, 28, 28))
    assert len(fields) == 3
    assert list(fields.values())[-1].shape[:4] == (1, 4, 7, 7)


def test_the_model_is_left_as_it_was(make_model):
    model = make_model("vit").model.train()
    layer_features(model, torch.rand(1, 1, 28, 28))
    assert model.training and not any(m._forward_hooks for m in model.modules())


def test_models_whose_features_cannot_be_shown_are_refused(quadrant, make_model):
    with pytest.raises(InputError, match="no layer of Quadrant declares"):
        layer_features(quadrant.model, torch.rand(1, 1, 8, 8))
    chunked = orbit(make_model("vit").model, chunk=2)
    with pytest.raises(InputError, match="chunk = 0"):
        layer_features(chunked, torch.rand(1, 1, 28, 28))


def test_spots_rotate_exactly_by_90_degrees_and_change_between():
    upright = spots(3, 1, 16, 0.0)
    assert upright.shape == (3, 1, 16, 16)
    torch.testing.assert_close(spots(3, 1, 16, 90.0), act_on_image("C4", 1, upright))
    assert (spots(3, 1, 16, 45.0) - upright).abs().max() > 0.1
    assert (upright[0] - upright[1]).abs().max() > 0.1


class Total(torch.nn.Module):
    """Two scores: the sum of all pixels, which is invariant, and that of the left half."""

    def forward(self, images):
        return torch.stack([images.sum((1, 2, 3)), images[..., :8].sum((1, 2, 3))], dim=-1)


def test_the_change_is_the_mean_difference_over_the_standard_deviation():
    change = change_over_angles(Predictor(Total()).logits, 1, 16, [0.0, 90.0], count=4)
    before = Total()(spots(4, 1, 16, 0.0))
    after = Total()(spots(4, 1, 16, 90.0))
    expected = float((after - before).abs().mean() / before.std(dim=0).mean())
    assert change["redrawn"] == pytest.approx([0.0, expected], abs=1e-6)
    assert change["interpolated"][1] == pytest.approx(expected, abs=1e-5)
    assert expected > 0.1


def test_an_orbit_is_exact_at_90_degrees_only_and_a_plain_model_never(make_model):
    plot = artefact_figure([make_model("orbit_vit"), make_model("vit")], FigureOptions())
    change = {name: list(map(float, cells)) for name, *cells in cells_of(plot.text)}
    for how in ("interpolated", "redrawn"):
        _, at_45, at_90 = change[f"orbit_vit, {how}"]
        assert at_90 < 1e-5 < 1e-2 < at_45
        assert change[f"vit, {how}"][2] > 1e-2
    axes = plot.figure.axes[0]
    assert axes.get_yscale() == "log"
    assert "$" not in "".join(tick.get_text() for tick in axes.get_yticklabels())
