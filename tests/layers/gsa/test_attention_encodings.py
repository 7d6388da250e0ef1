"""Law, witness, control, definition of the encodings of place; and the published fault in them."""

import math

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.neighbourhoods import Neighbourhood, rotated_offsets
from turnwise.groups import PlanarGroup, act_on_points
from turnwise.layers.gsa.attention import AxisMLP, AxisTable, PositionEncoding, position_encoding


def encoding_for(kind, reach=3):
    return position_encoding(kind, 3, 4, eps=1e-5, reach=reach).double()


def offsets_and_their_images(group, g):
    offsets = Neighbourhood(5).offsets(9, 9)
    return offsets, act_on_points(group, g, offsets.double()).long()


@pytest.mark.parametrize("kind", ["mlp", "table"])
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_law(kind, name):
    """When the offsets turn by g, pose h has the encodings that pose g⁻¹h had."""
    group, encoding = PlanarGroup.named(name), encoding_for(kind)
    for g in range(group.order):
        before, after = offsets_and_their_images(group, g)
        expected = encoding(rotated_offsets(group, before))[group.product()[group.invert(g)]]
        assert (encoding(rotated_offsets(group, after)) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_witness(kind):
    """Every offset of the window has a vector of its own."""
    steps = rotated_offsets(PlanarGroup.named("C1"), Neighbourhood(5).offsets(9, 9))[0]
    vectors = encoding_for(kind)(steps)
    assert torch.cdist(vectors, vectors)[~torch.eye(25, dtype=torch.bool)].min() > 0.01


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_control(kind):
    """The offset itself, not as the pose sees it: the law must fail."""
    group, encoding = PlanarGroup.named("C4"), encoding_for(kind)
    before, after = offsets_and_their_images(group, 1)
    seen = [rotated_offsets(group, offsets)[:1] for offsets in (before, after)]
    assert (encoding(seen[0]) - encoding(seen[1])).abs().max() > 0.1


def test_definition_of_the_perceptron():
    """W₂ silu(norm(w·u + b)) + b₂, one coordinate at a time."""
    encoder = AxisMLP(3).double()
    nn.init.normal_(encoder.norm.weight)
    nn.init.normal_(encoder.norm.bias)
    places = torch.randn(2, 5, dtype=torch.float64)
    out = encoder(places)
    assert out.shape == (2, 5, 3)
    for i, j in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        hidden = encoder.spread.weight[:, 0] * places[i, j] + encoder.spread.bias
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
    encoding, places = encoding_for("mlp"), torch.randn(2, 5, 2, dtype=torch.float64)
    out = encoding(places)
    assert out.shape == (2, 5, 7)
    assert torch.equal(out[..., :3], encoding.row(places[..., 0]))
    assert torch.equal(out[..., 3:], encoding.col(places[..., 1]))


def near_and_far(encoder, unit):
    """|e(1) − e(2)| / |e(1) − e(−1)|: how near differs from far, against left from right."""
    left, near, far = encoder(torch.tensor([-1.0, *unit], dtype=torch.float64))
    return ((near - far).norm() / (near - left).norm()).item()


def start_as_published(encoder):
    nn.init.normal_(encoder.spread.weight, std=math.sqrt(2))
    nn.init.zeros_(encoder.spread.bias)
    return encoder


def test_near_differs_from_far():
    """In ten encoders as the exact networks start them; the steps are in logarithmic units."""
    shares = []
    for _ in range(10):
        encoder = start_as_published(AxisMLP(8).double())
        nn.init.normal_(encoder.spread.bias)
        shares.append(near_and_far(encoder, [1.0, math.log2(3)]))
    assert min(shares) > 0.02
    assert sum(shares) / 10 > 0.1


def test_published_fault_near_looks_like_far():
    """With zero bias the norm cancels the magnitude: left, here and right are all it tells."""
    for _ in range(10):
        encoder = start_as_published(AxisMLP(8, eps=1e-12).double())
        assert near_and_far(encoder, [1.0, 2.0]) < 1e-5
        here, right = encoder(torch.tensor([0.0, 1.0]))
        assert (here - right).norm() > 0.1


def test_the_published_epsilon_makes_something_of_nothing():
    """A rounding error of 1e-7 becomes a visible encoding there, and stays one here."""
    nothing, rounded, one = torch.tensor([0.0, 1e-7, 1.0], dtype=torch.float64)
    visible = {}
    for eps in (1e-12, 1e-5):
        encoder = start_as_published(AxisMLP(8, eps).double())
        whole = (encoder(one) - encoder(nothing)).norm()
        visible[eps] = ((encoder(rounded) - encoder(nothing)).norm() / whole).item()
    assert 0.05 < visible[1e-12] < 0.3  # 15 % in the published programs
    assert visible[1e-5] < 1e-4


def test_turns_finer_than_a_quarter_need_no_interpolation():
    """The perceptron takes any real place, and is smooth there."""
    encoder = AxisMLP(4).double()
    places = torch.linspace(-3, 3, 601, dtype=torch.float64)
    assert encoder(places).diff(dim=0).norm(dim=-1).max() < 0.1
    assert torch.autograd.gradcheck(encoder, places[::100].clone().requires_grad_())


def test_places_are_read_in_the_precision_of_the_weights():
    places = torch.randn(3, 2, dtype=torch.float64)
    assert position_encoding("mlp", 2, 2, eps=1e-5, reach=1)(places).dtype == torch.float32


@pytest.mark.parametrize("kind", ["mlp", "table"])
def test_gradients_reach_every_parameter(kind):
    encoding = encoding_for(kind, reach=2)
    places = Neighbourhood(5).offsets(9, 9).double()
    weights = torch.randn(25, 7, dtype=torch.float64)
    (encoding(places) * weights).sum().backward()
    assert all(p.grad.abs().amax(dim=-1).min() > 0 for p in encoding.parameters())


def test_kinds_by_name():
    assert isinstance(encoding_for("mlp"), PositionEncoding)
    assert isinstance(encoding_for("mlp").row, AxisMLP)
    assert isinstance(encoding_for("table").col, AxisTable)
    with pytest.raises(InputError, match=r"unknown encoding 'tabel'\. Did you mean 'table'\?"):
        encoding_for("tabel")
