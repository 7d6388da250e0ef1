"""Views of an image: one at a time (`OrbitViews`), and all on the device (`ViewSampler`)."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.warps import warp_image
from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.orbit import views as views_module
from turnwise.layers.orbit.views import OrbitViews, ViewSampler, disc

GROUPS = ["C1", "D1", "C2", "C4", "D4", "C6", "D3", "C8", "C12", "C16", "D8"]
BLACK = torch.zeros(2, dtype=torch.float64)
LEVELS = torch.tensor([0.3, -2.0], dtype=torch.float64)


def images(rows=9, cols=9):
    return torch.rand(2, 2, rows, cols, dtype=torch.float64)


# OrbitViews.


@pytest.mark.parametrize(("name", "sides"), [("D4", (4, 4)), ("D4", (5, 5)), ("D2", (3, 4))])
def test_definition_of_a_view_as_loops(name, sides):
    """(h⁻¹f)(p) = f(h·p), pixel by pixel."""
    group, x = PlanarGroup.named(name), images(*sides)
    positions = pixel_centres(*sides)
    pixels = {
        tuple(p): (r, c) for r, row in enumerate(positions.tolist()) for c, p in enumerate(row)
    }
    for h, matrix in enumerate(group.matrices()):
        view = OrbitViews(group).view(x, h, BLACK)
        for point, (r, c) in pixels.items():
            source = pixels[tuple((matrix @ torch.tensor(point).double()).tolist())]
            assert torch.equal(view[:, :, r, c], x[:, :, *source])


@pytest.mark.parametrize("name", ["C4", "D4", "C8", "D8"])
def test_views_off_the_grid_are_warped_images(name):
    group, x = PlanarGroup.named(name), images()
    for h in range(group.order):
        expected = warp_image(group, group.invert(h), x)
        torch.testing.assert_close(OrbitViews(group).view(x, h, BLACK), expected)


@pytest.mark.parametrize("name", ["D4", "C8", "C12", "C16", "D8"])
@pytest.mark.parametrize("mask", [False, True])
def test_rotating_the_image_permutes_its_views(name, mask):
    """Exactly for every g of the grid, although views off the grid are interpolated."""
    group, x = PlanarGroup.named(name), images()
    views, table = OrbitViews(group, mask), group.relative().tolist()
    for g in group.grid_elements():
        rotated = act_on_image(group, g, x)
        for h in range(group.order):
            found, expected = views.view(rotated, h, LEVELS), views.view(x, table[g][h], LEVELS)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_control_views_by_h_itself_are_permuted_otherwise():
    """h f for h⁻¹f: in D4 the permutation is hg, not g⁻¹h."""
    group, x = PlanarGroup.named("D4"), images()
    table = group.relative().tolist()
    rotated = act_on_image(group, 1, x)
    gaps = [
        (act_on_image(group, h, rotated) - act_on_image(group, table[1][h], x)).abs().max()
        for h in range(8)
    ]
    assert max(gaps) > 0.1


def test_rotating_back_inverts_the_view():
    group, x = PlanarGroup.named("D4"), images()
    views = OrbitViews(group)
    assert all(torch.equal(views.rotate_back(views.view(x, h, BLACK), h), x) for h in range(8))


def test_the_disc():
    assert disc(4, 4).tolist() == [
        [False, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
        [False, True, True, False],
    ]
    assert disc(3, 5)[:, 0].tolist() == [False, False, False]
    assert disc(3, 5)[1].tolist() == [False, True, True, True, False]


def test_outside_the_image_is_background():
    """All views of an image of nothing but background are equal to it."""
    level = torch.tensor([0.25, -1.5], dtype=torch.float64)
    flat = level[:, None, None].expand(1, 2, 9, 9)
    for mask in (False, True):
        views = OrbitViews(PlanarGroup.named("C8"), mask)
        for h in range(8):
            torch.testing.assert_close(views.view(flat, h, level), flat)


def test_masked_views_do_not_show_the_corners():
    views, x = OrbitViews(PlanarGroup.named("C4"), mask=True), images()
    other = torch.where(disc(9, 9), x, torch.rand_like(x))
    assert not torch.equal(other, x)
    assert torch.equal(views.view(other, 1, BLACK), views.view(x, 1, BLACK))


def test_groups_off_the_grid_and_masks_show_pixels_from_outside():
    shows = {name: OrbitViews(PlanarGroup.named(name)).fills for name in ("C4", "D4", "C8", "D3")}
    assert shows == {"C4": False, "D4": False, "C8": True, "D3": True}
    assert OrbitViews(PlanarGroup.named("C4"), mask=True).fills


def test_groups_with_rotations_by_90_degrees_need_square_images():
    OrbitViews(PlanarGroup.named("D2")).require_fitting(images(3, 5))
    with pytest.raises(InputError, match=r"C4 rotates images of 3 x 5 pixels into another shape"):
        OrbitViews(PlanarGroup.named("C4")).require_fitting(images(3, 5))


# ViewSampler.


def one_by_one(group, mask, x, levels=LEVELS):
    views = OrbitViews(group, mask)
    return torch.cat([views.view(x, h, levels) for h in range(group.order)])


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("mask", [False, True])
def test_sampled_views_equal_those_made_one_by_one(name, mask):
    """Forward and backward, at even and odd sizes."""
    group = PlanarGroup.named(name)
    for size in (8, 9):
        x = images(size, size).requires_grad_()
        fast = ViewSampler(group, mask).views(x, range(group.order), LEVELS)
        plain = one_by_one(group, mask, x)
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
        weights = torch.rand_like(plain)
        gradients = [torch.autograd.grad((v * weights).sum(), x)[0] for v in (fast, plain)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["C2", "D1", "D2"])
def test_sampled_views_of_a_rectangle_equal_those_made_one_by_one(name):
    group, x = PlanarGroup.named(name), images(3, 5)
    fast = ViewSampler(group, mask=True).views(x, range(group.order), LEVELS)
    torch.testing.assert_close(fast, one_by_one(group, True, x))


@pytest.mark.parametrize("name", ["D4", "C8", "C12", "C16", "D8"])
def test_rotating_the_image_permutes_its_sampled_views(name):
    group, x = PlanarGroup.named(name), images()
    sampler, table = ViewSampler(group, mask=True), group.relative()
    views = sampler.views(x, range(group.order), LEVELS).unflatten(0, (group.order, 2))
    for g in group.grid_elements():
        found = sampler.views(act_on_image(group, g, x), range(group.order), LEVELS)
        found = found.unflatten(0, (group.order, 2))
        torch.testing.assert_close(found, views[table[g]], rtol=0, atol=1e-12)


def test_witness_all_views_differ():
    """So the tests above would detect a wrong order."""
    group = PlanarGroup.named("D8")
    views = ViewSampler(group).views(images(), range(16), LEVELS).unflatten(0, (16, 2))
    gaps = torch.cdist(views[:, 0].flatten(1), views[:, 0].flatten(1)) + torch.eye(16)
    assert gaps.min() > 0.1


def test_a_choice_of_views_equals_the_same_of_all_views():
    group, x = PlanarGroup.named("C16"), images()
    sampler = ViewSampler(group)
    whole = sampler.views(x, range(16), LEVELS).unflatten(0, (16, 2))
    some = sampler.views(x, [5, 0, 9], LEVELS).unflatten(0, (3, 2))
    assert torch.equal(some, whole[[5, 0, 9]])


def test_few_views_are_interpolated(monkeypatch):
    """Three of C16, and three more of flipped images for D16."""
    angles, rotate = [], views_module._rotate
    monkeypatch.setattr(views_module, "_rotate", lambda *a: angles.append(a[1]) or rotate(*a))
    for name, expected in {"C4": 0, "D4": 0, "C8": 1, "C16": 3, "D16": 6}.items():
        angles.clear()
        group = PlanarGroup.named(name)
        ViewSampler(group).views(images(), range(group.order), LEVELS)
        assert len(angles) == expected, name


def test_mixed_precision_does_not_round_positions():
    """The control is `OrbitViews`, which rotates positions by a matrix product."""
    group, x, levels = PlanarGroup.named("C16"), torch.rand(1, 1, 28, 28), torch.zeros(1)
    expected = ViewSampler(group).views(x, range(16), levels)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = ViewSampler(group).views(x, range(16), levels)
        plain = one_by_one(group, False, x, levels)
    assert torch.equal(mixed, expected)
    assert (plain - expected).abs().max() > 0.01


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_views_of_16_bit_images_use_precise_positions(kind):
    """At 192 pixels, 16 bits cannot distinguish the positions."""
    x, group = torch.rand(1, 1, 192, 192), PlanarGroup.named("C8")
    expected = ViewSampler(group, False).views(x, [1], torch.zeros(1))
    for view in (
        ViewSampler(group, False).views(x.to(kind), [1], torch.zeros(1, dtype=kind)),
        OrbitViews(group, False).view(x.to(kind), 1, torch.zeros(1, dtype=kind)),
    ):
        assert view.dtype == kind
        torch.testing.assert_close(view.float(), expected, rtol=0, atol=0.01)


class NothingOnTheHost(TorchDispatchMode):
    """Fail if an operation makes a tensor on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu", func
        return result


def test_the_sampler_makes_no_tensors_on_the_host():
    """CUDA graphs cannot record them.  The control: `OrbitViews` makes matrices there."""
    group, x = PlanarGroup.named("C16"), torch.empty(2, 1, 28, 28, device="meta")
    levels = torch.empty(1, device="meta")
    sampler, views = ViewSampler(group, mask=True), OrbitViews(group, mask=True)
    with NothingOnTheHost():
        assert sampler.views(x, range(16), levels).shape == (32, 1, 28, 28)
        with pytest.raises(AssertionError):
            views.view(x, 1, levels)
