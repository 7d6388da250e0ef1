"""The linear map on the group in both bases: equivariance, witness, control, definition.

Letters:  g, m elements;  i, o channels.
"""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_field,
    act_on_regular,
    equivariance_error,
)
from turnwise.layers.transformer.irreps import from_irreps, to_irreps
from turnwise.layers.transformer.linear import (
    ExpandWeight,
    GroupLinear,
    SumAlongGroup,
    along_group,
    sum_along_group,
)

NAMES = ["C1", "C2", "C4", "C8", "D1", "D2", "D3", "D4"]
GROUPS = pytest.mark.parametrize("name", [*NAMES, "C5", "D8"])  # which have several 2-D irreps
BASES = pytest.mark.parametrize("basis", ["regular", "irreps"])


def linear(name, basis="regular", in_features=3, out_features=4, **options):
    """Make a layer in float32, as in a model, with a bias other than 0, and cast it to float64."""
    layer = GroupLinear(name, in_features, out_features, basis=basis, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer.double()


def both_bases(name, **options):
    """Return two layers with the same weights."""
    regular, irreps = linear(name, **options), linear(name, "irreps", **options)
    irreps.load_state_dict(regular.state_dict())
    return regular, irreps


def features(layer, *many):
    return torch.randn(*many, layer.group.order, layer.in_features, dtype=torch.float64)


def error_of(function, group, x):
    return equivariance_error(function, group, x, act_in=act_on_regular, act_out=act_on_regular)


def assert_near(left, right, atol=1e-12):
    torch.testing.assert_close(left, right, rtol=0, atol=atol)


@BASES
@GROUPS
def test_equivariance(name, basis):
    layer = linear(name, basis)
    assert error_of(layer, layer.group, features(layer, 5)) < 1e-12


@BASES
@pytest.mark.parametrize("name", GRID_GROUPS)
def test_equivariance_on_a_rectangle_of_tokens(name, basis):
    layer = linear(name, basis)
    field = torch.randn(2, layer.group.order, 3, 4, 3, dtype=torch.float64)
    actions = {"act_in": act_on_field, "act_out": act_on_field}

    def on_field(x):
        return layer(x.movedim(1, 3)).movedim(3, 1)

    assert equivariance_error(on_field, layer.group, field, **actions) < 1e-12


@BASES
def test_equivariance_after_training_in_float32(basis):
    layer = GroupLinear("D4", 3, 4, basis=basis)
    x = features(layer, 5).float()
    for _ in range(3):
        layer(x).square().sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.01).step()
    assert error_of(layer, layer.group, x) < 1e-5
    assert error_of(layer.double(), layer.group, x.double()) < 1e-12


@BASES
def test_witness(basis):
    """Every group element of the output depends on every one of the input."""
    layer = linear("D4", basis)
    x = features(layer, 2)
    assert layer(x).std(dim=1).min() > 0.01
    for m in range(8):
        other = x.clone()
        other[:, m] += 1
        change = (layer(other) - layer(x)).abs().amax(dim=(0, 2))
        assert change.min() > 1e-3
    transformed = act_on_regular(layer.group, 1, x)
    assert (layer(transformed) - layer(x)).abs().max() > 0.1


@pytest.mark.parametrize("name", ["D3", "D4"])
def test_control_other_tables(name):
    """m·g⁻¹ instead of g⁻¹m commutes with the action from the right, g·m with none."""
    layer = linear(name)
    group, x = layer.group, features(layer, 5)
    for wrong in (group.product()[:, group.inverse()].T, group.product()):
        layer.sources = (wrong[:, None] * 4 + torch.arange(4)[:, None]).flatten(0, 1)
        assert error_of(layer, group, x) > 0.1


def test_control_a_permuted_basis():
    """Two rows of the basis exchanged; and a bias that depends on the group element."""
    layer = linear("D4", "irreps")
    x = features(layer, 5)
    assert error_of(lambda y: layer(y) + torch.arange(8.0)[:, None], layer.group, x) > 0.1
    layer.basis_matrix = layer.basis_matrix[[0, 1, 2, 4, 3, 5, 6, 7]]
    assert error_of(layer, layer.group, x) > 0.1


@torch.no_grad()
def by_loops(layer, x):
    """y^g = Σ_m W[g⁻¹m] x^m + b"""
    group, y = layer.group, torch.zeros(len(x), layer.group.order, layer.out_features).double()
    for g, m in itertools.product(range(group.order), repeat=2):
        seen = group.compose(group.invert(g), m)
        for o, i in itertools.product(range(layer.out_features), range(layer.in_features)):
            y[:, g, o] += layer.weight[seen, o, i] * x[:, m, i]
    return y + layer.bias


@BASES
@pytest.mark.parametrize("name", ["C4", "D3", "D4"])
def test_definition(name, basis):
    layer = linear(name, basis)
    x = features(layer, 2)
    assert_near(layer(x), by_loops(layer, x))


@pytest.mark.parametrize("bias", [True, False])
@GROUPS
def test_both_bases_compute_the_same_forward_and_backward(name, bias):
    regular, irreps = both_bases(name, bias=bias)
    x, weight = features(regular, 2, 3), torch.randn(2, 3, regular.group.order, 4).double()
    found = []
    for layer in (regular, irreps):
        leaf = x.clone().requires_grad_()
        out = layer(leaf)
        (out * weight).sum().backward()
        found.append([out, leaf.grad, *(p.grad for p in layer.parameters())])
    for left, right in zip(*found, strict=True):
        assert_near(left, right)


@GROUPS
def test_two_maps_in_a_row_can_stay_in_irreps(name):
    """The change of basis keeps lengths and has an inverse."""
    (first, through), then = both_bases(name), linear(name, in_features=4, out_features=2)
    x = features(first, 2, 3)
    basis = through.irrep_basis()
    inside = to_irreps(x, basis)
    lengths = sum(part.square().sum() for part in inside)
    assert_near(lengths, x.square().sum(), atol=1e-10)
    assert_near(from_irreps(inside, basis), x.flatten(0, 1))
    nn.init.zeros_(first.bias)
    both = then.leave_irreps(through.forward_in_irreps(inside)).view(2, 3, -1, 2)
    assert_near(both, then(first(x)))


@BASES
def test_the_state_dict_is_the_same_in_both_bases(basis):
    state = linear("D4", basis).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "weight": (8, 4, 3),
        "bias": (4,),
    }
    assert list(linear("D4", basis, bias=False).state_dict()) == ["weight"]


@BASES
@pytest.mark.parametrize("many", [(), (0,), (2, 3, 1)])
def test_any_number_of_axes_before_the_group(basis, many):
    layer = linear("D4", basis)
    out = layer(features(layer, *many))
    assert out.shape == (*many, 8, 4)
    assert out.is_contiguous()


@pytest.mark.parametrize("rows", [4, 6])
def test_both_forms_of_the_sum_along_the_group_agree(rows):
    """The form for compilers and the matrix product."""
    matrix, x = torch.randn(rows, 6).double(), torch.randn(2, 3, 6, 5).double()
    expected = torch.einsum("ag,ntgc->ntac", matrix, x)
    assert_near(along_group(matrix, x), expected)
    assert_near(sum_along_group(matrix, x), expected)
    assert sum_along_group(matrix, x.float()).dtype == torch.float32


def test_gradients_of_the_sum_match_finite_differences():
    """First and second."""
    matrix, x = torch.randn(4, 6).double(), torch.randn(2, 6, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: SumAlongGroup.apply(matrix, x), x)
    assert torch.autograd.gradgradcheck(lambda x: SumAlongGroup.apply(matrix, x), x)


@GROUPS
def test_gradients_of_the_expanded_weight_match_finite_differences(name):
    """First and second; for D3 and D4, g·u and u·g differ."""
    layer = linear(name, in_features=2, out_features=3)
    tables = layer.sources, layer.product
    assert torch.autograd.gradcheck(lambda w: ExpandWeight.apply(w, *tables), layer.weight)
    assert torch.autograd.gradgradcheck(lambda w: ExpandWeight.apply(w, *tables), layer.weight)


def test_a_sum_is_rounded_once():
    """Of a table in float32 and features in bfloat16, terms are summed before rounding."""
    matrix, x = torch.randn(8, 8), torch.randn(20, 8, 5).bfloat16()
    exact = torch.einsum("ag,tgc->tac", matrix, x.float())
    once = 2**-8 * exact.abs() + 1e-5  # half of the last bit, and the error of float32
    assert ((sum_along_group(matrix, x).float() - exact).abs() <= once).all()
    assert ((sum_along_group(matrix.bfloat16(), x).float() - exact).abs() > once).any()


def test_weights_in_float64_use_the_coefficients_in_float64():
    """The coefficients in float32 are the same, rounded, and not used then."""
    layer = linear("D4", "irreps")
    x = features(layer, 3)
    expected = layer(x)
    assert_near(layer.coefficients_single.double(), layer.coefficients, 1e-7)
    layer.coefficients_single.zero_()
    assert torch.equal(layer(x), expected)


ONE_GRAPH = """
import warnings
import torch
from turnwise.groups import act_on_regular, assert_equivariant
from turnwise.layers.transformer.linear import GroupLinear
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "<class 'torch.autograd.function.Function'>")  # torch's own
for basis in ("regular", "irreps"):
    layer = GroupLinear("D4", 3, 4, basis=basis).double()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for tokens in (3, 5):
        x = torch.randn(2, tokens, 8, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), layer(x))
        found, expected = (
            torch.autograd.grad(f(x).square().sum(), layer.parameters()) for f in (compiled, layer)
        )
        torch.testing.assert_close(found, expected)
    actions = dict(act_in=act_on_regular, act_out=act_on_regular)
    assert_equivariant(compiled, "D4", torch.randn(2, 8, 3, dtype=torch.float64), **actions)
"""


def test_equivariance_compiled_in_one_graph():
    """Also backward, and for another number of tokens.

    In a separate process: the run-time type checks of the tests would break the graph.
    """
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@BASES
def test_products_in_bfloat16_under_autocast(basis):
    """As with `nn.Linear`; weights and their gradients stay in float32."""
    layer = GroupLinear("D4", 24, 32, basis=basis)
    x = torch.randn(2, 8, 24)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        assert out.dtype == torch.bfloat16
        assert all(weight.dtype == torch.float32 for weight in layer.irrep_weights())
    assert (out - layer(x)).abs().max() < 0.03 * layer(x).abs().max()
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@BASES
def test_a_layer_in_bfloat16(basis):
    layer = GroupLinear("D4", 24, 32, basis=basis)
    x = torch.randn(2, 8, 24)
    expected = layer(x)
    out = layer.bfloat16()(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out - expected).abs().max() < 0.03 * expected.abs().max()


def test_number_of_multiplications():
    """64 against 12 for D4; |G| times fewer for groups without 2-D irreps."""
    counts = linear("D4").multiplications()
    assert counts == {"regular": 64 * 12, "irreps": 12 * 12}
    assert counts["regular"] / counts["irreps"] == pytest.approx(5.33, abs=0.01)
    assert linear("D2").multiplications() == {"regular": 16 * 12, "irreps": 4 * 12}


@pytest.mark.parametrize("name", ["C1", "D4"])
def test_initial_weights(name):
    """Uniform within √(6 / (|G|·in + |G|·out)), and a bias of 0."""
    layer = GroupLinear(name, 50, 70)
    bound = math.sqrt(6 / (PlanarGroup.named(name).order * 120))
    assert 0.99 * bound < layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert layer.bias.abs().max() == 0


def test_with_one_element_it_is_a_plain_linear_map():
    layer, plain = linear("C1"), nn.Linear(3, 4).double()
    layer.load_state_dict({"weight": plain.weight[None], "bias": plain.bias})
    x = features(layer, 5)
    assert_near(layer(x), plain(x))


def test_repr():
    assert str(linear("D4", "irreps")) == "GroupLinear(D4, 3, 4, basis=irreps)"
    without_bias = linear("C4", bias=False)
    assert str(without_bias) == "GroupLinear(C4, 3, 4, bias=False, basis=regular)"


def test_invalid_arguments_raise_errors():
    with pytest.raises(InputError, match=r"unknown basis 'irrep'. Did you mean 'irreps'"):
        GroupLinear("D4", 3, 4, basis="irrep")
    with pytest.raises(InputError, match="in_features = 0 must be at least 1"):
        GroupLinear("D4", 0, 4)
    with pytest.raises(InputError, match="expected 8 group elements of 4 channels, got 4 of 8"):
        GroupLinear("D4", 4, 4)(torch.zeros(2, 4, 8))


def test_gradients_of_each_sample_by_torch_func():
    """As for ensembles and differential privacy; they equal those of one sample at a time."""
    layer = GroupLinear(PlanarGroup.named("C4"), 2, 3)
    weights, tokens = dict(layer.named_parameters()), torch.randn(5, 4, 2)

    def loss(weights, x):
        return torch.func.functional_call(layer, weights, (x[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, tokens)
    for number, x in enumerate(tokens):
        one = torch.func.grad(loss)(weights, x)
        torch.testing.assert_close(found["weight"][number], one["weight"])
