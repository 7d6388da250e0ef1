"""Pixels are transformed as the matrices say, and every action is one: g(hx) = (gh)x."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_field,
    act_on_image,
    act_on_points,
    act_on_regular,
)


@st.composite
def grid_group_and_two(draw):
    group = PlanarGroup.named(draw(st.sampled_from(GRID_GROUPS)))
    element = st.integers(0, group.order - 1)
    return group, draw(element), draw(element)


@given(grid_group_and_two())
def test_actions_compose(drawn):
    """g·(h·x) = (gh)·x, on images, fields, regular vectors and points; on a rectangle."""
    group, g, h = drawn
    examples = {
        act_on_image: torch.arange(2 * 3 * 5).view(2, 3, 5),
        act_on_field: torch.arange(group.order * 3 * 5 * 2).view(1, group.order, 3, 5, 2),
        act_on_regular: torch.arange(group.order * 2).view(1, group.order, 2),
        act_on_points: torch.randint(-9, 9, (7, 2)).double(),
    }
    for act, x in examples.items():
        assert torch.equal(act(group, g, act(group, h, x)), act(group, group.compose(g, h), x))


@pytest.mark.parametrize("name", GRID_GROUPS)
def test_pixels_are_transformed_as_the_matrices_say(name):
    """(g f)(x) = f(g⁻¹x), pixel by pixel, on a rectangle."""
    group, image = PlanarGroup.named(name), torch.arange(15).view(3, 5)
    for g in range(group.order):
        transformed = act_on_image(group, g, image)
        before, after = pixel_centres(3, 5), pixel_centres(*transformed.shape)
        for row, col in itertools.product(range(3), range(5)):
            target = act_on_points(group, g, before[row, col])
            assert transformed[(after == target).all(-1)].item() == image[row, col]


def test_a_field_is_transformed_in_both_arguments():
    """(g F)(h, x) = F(g⁻¹h, g⁻¹x), one by one on D4, where left and right differ."""
    group = PlanarGroup.named("D4")
    field = torch.arange(8 * 9 * 2).view(1, 8, 3, 3, 2)
    for g, h in itertools.product(range(8), repeat=2):
        source = field[0, group.compose(group.invert(g), h)].permute(2, 0, 1)
        expected = act_on_image(group, g, source).permute(1, 2, 0)
        assert torch.equal(act_on_field(group, g, field)[0, h], expected)


def test_a_rotation_by_90_degrees_is_counter_clockwise():
    """The right edge of the image becomes the top."""
    image = torch.zeros(3, 3)
    image[1, 2] = 1
    assert act_on_image(PlanarGroup.named("C4"), 1, image)[0, 1] == 1


def test_a_reflection_swaps_left_and_right():
    image = torch.tensor([[1, 2, 3]])
    assert act_on_image(PlanarGroup.named("D1"), 1, image).tolist() == [[3, 2, 1]]


def test_fine_groups_have_the_exact_elements_of_the_grid():
    image = torch.rand(4, 4)
    rotated = act_on_image(PlanarGroup.named("C8"), 2, image)
    assert torch.equal(rotated, act_on_image(PlanarGroup.named("C4"), 1, image))


def test_an_element_that_does_not_preserve_the_grid_is_rejected():
    with pytest.raises(InputError, match=r"C8 does not map pixels .* rotates by 45°.* or D4"):
        act_on_image(PlanarGroup.named("C8"), 1, torch.rand(4, 4))


@pytest.mark.parametrize("g", [-1, 4, 5])
def test_an_element_that_the_group_does_not_have_is_rejected(g):
    """Element 5 of C4 must not be taken for that of D4, a rotation with a reflection."""
    with pytest.raises(InputError, match=f"C4 has elements 0 to 3, got {g}"):
        act_on_image("C4", g, torch.rand(4, 4))


def test_a_group_may_be_given_by_name():
    group, x = PlanarGroup.named("D4"), torch.rand(1, 8, 3, 3, 2)
    assert torch.equal(act_on_field("p4m", 5, x), act_on_field(group, 5, x))
    points = torch.rand(4, 2).double()
    assert torch.equal(act_on_points("D4", 5, points), act_on_points(group, 5, points))


def test_integer_points_stay_integers_or_are_rejected():
    """Cast to integers, a rotation by 45° would map every point to 0."""
    point = torch.tensor([3, 0])
    assert act_on_points("C4", 1, point).tolist() == [0, 3]
    assert act_on_points("C8", 2, point).tolist() == [0, 3]
    assert act_on_points("D4", 4, point).tolist() == [-3, 0]
    for name, points in (("C8", point), ("C4", point.to(torch.uint8))):
        with pytest.raises(InputError, match=rf"element 1 of {name} .*; give points.double\(\)"):
            act_on_points(name, 1, points)


@pytest.mark.parametrize("elements", [3, 8])
def test_a_field_must_have_an_entry_for_every_element(elements):
    for act, shape in ((act_on_regular, (2, elements, 3)), (act_on_field, (2, elements, 3, 3, 1))):
        with pytest.raises(InputError, match=r"axis 1 must have 4 entries, one for each .* of C4"):
            act("C4", 1, torch.rand(shape))
