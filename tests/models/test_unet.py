"""U-Nets: maps and fields that rotate with the image, negative controls, definitions, sizes."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_image, equivariance_error
from turnwise.layers.heads.fields import act_on_field_of
from turnwise.models import create_model

SIZES = ["turnwise_unet_nano", "turnwise_unet_tiny", "turnwise_unet_small"]


def model_for(name="turnwise_unet_nano", group="D4", **options):
    torch.manual_seed(0)
    given = {"num_classes": 3, "in_chans": 2, "image_size": 16, "widths": (16, 32), **options}
    model = create_model(name, group=group, **given)
    for part in model.modules():  # statistics of batch norms that are not 0 and 1
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(part.running_var, 0.5, 2)
    return model.double().eval()


def images(rows=16, cols=16, batch=2):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, 2, rows, cols, generator=generator, dtype=torch.float64)


FORMS = {
    "plain": {},
    "no attention": {"blocks": 0},
    "bilinear upsampling": {"upsample": "bilinear"},
    "average pooling": {"halve": "average"},
    "one level": {"widths": (16,)},
    "three levels": {"widths": (8, 16, 32), "convs": 1},
    "other options": {"kernel": 5, "heads": 2, "mlp_ratio": 1.0, "dropout": 0.5},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_equivariant(form):
    model = model_for(**FORMS[form])
    assert equivariance_error(model, "D4", images(), act_out=act_on_image) < 1e-10


@pytest.mark.parametrize("group", ["C1", "C2", "D1", "D2", "C4", "D4", "C8", "D8", "C16"])
@pytest.mark.parametrize("shape", [(16, 16), (18, 18), (12, 20)])
def test_equivariance_under_the_grid_part_of_every_group(group, shape):
    """At sizes that halve twice, and at those that are padded."""
    model, x = model_for(group=group, widths=(16, 16, 32)), images(*shape, batch=1)
    y = model(x)
    assert y.shape == (1, 3, *shape)
    for g in model.group.grid_elements():
        transformed = model(act_on_image(model.group, g, x))
        assert (transformed - act_on_image(model.group, g, y)).abs().max() < 1e-10 * y.abs().max()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("group", ["C4", "D4"])
def test_every_size_is_exact_as_it_ships(name, group):
    torch.manual_seed(0)
    model = create_model(name, group=group, num_classes=2, in_chans=2, image_size=16).eval()
    x = images(batch=1)
    assert equivariance_error(model, group, x.float(), act_out=act_on_image) < 1e-4
    assert equivariance_error(model.double(), group, x, act_out=act_on_image) < 1e-10


def test_equivariance_in_training():
    """The statistics of batch norms do not depend on the orientation of the images."""
    model = model_for().train()
    assert equivariance_error(model, "D4", images(), act_out=act_on_image) < 1e-10


@pytest.mark.parametrize("kind", ["vector", "axis"])
@pytest.mark.parametrize("group", ["C4", "D4", "C16"])
def test_fields_rotate_in_value_as_in_position(kind, group):
    model, x = model_for(group=group, readout=kind, num_classes=2), images()
    field = model(x)
    assert model.output == kind and field.shape == (2, 2, 16, 16)
    for g in model.group.grid_elements():
        transformed = model(act_on_image(group, g, x))
        expected = act_on_field_of(kind, group, g, field)
        assert (transformed - expected).abs().max() < 1e-10 * field.abs().max()
        if g:  # control: as a map, without rotating its components
            wrong = act_on_image(group, g, field)
            assert (transformed - wrong).abs().max() > 1e-3 * field.abs().max() or (
                kind == "axis" and PlanarGroup.named(group).quarter_rotations(g) == 2
            )


def test_the_output_depends_on_the_image_and_is_no_constant():
    model, x = model_for(), images()
    y = model(x)
    assert (y[0] - y[1]).abs().max() > 1e-4
    assert (y - y.mean((2, 3), keepdim=True)).abs().max() > 1e-4


def test_negative_control_a_wrong_table_breaks_equivariance():
    """Two group elements are swapped in the filters of one convolution of the decoder."""
    model = model_for(group="C4")
    table = model.decoder[0][0].filters.source_by_element
    table.copy_(table.view(4, 4, 9)[[1, 0, 2, 3]].flatten())
    assert equivariance_error(model, "C4", images(), act_out=act_on_image) > 1e-4


def test_negative_control_the_plain_network_is_not_equivariant():
    model = model_for("unet")
    assert model.group == PlanarGroup(1)
    assert equivariance_error(model, "C4", images(), act_out=act_on_image) > 1e-2


def test_the_orbit_of_the_plain_network_is_equivariant():
    model = model_for("orbit_unet")
    assert model.output == "map" and model.design.output == "map"
    assert equivariance_error(model, "D4", images(), act_out=act_on_image) < 1e-10


def test_an_orbit_of_a_field_is_refused():
    with pytest.raises(InputError, match="whose components an orbit does not rotate"):
        model_for("orbit_turnwise_unet_nano", readout="axis", num_classes=2)


def test_definition_of_the_plain_network_in_torch():
    """`unet` is the U-Net that one writes with torch's own functions."""
    model, x = model_for("unet", widths=(4, 6, 8)), images(12, 20)

    def level(layers, x):
        for conv, norm in zip(layers[::3], layers[1::3], strict=True):
            weight = conv.weight[:, :, 0] if conv.weight.ndim == 4 else conv.weight
            x = F.conv2d(x, weight.unflatten(-1, (3, 3)), padding=1)
            n = norm.norm
            x = F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias).relu()
        return x

    one = level(model.encoder[0], x)
    two = level(model.encoder[1], F.max_pool2d(one, 2))
    three = level(model.encoder[2], F.max_pool2d(two, 2))
    for narrow, layers, skip in zip(model.narrow, model.decoder, (two, one), strict=True):
        thin = F.conv2d(three, narrow.weight[:, :, 0, :, None], narrow.bias)
        wide = thin.repeat_interleave(2, 2).repeat_interleave(2, 3)
        three = level(layers, torch.cat([wide, skip], dim=1))
    torch.testing.assert_close(model(x), model.head(three))
    assert model.num_features == 4


def test_definition_of_the_head():
    """The mean and the maximum over the group of every pixel, then a linear map."""
    model, x = model_for(group="C4"), images()
    features = model.forward_features(x)
    assert features.shape == (2, 4, 4, 16, 16)
    both = torch.cat([features.mean(2), features.amax(2)], dim=1)
    logits = torch.einsum("oc,bcxy->boxy", model.head.weight[:, :, 0, 0], both)
    torch.testing.assert_close(model(x), logits + model.head.bias[:, None, None])


def test_padding_is_equal_on_both_sides():
    """An image of 18 pixels is padded with zeros to 20, and the output is cropped."""
    model, x = model_for(widths=(16, 16, 16), group="C4"), images(18, 20)
    torch.testing.assert_close(model(x), model(F.pad(x, (0, 0, 1, 1)))[:, :, 1:-1])


def test_odd_sizes_are_refused():
    model = model_for()
    assert model.exact_size(17) == (16, 18) and model_for(widths=(16,)).exact_size(17) == (17,)
    with pytest.raises(InputError, match="image_size = 17 cannot be exact in a U-Net"):
        model(images(16, 17))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": (12, 16)}, r"widths = 12 must be a multiple of 8 \(level 1 is split over 8"),
        ({"widths": (8, 8)}, "widths = 8 must be a multiple of 16 .8 group elements with 1"),
        ({"widths": ()}, "widths must list one level or more"),
        ({"kernel": 4}, "kernel = 4 must be odd.*; try 5"),
        ({"readout": "axis"}, "a field of readout = axis has 2 components, not num_classes = 3"),
    ],
)
def test_options_that_do_not_work_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        model_for(**options)


def test_the_plain_network_has_the_width_of_small():
    sizes = {
        name: sum(p.numel() for p in create_model(name, group="D4").parameters())
        for name in (*SIZES, "unet")
    }
    assert list(sizes.values()) == sorted(sizes.values())
    widths = [create_model(name).design.widths for name in ("turnwise_unet_small", "unet")]
    assert widths[0] == widths[1]


def test_gradients_reach_every_parameter():
    model = model_for().train()
    model(images()).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
