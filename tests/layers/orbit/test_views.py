"""All views at once are the views one by one, in any precision, and nothing comes from the host."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turnwise.groups import PlanarGroup, act_on_image
from turnwise.layers.orbit import views as view_sampling
from turnwise.layers.orbit.views import OrbitViews, ViewSampler

GROUPS = ["C1", "D1", "C2", "C4", "D4", "C6", "D3", "C8", "C12", "C16", "D8"]
LEVELS = torch.tensor([0.3, -2.0], dtype=torch.float64)


def pictures(rows=9, cols=9):
    return torch.rand(2, 2, rows, cols, dtype=torch.float64)


def one_by_one(group, mask, x, levels=LEVELS):
    views = OrbitViews(group, mask)
    return torch.cat([views.look(x, h, levels) for h in range(group.order)])


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("mask", [False, True])
def test_definition(name, mask):
    """As the plain version, forward and backward; at even and odd sizes."""
    group = PlanarGroup.named(name)
    for size in (8, 9):
        x = pictures(size, size).requires_grad_()
        fast = ViewSampler(group, mask).look(x, range(group.order), LEVELS)
        plain = one_by_one(group, mask, x)
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
        weights = torch.rand_like(plain)
        gradients = [torch.autograd.grad((v * weights).sum(), x)[0] for v in (fast, plain)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["C2", "D1", "D2"])
def test_definition_on_a_rectangle(name):
    group, x = PlanarGroup.named(name), pictures(3, 5)
    fast = ViewSampler(group, mask=True).look(x, range(group.order), LEVELS)
    torch.testing.assert_close(fast, one_by_one(group, True, x))


@pytest.mark.parametrize("name", ["D4", "C8", "C12", "C16", "D8"])
def test_law_turning_the_picture_reorders_the_views(name):
    group, x = PlanarGroup.named(name), pictures()
    sampler, table = ViewSampler(group, mask=True), group.relative()
    views = sampler.look(x, range(group.order), LEVELS).unflatten(0, (group.order, 2))
    for g in group.grid_elements():
        turned = sampler.look(act_on_image(group, g, x), range(group.order), LEVELS)
        moved = turned.unflatten(0, (group.order, 2))
        torch.testing.assert_close(moved, views[table[g]], rtol=0, atol=1e-12)


def test_witness_and_control():
    """No two views of a picture are alike, so that a wrong order would be seen."""
    group = PlanarGroup.named("D8")
    views = ViewSampler(group).look(pictures(), range(16), LEVELS).unflatten(0, (16, 2))
    gaps = torch.cdist(views[:, 0].flatten(1), views[:, 0].flatten(1)) + torch.eye(16)
    assert gaps.min() > 0.1


def test_some_views_alone():
    group, x = PlanarGroup.named("C16"), pictures()
    sampler = ViewSampler(group)
    whole = sampler.look(x, range(16), LEVELS).unflatten(0, (16, 2))
    some = sampler.look(x, [5, 0, 9], LEVELS).unflatten(0, (3, 2))
    assert torch.equal(some, whole[[5, 0, 9]])


def test_few_views_are_interpolated(monkeypatch):
    """Three of C16, and as many again of mirrored pictures for D16."""
    count, turn = [], view_sampling._turn
    monkeypatch.setattr(view_sampling, "_turn", lambda *a: count.append(a[1]) or turn(*a))
    for name, wanted in {"C4": 0, "D4": 0, "C8": 1, "C16": 3, "D16": 6}.items():
        count.clear()
        group = PlanarGroup.named(name)
        ViewSampler(group).look(pictures(), range(group.order), LEVELS)
        assert len(count) == wanted, name


def test_mixed_precision_does_not_round_positions():
    """The plain version turns positions by a matrix product, and it does."""
    group, x, levels = PlanarGroup.named("C16"), torch.rand(1, 1, 28, 28), torch.zeros(1)
    wanted = ViewSampler(group).look(x, range(16), levels)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = ViewSampler(group).look(x, range(16), levels)
        plain = one_by_one(group, False, x, levels)
    assert torch.equal(mixed, wanted)
    assert (plain - wanted).abs().max() > 0.01  # a control: the measure sees rounded positions


class NothingOnTheHost(TorchDispatchMode):
    """Fails where an operation makes a tensor on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu", func
        return result


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_those_of_the_picture_and_not_of_its_places(kind):
    """192 pixels: places that sixteen bits do not tell apart, and more than 32,767 of them."""
    x, group = torch.rand(1, 1, 192, 192), PlanarGroup.named("C8")
    right = ViewSampler(group, False).look(x, [1], torch.zeros(1))
    for view in (
        ViewSampler(group, False).look(x.to(kind), [1], torch.zeros(1, dtype=kind)),
        OrbitViews(group, False).look(x.to(kind), 1, torch.zeros(1, dtype=kind)),
    ):
        assert view.dtype == kind
        torch.testing.assert_close(view.float(), right, rtol=0, atol=0.01)


def test_nothing_comes_from_the_host():
    """Else CUDA could not record the graph.  The control: one by one, matrices do."""
    group, x = PlanarGroup.named("C16"), torch.empty(2, 1, 28, 28, device="meta")
    levels = torch.empty(1, device="meta")
    sampler, views = ViewSampler(group, mask=True), OrbitViews(group, mask=True)
    with NothingOnTheHost():
        assert sampler.look(x, range(16), levels).shape == (32, 1, 28, 28)
        with pytest.raises(AssertionError):
            views.look(x, 1, levels)
