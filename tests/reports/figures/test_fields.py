"""Layers become fields that turn with the picture; those of a plain network do not."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import act_on_field, act_on_image
from turnwise.models import orbit
from turnwise.reports.figures.fields import act_on_layer, layer_errors, layer_fields

EQUIVARIANT = ("orbit_vit", "gsa_net", "turnwise_vit_nano")


def images_of(subject):
    return subject.pictures.images[:2].double() / 255


@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_law(make_subject, name, group):
    subject = make_subject(name, group, torch.float64)
    for g in range(subject.group.order):
        compared = layer_errors(subject.model, subject.group, images_of(subject), g)
        assert max(error for _, _, error in compared.values()) < 1e-10


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_witness(make_subject, name):
    """The fields do move, and hold something."""
    subject = make_subject(name, dtype=torch.float64)
    compared = layer_errors(subject.model, subject.group, images_of(subject), 1)
    before = layer_fields(subject.model, images_of(subject))
    assert all((before[n] - after).abs().max() > 1e-3 for n, (after, _, _) in compared.items())


def test_control(make_subject):
    subject = make_subject("vit", dtype=torch.float64)
    compared = layer_errors(subject.model, subject.group, images_of(subject), 1)
    assert min(error for _, _, error in compared.values()) > 0.1


def test_definition_of_an_orbits_field(make_subject):
    """F(h) = h·φ(h⁻¹f), view by view, with φ the layers of the model inside."""
    subject = make_subject("orbit_vit", dtype=torch.float64)
    group, images = subject.group, images_of(subject)
    fields = layer_fields(subject.model, images)
    for h in range(group.order):
        inner = layer_fields(subject.model.model, act_on_image(group, group.invert(h), images))
        for name, field in fields.items():
            expected = act_on_image(group, h, inner[name][:, 0].movedim(-1, 1)).movedim(1, -1)
            torch.testing.assert_close(field[:, h], expected)


def test_layers_are_named_in_order(make_subject):
    fields = layer_fields(make_subject("gsa_net").model, torch.rand(1, 1, 12, 12))
    assert list(fields) == ["lift 1", "block 1", "pool 1", "block 2"]
    fields = layer_fields(make_subject("turnwise_vit_nano").model, torch.rand(1, 1, 28, 28))
    assert list(fields) == ["stem 1", "block 1", "block 2"]
    assert fields["block 2"].shape[:4] == (1, 4, 7, 7)


def test_maps_without_poses_turn_alone(make_subject):
    group = make_subject("vit").group
    field = torch.rand(1, 1, 3, 3, 2)
    turned = act_on_layer(group, 1, field)
    assert torch.equal(turned[0, 0, ..., 1], torch.rot90(field[0, 0, ..., 1]))
    posed = torch.rand(1, 4, 3, 3, 2)
    assert torch.equal(act_on_layer(group, 1, posed), act_on_field(group, 1, posed))


def test_the_model_is_left_as_it_was(make_subject):
    model = make_subject("vit").model.train()
    layer_fields(model, torch.rand(1, 1, 28, 28))
    assert model.training and not any(m._forward_hooks for m in model.modules())


def test_what_cannot_be_shown(quadrant, make_subject):
    with pytest.raises(InputError, match="no layers of Quadrant"):
        layer_fields(quadrant.model, torch.rand(1, 1, 8, 8))
    chunked = orbit(make_subject("vit").model, chunk=2)
    with pytest.raises(InputError, match="chunk = 0"):
        layer_fields(chunked, torch.rand(1, 1, 28, 28))
