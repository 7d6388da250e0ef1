"""Fields: the two representations, the head as loops over group and channels."""

import math

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, act_on_points
from turnwise.layers.heads.fields import FieldHead, act_on_field_of, field_matrices

GROUPS = ["C1", "C3", "C4", "C16", "D1", "D4", "D6"]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ["vector", "axis"])
def test_matrices_multiply_as_the_elements_do(group, kind):
    matrices, table = field_matrices(group, kind), PlanarGroup.named(group).product()
    torch.testing.assert_close(matrices[table], matrices[:, None] @ matrices)


@pytest.mark.parametrize("group", GROUPS)
def test_an_axis_follows_its_line(group):
    """Both ends of a line at the angle φ are transformed; the result has one axis."""
    for degrees in (0, 17, 90, 131):
        phi = math.radians(degrees)
        ends = torch.tensor([[math.cos(phi), math.sin(phi)]]).double() * torch.tensor([[1], [-1]])
        axis = torch.tensor([math.cos(2 * phi), math.sin(2 * phi)]).double()
        for g in range(PlanarGroup.named(group).order):
            x, y = act_on_points(group, g, ends).unbind(-1)
            expected = torch.stack([x * x - y * y, 2 * x * y], dim=-1)  # of both ends the same
            found = (field_matrices(group, "axis")[g] @ axis).expand(2, 2)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["vector", "axis"])
def test_definition_of_the_head(kind):
    head = FieldHead("D3", 2, kind).double()
    x, rho = torch.randn(1, 2, 6, 3, 4, dtype=torch.float64), field_matrices("D3", kind)
    expected = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    for g in range(6):
        for c in range(2):
            for i in range(2):
                for j in range(2):
                    expected[0, i] += rho[g, i, j] * head.weight[j, c].item() * x[0, c, g]
    torch.testing.assert_close(head(x), expected)


def test_the_table_survives_a_cast_to_16_bits():
    head = FieldHead("C16", 2).half().double()
    torch.testing.assert_close(head.matrices, field_matrices("C16", "vector"))


def test_a_constant_vector_field_rotates():
    field = torch.zeros(1, 2, 3, 3, dtype=torch.float64)
    field[:, 0] = 1  # to the right
    up = act_on_field_of("vector", "C4", 1, field)
    assert torch.equal(up[:, 1], torch.ones(1, 3, 3).double()) and not up[:, 0].any()


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="unknown kind of field 'spin'"):
        FieldHead("C4", 2, "spin")
