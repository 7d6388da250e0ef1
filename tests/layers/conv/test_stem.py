"""Norms, pools, stems and patches: equivariance, witness, negative control, definition as loops.

Letters:  r, c a pixel;  o a channel.
"""

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.layouts import action_on, maps_to_regular, regular_to_maps
from turnwise.geometry.sizes import Stage, exact_sizes, output_size
from turnwise.groups import PlanarGroup, act_on_image, equivariance_errors
from turnwise.layers.conv.conv import GroupConv2d
from turnwise.layers.conv.stem import (
    NORMS,
    ConvStem,
    GroupBatchNorm2d,
    GroupPool2d,
    PatchLift,
    StemPlan,
)

GRID = ["C1", "D1", "C2", "C4", "D4"]
FILTERS = [(name, kind) for name in GRID for kind in ("pixel", "continuous")]
FILTERS += [("C8", "auto"), ("D8", "auto")]
MEMORY_FORMATS = [torch.contiguous_format, torch.channels_last]
CHANNELS = 3
act_on_features = action_on("regular")


def randomise(layer):
    """Draw biases, scales and norms at random; convert to float64."""
    for name, parameter in layer.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter)
    return layer.double()


def images(rows, cols, channels=2):
    return torch.randn(2, channels, rows, cols, dtype=torch.float64)


def features(name, rows, cols, memory=torch.contiguous_format):
    order = PlanarGroup.named(name).order
    maps = images(rows, cols, order * CHANNELS).contiguous(memory_format=memory)
    return maps_to_regular(maps, order)


def error_of(function, name, x, act_in=act_on_features):
    """Return the largest error of the elements that map pixels to pixels."""
    elements = PlanarGroup.named(name).grid_elements()
    actions = {"act_in": act_in, "act_out": act_on_features}
    return max(equivariance_errors(function, name, x, **actions, elements=elements))


# GroupBatchNorm2d, GroupLayerNorm.


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_norms_are_equivariant(name, kind, training):
    norm, x = randomise(NORMS[kind](name, CHANNELS)), features(name, 3, 4)
    norm(10 * x + 5)  # so that running statistics are not the initial ones
    assert error_of(norm.train(training), name, x) < 1e-12


@pytest.mark.parametrize("memory", MEMORY_FORMATS)
@pytest.mark.parametrize("kind", NORMS)
def test_definition_of_norms(kind, memory):
    norm, x = randomise(NORMS[kind]("D3", CHANNELS)), features("D3", 3, 4, memory)
    over = (1,) if kind == "layer" else (0, 2, 3, 4)
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    out = norm(x)
    for o in range(CHANNELS):
        normed = ((x - mean) / (variance + 1e-5).sqrt())[:, o]
        expected = normed * norm.norm.weight[o] + norm.norm.bias[o]
        torch.testing.assert_close(out[:, o], expected)
    if kind == "batch":
        torch.testing.assert_close(norm.norm.running_mean, 0.1 * mean.flatten())


@pytest.mark.parametrize("kind", NORMS)
def test_witness_norms_depend_on_their_input_and_parameters(kind):
    norm, x = randomise(NORMS[kind]("D4", CHANNELS)), features("D4", 3, 4)
    changed = x.clone()
    changed[0, 0, 0, 0, 0] += 1
    assert (norm(changed) - norm(x)).abs().max() > 1e-2
    (norm(x) * torch.randn_like(x)).sum().backward()
    assert all(p.grad.abs().min() > 0 for p in norm.parameters())


def test_control_a_norm_with_one_scale_for_each_group_element_is_not_equivariant():
    plain = nn.BatchNorm2d(4 * CHANNELS).double()
    nn.init.normal_(plain.weight)

    def norm(x):
        return maps_to_regular(plain(regular_to_maps(x)), 4)

    assert error_of(norm, "C4", features("C4", 4, 4)) > 0.1


@pytest.mark.parametrize("kind", NORMS)
def test_norms_take_eps_and_batch_norm_takes_momentum(kind):
    options = {"eps": 2.0, "momentum": 1.0} if kind == "batch" else {"eps": 2.0}
    norm, x = NORMS[kind]("C4", CHANNELS, **options).double(), features("C4", 3, 4)
    over = (1,) if kind == "layer" else (0, 2, 3, 4)
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    torch.testing.assert_close(norm(x), (x - mean) / (variance + 2).sqrt())
    if kind == "batch":
        torch.testing.assert_close(norm.norm.running_mean, mean.flatten())


@pytest.mark.parametrize("training", [True, False])
def test_both_memory_formats_agree_forward_and_backward(training):
    """Batch norm reads the two formats differently, and returns its input's."""
    conv, norm = GroupConv2d("D4", CHANNELS, 2, 3).double(), randomise(GroupBatchNorm2d("D4", 2))
    norm(3 * torch.randn(5, 2, 8, 4, 5).double() + 1)  # statistics of its own
    norm.train(training)
    given, results = regular_to_maps(features("D4", 4, 5)), []
    for memory in MEMORY_FORMATS:
        maps = given.contiguous(memory_format=memory).requires_grad_()
        out = norm(conv(maps_to_regular(maps, 8)))
        assert regular_to_maps(out).is_contiguous(memory_format=memory)
        assert regular_to_maps(out).data_ptr() == out.data_ptr()
        loss = (out * torch.arange(5)).square().sum()
        results.append((out, *torch.autograd.grad(loss, (maps, conv.weight, norm.norm.weight))))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("kind", NORMS)
def test_norms_raise_an_error_for_features_of_another_shape(kind):
    with pytest.raises(InputError, match="3 channels and 4 group elements"):
        NORMS[kind]("C4", 3)(torch.zeros(1, 4, 4, 2, 2))


# GroupPool2d.

SIDES = [(4, 4), (5, 5), (4, 6), (5, 7), (6, 5), (2, 3)]


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_pools_are_equivariant(name, mode, sides):
    assert error_of(GroupPool2d(name, mode=mode), name, features(name, *sides)) < 1e-12


@pytest.mark.parametrize("sides", SIDES)
def test_definition_of_pools_as_loops(sides):
    """Windows at every other pixel that cover the whole side; weights ½, ½ or ¼, ½, ¼."""
    x = features("D3", *sides)
    largest, average = GroupPool2d("D3")(x), GroupPool2d("D3", mode="average")(x)
    weights = [torch.tensor([1, 1] if n % 2 == 0 else [1, 2, 1]).double() for n in sides]
    window = torch.outer(*(w / w.sum() for w in weights))
    assert largest.shape[3:] == average.shape[3:] == (sides[0] // 2, sides[1] // 2)
    for r, c in itertools.product(range(sides[0] // 2), range(sides[1] // 2)):
        seen = x[..., 2 * r : 2 * r + len(window), 2 * c : 2 * c + window.shape[1]]
        assert torch.equal(largest[..., r, c], seen.amax(dim=(3, 4)))
        torch.testing.assert_close(average[..., r, c], (seen * window).sum(dim=(3, 4)))


@pytest.mark.parametrize("mode", ["max", "average"])
def test_witness_every_pixel_counts_in_a_pool(mode):
    """The maximum of 3 pixels depends on those that are the largest of some window."""
    x = features("D4", 5, 7).requires_grad_()
    (GroupPool2d("D4", mode=mode)(x)).sum().backward()
    assert (x.grad != 0).float().mean() > (0.1 if mode == "max" else 0.99)


def test_control_windows_of_two_pixels_on_an_odd_side_are_not_equivariant():
    """They never see the last pixels."""
    assert error_of(GroupPool2d("C4", 2), "C4", features("C4", 5, 5)) > 0.1
    assert error_of(GroupPool2d("C4", 3), "C4", features("C4", 5, 5)) == 0


def test_impossible_pools_raise_an_error():
    with pytest.raises(InputError, match="features of 1 x 4 pixels are too small for windows of 3"):
        GroupPool2d("C4")(torch.zeros(1, 3, 4, 1, 4))
    with pytest.raises(InputError, match="kernel_size = 4 must be 2, 3 or None"):
        GroupPool2d("C4", 4)
    with pytest.raises(InputError, match="unknown pool 'mean'"):
        GroupPool2d("C4", mode="mean")
    with pytest.raises(InputError, match="4 group elements"):
        GroupPool2d("C4")(torch.zeros(1, 3, 8, 4, 4))


# ConvStem.

PLAN = StemPlan((2, 4), kernels=(3, 3, 4), strides=(1, 1, 2), pools=(2, 0, 3), pool="average")


def stem_for(name, **options):
    return randomise(ConvStem(name, 2, CHANNELS, replace(PLAN, **options)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm": "layer", "activation": "gelu", "pool": "max"}])
@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_stems_are_equivariant(name, options, training):
    stem, x = stem_for(name, **options).train(training), images(12, 20)
    assert error_of(stem, name, x, act_on_image) < 1e-11
    sides = tuple(output_size(side, stem.stages) for side in x.shape[2:])
    assert stem(x).shape == (2, CHANNELS, PlanarGroup.named(name).order, *sides)


def test_a_stem_declares_its_exact_sizes():
    """The control: at another size, the stem is not equivariant."""
    stem = stem_for("C4")
    same = Stage(3, 1, 1)
    assert stem.stages == (same, Stage(2, 2), same, Stage(4, 2, 1), Stage(3, 2))
    assert exact_sizes(14, stem.stages) == (12, 20)
    assert error_of(stem, "C4", images(14, 14), act_on_image) > 1e-2


def test_definition_of_the_stem():
    """Each convolution is followed by norm, activation, pool if there is one, and dropout."""
    stem, x = stem_for("D4", activation="silu").eval(), images(12, 20)
    layers, expected = iter(stem.layers), x
    for pool in PLAN.pools:
        conv, norm, act = next(layers), next(layers), next(layers)
        assert [type(conv).__name__, type(act)] == [
            "LiftingConv2d" if expected is x else "GroupConv2d", nn.SiLU
        ]  # fmt: skip
        expected = torch.nn.functional.silu(norm(conv(expected)))
        if pool:
            expected = GroupPool2d("D4", pool, "average")(expected)
            assert isinstance(next(layers), GroupPool2d)
        assert isinstance(next(layers), nn.Dropout)
    torch.testing.assert_close(stem(x), expected)


def test_witness_of_the_stem():
    """Images and group elements differ; gradients reach every parameter; dropout is random."""
    stem, x = stem_for("D4", activation="silu"), images(12, 12)
    out = stem(x)
    assert (out[0] - out[1]).abs().max() > 1e-2
    assert out.std(dim=2).max() > 1e-2
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.abs().max() > 1e-6 for p in stem.parameters())
    dropping = stem_for("D4", dropout=0.5)
    assert not torch.equal(dropping(x), dropping(x))
    assert torch.equal(dropping.eval()(x), dropping(x))


def test_inconsistent_plans_raise_an_error():
    with pytest.raises(InputError, match=r"kernels = \(3,\), .* widths = \(2,\) one less"):
        StemPlan(widths=(2,), kernels=(3,), strides=(1,), pools=(0,))
    with pytest.raises(InputError, match="unknown activation 'rely'"):
        stem_for("C4", activation="rely")
    with pytest.raises(InputError, match="unknown norm 'group'"):
        stem_for("C4", norm="group")
    with pytest.raises(InputError, match="must be from 0 to below 1"):
        stem_for("C4", dropout=1.0)


# PatchLift.


@pytest.mark.parametrize("overlap", [None, 0, 1, 3])
@pytest.mark.parametrize(("name", "filters"), FILTERS)
def test_patches_are_equivariant(name, filters, overlap):
    layer = randomise(PatchLift(name, 2, CHANNELS, 4, overlap, filters))
    assert error_of(layer, name, images(8, 12), act_on_image) < 1e-12
    assert [output_size(side, layer.stages) for side in (8, 10, 12)] == [2, None, 3]
    assert layer(images(8, 12)).shape[3:] == (2, 3)


def test_control_patches_that_do_not_fill_the_image_are_not_equivariant():
    layer = PatchLift("D4", 2, CHANNELS, 4).double()
    assert error_of(layer, "D4", images(10, 10), act_on_image) > 0.1


def test_definition_of_patches_as_loops():
    """For the first group element, one linear map of each patch."""
    layer, x = randomise(PatchLift("D4", 2, CHANNELS, 3)), images(6, 9)
    out = layer(x)
    for r, c in itertools.product(range(2), range(3)):
        patch = x[:, :, 3 * r : 3 * r + 3, 3 * c : 3 * c + 3].flatten(1)
        expected = patch @ layer.lift.weight.flatten(1).T + layer.lift.bias
        torch.testing.assert_close(out[:, :, 0, r, c], expected)


@pytest.mark.parametrize("name", ["D4", "C8"])
def test_witness_every_pixel_of_a_patch_counts(name):
    """The control: without overlap, a disc misses the corners."""

    def count_unseen(overlap):
        x = images(8, 8).requires_grad_()
        PatchLift(name, 2, CHANNELS, 4, overlap).double()(x).square().sum().backward()
        return int((x.grad == 0).sum())

    assert count_unseen(None) == 0
    assert (count_unseen(0) > 0) == (name == "C8")


# In one graph, and in half precision.

ONE_GRAPH = """
from dataclasses import replace
import torch
from turnwise.layers.conv.stem import ConvStem, StemPlan
images, plan = torch.rand(2, 1, 8, 12), StemPlan((2,), (3, 3), (1, 1), (0, 2))
grid, finer = ConvStem("D4", 1, 3, plan), ConvStem("C8", 1, 3, replace(plan, norm="layer"))
both = lambda images: (grid(images), finer(images))
compiled = torch.compile(both, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(images), both(images))
"""


def test_stems_compile_to_one_graph():
    """In a separate process: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("name", ["D4", "C8"])
def test_stems_are_equivariant_under_autocast(name):
    stem, x = stem_for(name, norm="layer").float(), images(12, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error_of(lambda x: stem(x).float(), name, x, act_on_image) < 5e-2
