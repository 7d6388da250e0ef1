"""Views are h⁻¹f, the disc hides the corners, and what lies outside is background, not grey."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.geometry.warps import warp_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.orbit.views import OrbitViews, disc

BLACK = torch.zeros(2, dtype=torch.float64)


def pictures(rows=9, cols=9):
    return torch.rand(2, 2, rows, cols, dtype=torch.float64)


@pytest.mark.parametrize("name", ["C4", "D4", "C8", "D8"])
def test_definition(name):
    group, x = PlanarGroup.named(name), pictures()
    for h in range(group.order):
        wanted = warp_image(group, group.invert(h), x)
        torch.testing.assert_close(OrbitViews(group).look(x, h, BLACK), wanted)


@pytest.mark.parametrize("name", ["D4", "C8", "C12", "C16", "D8"])
@pytest.mark.parametrize("mask", [False, True])
def test_law_turning_the_picture_reorders_the_views(name, mask):
    """For g of the grid, exactly, although the views between are interpolated."""
    group, x = PlanarGroup.named(name), pictures()
    views, table = OrbitViews(group, mask), group.relative().tolist()
    outside = torch.tensor([0.3, -2.0], dtype=torch.float64)
    for g in group.grid_elements():
        turned = act_on_image(group, g, x)
        for h in range(group.order):
            moved, same = views.look(turned, h, outside), views.look(x, table[g][h], outside)
            torch.testing.assert_close(moved, same, rtol=0, atol=1e-12)


def test_control_the_wrong_order_is_seen():
    """h f for h⁻¹f: in D4 the views would be reordered by hg, not by g⁻¹h."""
    group, x = PlanarGroup.named("D4"), pictures()
    table = group.relative().tolist()
    turned = act_on_image(group, 1, x)
    gaps = [
        (act_on_image(group, h, turned) - act_on_image(group, table[1][h], x)).abs().max()
        for h in range(8)
    ]
    assert max(gaps) > 0.1


def test_turning_back_undoes_the_view():
    group, x = PlanarGroup.named("D4"), pictures()
    views = OrbitViews(group)
    assert all(torch.equal(views.turn_back(views.look(x, h, BLACK), h), x) for h in range(8))


def test_the_disc():
    assert disc(4, 4).tolist() == [
        [False, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
        [False, True, True, False],
    ]
    assert disc(3, 5)[:, 0].tolist() == [False, False, False]
    assert disc(3, 5)[1].tolist() == [False, True, True, True, False]


def test_outside_is_background():
    """A picture that is nothing but background looks like that from everywhere."""
    level = torch.tensor([0.25, -1.5], dtype=torch.float64)
    flat = level[:, None, None].expand(1, 2, 9, 9)
    for mask in (False, True):
        views = OrbitViews(PlanarGroup.named("C8"), mask)
        for h in range(8):
            torch.testing.assert_close(views.look(flat, h, level), flat)


def test_masked_views_do_not_show_the_corners():
    views, x = OrbitViews(PlanarGroup.named("C4"), mask=True), pictures()
    other = torch.where(disc(9, 9), x, torch.rand_like(x))
    assert not torch.equal(other, x)
    assert torch.equal(views.look(other, 1, BLACK), views.look(x, 1, BLACK))


def test_which_views_show_what_lies_outside():
    shows = {name: OrbitViews(PlanarGroup.named(name)).fills for name in ("C4", "D4", "C8", "D3")}
    assert shows == {"C4": False, "D4": False, "C8": True, "D3": True}
    assert OrbitViews(PlanarGroup.named("C4"), mask=True).fills


def test_a_rectangle_needs_half_turns():
    OrbitViews(PlanarGroup.named("D2")).require_fitting(pictures(3, 5))
    with pytest.raises(InputError, match=r"C4 turns pictures of 3 x 5 pixels into another shape"):
        OrbitViews(PlanarGroup.named("C4")).require_fitting(pictures(3, 5))
