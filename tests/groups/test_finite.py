"""Elements multiply as their matrices do, and the group axioms hold."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.groups import PlanarGroup, require_grid_group

NAMES = [f"C{n}" for n in range(1, 17)] + [f"D{n}" for n in range(1, 9)]


@pytest.fixture(params=NAMES)
def group(request):
    return PlanarGroup.named(request.param)


@st.composite
def group_and_elements(draw, count):
    group = PlanarGroup.named(draw(st.sampled_from(NAMES)))
    return group, *(draw(st.integers(0, group.order - 1)) for _ in range(count))


def test_product_follows_the_rule_of_dihedral_groups(group):
    """r^j s^p · r^k s^q = r^(j + (−1)^p k) s^(p + q): a description independent of the matrices."""
    n = group.rotations
    for a, b in itertools.product(range(group.order), repeat=2):
        power = (a % n + (-1) ** (a // n) * (b % n)) % n
        assert group.compose(a, b) == power + n * ((a // n + b // n) % 2)


def test_product_agrees_with_matrices(group):
    matrices = group.matrices()
    products = matrices[:, None] @ matrices[None, :]
    torch.testing.assert_close(matrices[group.product()], products, rtol=0, atol=1e-14)


def test_elements_rotate_and_reflect_as_the_conventions_say(group):
    """r^k s^m first reflects (1, 0), then rotates it by 2πk/n."""
    for g in range(group.order):
        k, m = g % group.rotations, g // group.rotations
        angle = 2 * math.pi * k / group.rotations + math.pi * m
        expected = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        torch.testing.assert_close(
            group.matrices()[g] @ torch.tensor([1.0, 0.0]).double(), expected
        )


@given(group_and_elements(3))
def test_product_is_associative(drawn):
    group, a, b, c = drawn
    left = group.compose(group.compose(a, b), c)
    assert left == group.compose(a, group.compose(b, c))


@given(group_and_elements(1))
def test_identity_and_inverse(drawn):
    group, a = drawn
    assert group.compose(0, a) == a == group.compose(a, 0)
    assert group.compose(a, group.invert(a)) == 0 == group.compose(group.invert(a), a)


@given(group_and_elements(2))
def test_relative_is_the_inverse_times_the_other(drawn):
    group, g, h = drawn
    assert group.relative()[g, h] == group.compose(group.invert(g), h)


@given(group_and_elements(3))
def test_relative_is_invariant_under_a_common_factor(drawn):
    group, g, h, a = drawn
    assert group.relative()[group.compose(a, g), group.compose(a, h)] == group.relative()[g, h]


def test_tables_are_copies():
    """Writing to a table does not change the group."""
    group = PlanarGroup.named("D3")
    group.product().zero_()
    assert group.product().max() == 5


def test_subgroups_are_closed_and_divide_the_order(group):
    for members in group.subgroups():
        assert 0 in members
        assert group.order % len(members) == 0
        assert {group.compose(a, b) for a in members for b in members} == set(members)


@pytest.mark.parametrize(
    ("name", "count"), [("C1", 1), ("C12", 6), ("D1", 2), ("D3", 6), ("D4", 10)]
)
def test_number_of_subgroups(name, count):
    """C_n has one for each divisor of n, d(n); D_n has d(n) + σ(n)."""
    assert len(PlanarGroup.named(name).subgroups()) == count


@pytest.mark.parametrize(
    ("alias", "name"),
    [("z2", "C1"), ("mz2", "D1"), ("p4", "C4"), ("p4m", "D4"), ("p8", "C8"), ("p8m", "D8"),
     ("p16", "C16"), ("R4", "C4"), ("R4M", "D4"), ("R12", "C12"), ("D6", "D6")],
)  # fmt: skip
def test_alias(alias, name):
    assert PlanarGroup.named(alias).name == name


def test_every_alias_names_the_group(group):
    assert all(PlanarGroup.named(alias) == group for alias in group.aliases)


def test_group_is_a_value(group):
    again = PlanarGroup(group.rotations, group.reflections)
    assert again == group
    assert hash(again) == hash(group)
    assert PlanarGroup.named(group) is group


@pytest.mark.parametrize("name", ["", "4", "C0", "E2", "D-4", "d4", "C4 ", "p0m", "C4m"])
def test_an_unknown_name_is_rejected_with_examples(name):
    with pytest.raises(InputError, match="C1, C4, D4"):
        PlanarGroup.named(name)


def test_too_many_rotations_are_rejected():
    with pytest.raises(InputError, match="1 to 64 rotations, got 65"):
        PlanarGroup.named("C65")


@pytest.mark.parametrize(
    ("name", "exact"), [("C4", 4), ("D4", 8), ("C8", 4), ("D8", 8), ("C3", 1), ("D3", 2), ("C6", 2)]
)
def test_grid_elements_are_those_with_integer_matrices(name, exact):
    group = PlanarGroup.named(name)
    integer = [g for g in range(group.order) if (group.matrices()[g] % 1 == 0).all()]
    assert list(group.grid_elements()) == integer
    assert len(integer) == exact


def test_a_group_that_does_not_preserve_the_grid_is_rejected():
    require_grid_group(PlanarGroup.named("D4"))
    with pytest.raises(
        InputError, match="C8 does not map pixels to pixels; use C1, C2, C4, D1, D2 or D4"
    ):
        require_grid_group(PlanarGroup.named("C8"))


EXACT_SUBGROUPS = {"C8": "C4", "D8": "D4", "C6": "C2", "D3": "D1", "C3": "C1", "D4": "D4"}


@pytest.mark.parametrize(("name", "subgroup"), EXACT_SUBGROUPS.items())
def test_the_exact_subgroup_has_the_elements_of_the_grid(name, subgroup):
    group = PlanarGroup.named(name)
    assert group.exact_subgroup().name == subgroup
    assert group.exact_subgroup().order == len(group.grid_elements())


def test_tables_can_be_made_on_the_meta_device():
    group = PlanarGroup.named("D5")  # in no other test, so its product table is not cached yet
    with torch.device("meta"):
        assert group.compose(1, 5) == 6
        assert group.invert(1) == 4
        assert group.product().device.type == group.relative().device.type == "meta"
        assert group.matrices().device.type == "meta"
    assert group.product().device.type == "cpu"
    assert torch.equal(group.product()[0], group.elements)
