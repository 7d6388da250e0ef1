"""Clipped attention: circular shifts, directions, the class token, definition."""

import itertools

import pytest
import torch

from turnwise.errors import InputError
from turnwise.layers.performer.clipped import ClippedAttention

SIDE = 6


def layer_for(variant="exact", reach=3, kernel="elu"):
    layer = ClippedAttention(16, 4, SIDE, reach, kernel=kernel, variant=variant).double()
    with torch.no_grad():
        layer.table.normal_()
    return layer


def tokens():
    return torch.randn(2, 1 + SIDE * SIDE, 16, dtype=torch.float64)


def transformed(x, transformation):
    """Transform the pixels; the class token stays."""
    grid = transformation(x[:, 1:].unflatten(1, (SIDE, SIDE))).flatten(1, 2)
    return torch.cat([x[:, :1], grid], dim=1)


def roll(x):
    return x.roll((2, -1), dims=(1, 2))


def change(a, b):
    return float((a - b).detach().abs().max() / a.detach().abs().max())


@pytest.mark.parametrize("kernel", ["elu", "relu", "favor"])
def test_equivariance_to_circular_shifts(kernel):
    layer, x = layer_for(kernel=kernel), tokens()
    assert change(transformed(layer(x), roll), layer(transformed(x, roll))) < 1e-10


def test_control_the_published_variant_is_not_equivariant_to_shifts():
    layer, x = layer_for("tep-2021"), tokens()
    assert change(transformed(layer(x), roll), layer(transformed(x, roll))) > 1e-3


def test_witness_exact_tables_distinguish_directions_and_published_ones_do_not():
    """With a table of distances, the output of a flipped image is the flipped output."""
    for variant, symmetric in (("exact", False), ("tep-2021", True)):
        layer, x = layer_for(variant, reach=2), tokens()
        with torch.no_grad():
            layer.to_output.weight.copy_(torch.eye(16))
        flip = lambda grid: grid.flip(1)  # noqa: E731 - upside down
        out, flipped = layer(x), layer(transformed(x, flip))
        inside = transformed(out, flip).unflatten(1, (1, -1))[:, 0, 1:].unflatten(1, (SIDE, SIDE))
        found = flipped[:, 1:].unflatten(1, (SIDE, SIDE))
        positional = slice(8, 16)  # without the corner of the class token
        gap = change(inside[:, 1:-1, 2:, positional], found[:, 1:-1, 2:, positional])
        assert (gap < 1e-10) == symmetric


def test_the_class_token_has_no_position():
    """Its positional heads average over all pixels; as published it attends from a corner."""
    x, shuffle = tokens(), torch.randperm(SIDE * SIDE)
    other = torch.cat([x[:, :1], x[:, 1:][:, shuffle]], dim=1)
    for variant, invariant in (("exact", True), ("tep-2021", False)):
        layer = layer_for(variant)
        assert (change(layer(x)[:, 0], layer(other)[:, 0]) < 1e-10) == invariant


@pytest.mark.parametrize("variant", ["exact", "tep-2021"])
def test_the_output_of_the_class_token_can_be_computed_alone(variant):
    """All pixels are equally far from it, except as published."""
    layer, x = layer_for(variant, kernel="favor"), tokens()
    alone = layer(x, None, True)
    torch.testing.assert_close(alone, layer(x)[:, :1])
    alone.square().sum().backward()
    assert (layer.table.grad.abs().max() == 0) == (variant == "exact")


@pytest.mark.parametrize("variant", ["exact", "tep-2021"])
def test_definition_of_the_positional_heads(variant):
    layer, x = layer_for(variant), tokens()
    elu = lambda x: torch.nn.functional.elu(x) + 1  # noqa: E731
    query = elu(layer.to_query(x).view(2, -1, 4, 4))[:, :, 2:]
    value = layer.to_value(x).view(2, -1, 4, 4)[:, :, 2:]
    table = elu(layer.table)
    position = [(SIDE, 0) if variant == "tep-2021" else None]
    position += list(itertools.product(range(SIDE), range(SIDE)))
    exact = dict(zip(layer.steps, table, strict=False))

    def feature(t, s):
        if position[t] is None or s == 0:  # no token is near the class token, not even itself
            return table[-1]
        step = [b - a for a, b in zip(position[t], position[s], strict=True)]
        if variant == "tep-2021":
            return table[min(abs(step[0]) + abs(step[1]), 3)]
        return exact.get(tuple((d + 3) % SIDE - 3 for d in step), table[-1])

    keys = torch.stack([torch.stack([feature(t, s) for s in range(37)]) for t in range(37)])
    weight = torch.einsum("bthd,tsd->bhts", query, keys)
    expected = torch.einsum("bhts,bshd->bthd", weight / weight.sum(-1, keepdim=True), value)
    with torch.no_grad():
        layer.to_output.weight.copy_(torch.eye(16))
        layer.to_output.bias.zero_()
    torch.testing.assert_close(layer(x)[..., 8:], expected.flatten(2))


@pytest.mark.parametrize("kernel", ["elu", "relu", "softplus"])
def test_initially_near_pixels_dominate_and_the_whole_table_has_gradients(kernel):
    layer = ClippedAttention(32, 4, 12, 4, kernel=kernel).double()
    table = layer.place_kernel(layer.table, of_keys=True)
    near, far = table[:-1].sum(), (12**2 - len(table) + 1) * table[-1].sum()
    assert near > 2 * far
    layer(torch.randn(2, 145, 32, dtype=torch.float64)).square().sum().backward()
    assert (layer.table.grad != 0).all()


@pytest.mark.parametrize("variant", ["exact", "tep-2021"])
def test_a_zero_table_has_gradients(variant):
    layer = layer_for(variant, kernel="favor")
    with torch.no_grad():
        layer.table.zero_()
    layer(tokens()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name


def test_the_published_projection_of_the_positional_heads_is_never_redrawn():
    assert not layer_for("tep-2021", kernel="favor").place_kernel.projection.redrawn
    assert layer_for("exact", kernel="favor").place_kernel.projection.redrawn


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reach": 4}, "clipping_distance = 4 reaches round an image of 6 pixels; try 3 or less"),
        ({"kernel": "exp"}, "by its largest channel, .* use one of elu, softplus, relu"),
        ({"reach": 0}, "clipping_distance = 0 must be at least 1"),
        ({"variant": "tep"}, "unknown variant 'tep'"),
        ({"kernel": "softmax"}, "unknown kernel 'softmax'"),
    ],
)
def test_invalid_options_raise_errors(options, words):
    with pytest.raises(InputError, match=words):
        layer_for(**options)


def test_the_number_of_heads_must_be_even():
    with pytest.raises(InputError, match="heads = 3 must be a multiple of 2"):
        ClippedAttention(15, 3, SIDE, 2)
