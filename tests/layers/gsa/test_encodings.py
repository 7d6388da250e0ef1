"""Positional encodings: equivariance, witness, control, definition; and the published fault."""

import math

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.neighbourhoods import Neighbourhood, rotated_offsets
from turnwise.groups import PlanarGroup, act_on_points
from turnwise.layers.gsa.encodings import AxisMLP, AxisTable, PositionEncoding, position_encoding


def encoding_for(kind, reach=3):
    return position_encoding(kind, 3, 4, eps=1e-5, reach=reach).double()


def offsets_before_and_after(group, g):
    offsets = Neighbourhood(5).offsets(9, 9)
    return offsets, act_on_points(group, g, offsets.double()).long()


@pytest.mark.parametrize("kind", ["mlp", "table"])
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_equivariance(kind, name):
    """If g acts on the offsets, element h has the encodings that g⁻¹h had before."""
    group, encoding = PlanarGroup.named(name), encoding_for(kind)
    for g in range(group.order):
        before, after = offsets_before_and_after(group, g)
        expected = encoding(rotated_offsets(group, before))[group.product()[group.invert(g)]]
        assert (encoding(rotated_offsets(group, after)) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_witness(kind):
    """Every offset of the window has a different vector."""
    steps = rotated_offsets(PlanarGroup.named("C1"), Neighbourhood(5).offsets(9, 9))[0]
    vectors = encoding_for(kind)(steps)
    assert torch.cdist(vectors, vectors)[~torch.eye(25, dtype=torch.bool)].min() > 0.01


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_control(kind):
    """Encodings of the offset itself, not rotated by h⁻¹, are not equivariant."""
    group, encoding = PlanarGroup.named("C4"), encoding_for(kind)
    before, after = offsets_before_and_after(group, 1)
    unrotated = [rotated_offsets(group, offsets)[:1] for offsets in (before, after)]
    assert (encoding(unrotated[0]) - encoding(unrotated[1])).abs().max() > 0.1


def test_definition_of_the_mlp():
    """W₂ silu(norm(w·u + b)) + b₂, one coordinate at a time."""
    encoder = AxisMLP(3).double()
    nn.init.normal_(encoder.norm.weight)
    nn.init.normal_(encoder.norm.bias)
    coordinates = torch.randn(2, 5, dtype=torch.float64)
    out = encoder(coordinates)
    assert out.shape == (2, 5, 3)
    for i, j in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        hidden = encoder.spread.weight[:, 0] * coordinates[i, j] + encoder.spread.bias
        centred = hidden - hidden.mean()
        normed = centred / (centred.square().mean() + 1e-5).sqrt()
        normed = encoder.norm.weight * normed + encoder.norm.bias
        expected = encoder.mix.weight @ (normed / (1 + torch.exp(-normed))) + encoder.mix.bias
        torch.testing.assert_close(out[i, j], expected, rtol=0, atol=1e-12)


def test_definition_of_the_table():
    """Step k is row k + reach; farther steps count as the farthest; rounding does not matter."""
    encoder = AxisTable(4, reach=2)
    rows = encoder.vector.weight
    assert rows.shape == (5, 4)
    assert torch.equal(encoder(torch.arange(-2.0, 3.0)), rows)
    assert torch.equal(encoder(torch.tensor([-9.0, 9.0])), rows[[0, 4]])
    assert torch.equal(encoder(torch.tensor([[0.999999, -1.000001]])), rows[None, [3, 1]])


def test_rows_come_first_then_columns():
    encoding, steps = encoding_for("mlp"), torch.randn(2, 5, 2, dtype=torch.float64)
    out = encoding(steps)
    assert out.shape == (2, 5, 7)
    assert torch.equal(out[..., :3], encoding.row(steps[..., 0]))
    assert torch.equal(out[..., 3:], encoding.col(steps[..., 1]))


def near_and_far(encoder, unit):
    """Return |e(1) − e(2)| / |e(1) − e(−1)|: near against far, relative to left against right."""
    left, near, far = encoder(torch.tensor([-1.0, *unit], dtype=torch.float64))
    return ((near - far).norm() / (near - left).norm()).item()


def initialise_as_published(encoder):
    nn.init.normal_(encoder.spread.weight, std=math.sqrt(2))
    nn.init.zeros_(encoder.spread.bias)
    return encoder


def test_near_differs_from_far():
    """In ten encoders as the exact networks initialise them, for logarithmic steps."""
    ratios = []
    for _ in range(10):
        encoder = initialise_as_published(AxisMLP(8).double())
        nn.init.normal_(encoder.spread.bias)
        ratios.append(near_and_far(encoder, [1.0, math.log2(3)]))
    assert min(ratios) > 0.02
    assert sum(ratios) / 10 > 0.1


def test_published_fault_near_equals_far():
    """With zero bias the norm cancels the magnitude: only left, zero and right differ."""
    for _ in range(10):
        encoder = initialise_as_published(AxisMLP(8, eps=1e-12).double())
        assert near_and_far(encoder, [1.0, 2.0]) < 1e-5
        zero, right = encoder(torch.tensor([0.0, 1.0]))
        assert (zero - right).norm() > 0.1


def test_the_published_epsilon_amplifies_rounding_errors():
    """An error of 1e-7 in a coordinate changes the published encoding by about 15 %."""
    zero, rounded, one = torch.tensor([0.0, 1e-7, 1.0], dtype=torch.float64)
    change = {}
    for eps in (1e-12, 1e-5):
        encoder = initialise_as_published(AxisMLP(8, eps).double())
        whole = (encoder(one) - encoder(zero)).norm()
        change[eps] = ((encoder(rounded) - encoder(zero)).norm() / whole).item()
    assert 0.05 < change[1e-12] < 0.3
    assert change[1e-5] < 1e-4


def test_rotations_off_the_grid_need_no_interpolation():
    """The MLP is smooth in real coordinates."""
    encoder = AxisMLP(4).double()
    coordinates = torch.linspace(-3, 3, 601, dtype=torch.float64)
    assert encoder(coordinates).diff(dim=0).norm(dim=-1).max() < 0.1
    assert torch.autograd.gradcheck(encoder, coordinates[::100].clone().requires_grad_())


def test_offsets_are_cast_to_the_precision_of_the_weights():
    offsets = torch.randn(3, 2, dtype=torch.float64)
    assert position_encoding("mlp", 2, 2, eps=1e-5, reach=1)(offsets).dtype == torch.float32


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_gradients_reach_every_parameter(kind):
    encoding = encoding_for(kind, reach=2)
    offsets = Neighbourhood(5).offsets(9, 9).double()
    weights = torch.randn(25, 7, dtype=torch.float64)
    (encoding(offsets) * weights).sum().backward()
    assert all(p.grad.abs().amax(dim=-1).min() > 0 for p in encoding.parameters())


def test_encodings_are_made_by_name():
    assert isinstance(encoding_for("mlp"), PositionEncoding)
    assert isinstance(encoding_for("mlp").row, AxisMLP)
    assert isinstance(encoding_for("table").col, AxisTable)
    with pytest.raises(InputError, match=r"unknown encoding 'tabel'\. Did you mean 'table'\?"):
        encoding_for("tabel")
