"""Law, witness, control, definition of convolutions, norms and pools on the group, and of stems.

Letters:  g, m poses of output and input;  o, i their channels;  r, c a pixel.
"""

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.sizes import Stage, exact_sizes, output_size
from turnwise.groups import (
    PlanarGroup,
    act_on_field,
    act_on_image,
    act_on_points,
    equivariance_errors,
)
from turnwise.layers.conv.conv import (
    ConvStem,
    DepthwiseConv,
    GroupConv,
    GroupPool,
    LiftingConv,
    MapNorm,
    PatchLift,
    StemPlan,
    field_to_maps,
    maps_to_field,
    maps_to_tokens,
    tokens_to_maps,
)

GRID = ["C1", "D1", "C2", "C4", "D4"]
KINDS = [(name, kind) for name in GRID for kind in ("pixel", "continuous")]
KINDS += [("C8", "auto"), ("D8", "auto")]
# kernel, stride, and a picture that both sample symmetrically
SAMPLINGS = [(1, 1, (3, 4)), (3, 1, (3, 4)), (3, 2, (5, 7)), (4, 2, (4, 6))]
WIDTH = 3


def order_of(name):
    return PlanarGroup.named(name).order


def shaken(layer):
    """Biases and gains that are not all alike, and float64."""
    for name, parameter in layer.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter)
    return layer.double()


def pictures(rows, cols, channels=2):
    return torch.randn(2, channels, rows, cols, dtype=torch.float64)


def maps_for(name, rows, cols, width=WIDTH):
    return pictures(rows, cols, order_of(name) * width)


def act_on_maps(group, g, maps):
    return field_to_maps(act_on_field(group, g, maps_to_field(maps, group.order)))


def error_of(function, name, x, act_in=act_on_maps, act_out=act_on_maps):
    group = PlanarGroup.named(name)
    actions = {"act_in": act_in, "act_out": act_out, "elements": group.grid_elements()}
    return max(equivariance_errors(function, group, x, **actions))


def lifting_error(function, name, x):
    return error_of(function, name, x, act_in=act_on_image)


# Maps, fields and tokens.


def test_definition_of_maps():
    field = torch.randn(2, 6, 3, 4, 5)
    maps = field_to_maps(field)
    tokens = maps_to_tokens(maps, 6)
    for g, r, c, o in itertools.product(range(6), range(3), range(4), range(5)):
        assert torch.equal(maps[:, g * 5 + o, r, c], field[:, g, r, c, o])
        assert torch.equal(tokens[:, r * 4 + c, g, o], field[:, g, r, c, o])
    assert torch.equal(maps_to_field(maps, 6), field)
    assert torch.equal(tokens_to_maps(tokens, 3, 4), maps)


def test_tokens_of_channels_last_are_a_view():
    maps = torch.randn(2, 8, 3, 4).contiguous(memory_format=torch.channels_last)
    tokens = maps_to_tokens(maps, 4)
    assert tokens.data_ptr() == maps.data_ptr()
    assert tokens.is_contiguous()


# Convolutions.


@pytest.mark.parametrize(("kernel", "stride", "sides"), SAMPLINGS)
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_law_of_convolutions(name, kind, kernel, stride, sides):
    """On rectangles, which quarter turns lay on their side."""
    lift = shaken(LiftingConv(name, 2, WIDTH, kernel, stride=stride, filters=kind))
    assert lifting_error(lift, name, pictures(*sides)) < 1e-12
    conv = shaken(GroupConv(name, 2, WIDTH, kernel, stride=stride, filters=kind))
    assert error_of(conv, name, maps_for(name, *sides, width=2)) < 1e-12
    alone = shaken(DepthwiseConv(name, WIDTH, kernel, filters=kind))
    assert error_of(alone, name, maps_for(name, *sides)) < 1e-12


@pytest.mark.parametrize("layer", [GroupConv("D4", WIDTH, WIDTH, 3), DepthwiseConv("D4", WIDTH, 3)])
def test_witness_of_convolutions(layer):
    """The output follows the input nearby and not from afar; poses differ; all weights count."""
    maps, layer = maps_for("D4", 4, 5), shaken(layer)
    out, other = layer(maps), maps.clone()
    other[:, :, 0, 0] += 1
    assert (layer(other) - out)[:, :, 1, 1].abs().max() > 1e-2
    assert (layer(other) - out)[:, :, 2, 2].abs().max() == 0
    assert maps_to_field(out, 8).std(dim=1).min() > 1e-3
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.abs().min() > 0 for p in layer.parameters())


def test_control_sampled_off_centre():
    """Stride 2 with 3 taps on an even side sees one border more than the other."""
    conv = GroupConv("C4", WIDTH, WIDTH, 3, stride=2).double()
    assert exact_sizes(6, conv.stages) == (5, 7)
    assert error_of(conv, "C4", maps_for("C4", 6, 6)) > 0.1


def test_control_plain_convolutions():
    """Free filters for every pose, and one bias for each pose."""
    plain = nn.Conv2d(8 * WIDTH, 8 * WIDTH, 3, padding=1).double()
    assert error_of(plain, "D4", maps_for("D4", 4, 5)) > 0.1
    conv, bias = GroupConv("D4", WIDTH, WIDTH, 3).double(), torch.randn(8 * WIDTH, 1, 1)
    assert error_of(lambda x: conv(x) + bias, "D4", maps_for("D4", 4, 5)) > 0.1


def taps_seen_from(group, g):
    """For each step (row, col) of a 3 × 3 filter, the tap of the free filter at g⁻¹δ."""
    centres = pixel_centres(3, 3).flatten(0, 1)
    index = {tuple(p): t for t, p in enumerate(centres.tolist())}
    back = act_on_points(group, group.invert(g), centres).tolist()
    return [(t // 3 - 1, t % 3 - 1, index[tuple(p)]) for t, p in enumerate(back)]


def test_definition_of_convolutions():
    """b[o] + Σ_{m, i, δ} K[o, i, g⁻¹m](g⁻¹δ) f(m, i, p + δ), number by number, zero outside."""
    group, rows, cols = PlanarGroup.named("D4"), 2, 3
    lift = shaken(LiftingConv("D4", 2, 2, 3))
    conv, alone = shaken(GroupConv("D4", 2, 2, 3)), shaken(DepthwiseConv("D4", 2, 3))
    picture, maps = pictures(rows, cols), maps_for("D4", rows, cols, width=2)
    field = maps_to_field(maps, 8)
    lifted, mixed, kept = (maps_to_field(y, 8) for y in (lift(picture), conv(maps), alone(maps)))
    for g, r, c in itertools.product(range(8), range(rows), range(cols)):
        sums = [layer.bias.expand(2, 2) for layer in (lift, conv, alone)]
        for down, right, tap in taps_seen_from(group, g):
            y, x = r + down, c + right
            if not (0 <= y < rows and 0 <= x < cols):
                continue
            sums[0] = sums[0] + picture[:, :, y, x] @ lift.weight[:, :, tap].T
            sums[2] = sums[2] + field[:, g, y, x] * alone.weight[:, 0, tap]
            for m in range(8):
                n = group.compose(group.invert(g), m)
                sums[1] = sums[1] + field[:, m, y, x] @ conv.weight[:, :, n, tap].T
        for out, expected in zip((lifted, mixed, kept), sums, strict=True):
            torch.testing.assert_close(out[:, g, r, c], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", range(1, 6))
def test_the_default_padding_keeps_the_size_or_halves_it(kernel):
    stages = LiftingConv("C4", 1, 1, kernel, stride=1 + (kernel % 2 == 0)).stages
    assert output_size(8, stages) == (8 if kernel % 2 else 4)


def test_both_memory_formats_agree():
    """Forward and backward, through the norm that reads them differently."""
    conv, norm = GroupConv("D4", WIDTH, 2, 3).double(), MapNorm("D4", 2, "batch").double()
    given, results = maps_for("D4", 4, 5), []
    for memory in (torch.contiguous_format, torch.channels_last):
        maps = given.contiguous(memory_format=memory).requires_grad_()
        out = norm(conv(maps))
        assert out.is_contiguous(memory_format=memory)
        loss = (out * torch.arange(5)).square().sum()
        results.append((out, *torch.autograd.grad(loss, (maps, conv.weight))))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)


def test_wrong_maps_are_refused():
    with pytest.raises(InputError, match="takes 4 poses of 3 channels, 12 maps in all, got 8"):
        GroupConv("C4", 3, 2, 3)(torch.zeros(1, 8, 4, 4))
    with pytest.raises(InputError, match="padding = -1 must be 0 or more"):
        LiftingConv("C4", 3, 2, 3, padding=-1)


# Norms.


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["layer", "batch"])
@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_law_of_the_norm(name, kind, training):
    norm, maps = shaken(MapNorm(name, WIDTH, kind)), maps_for(name, 3, 4)
    norm(10 * maps + 5)  # so that running statistics are not those of the start
    assert error_of(norm.train(training), name, maps) < 1e-12


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_definition_of_the_norm(kind, memory):
    norm, maps = shaken(MapNorm("D3", WIDTH, kind)), maps_for("D3", 3, 4)
    field = maps_to_field(maps, 6)
    over = (4,) if kind == "layer" else (0, 1, 2, 3)
    mean, variance = field.mean(over, keepdim=True), field.var(over, correction=0, keepdim=True)
    expected = (field - mean) / (variance + 1e-5).sqrt() * norm.norm.weight + norm.norm.bias
    out = norm(maps.contiguous(memory_format=memory))
    torch.testing.assert_close(maps_to_field(out, 6), expected)
    if kind == "batch":
        torch.testing.assert_close(norm.norm.running_mean, 0.1 * mean.flatten())


def test_control_of_the_norm():
    """One gain for each pose."""
    norm = shaken(nn.Sequential(nn.BatchNorm2d(4 * WIDTH)))
    nn.init.normal_(norm[0].weight)
    assert error_of(norm, "C4", maps_for("C4", 4, 4)) > 0.1


def test_norms_by_name():
    with pytest.raises(InputError, match="unknown norm 'group'"):
        MapNorm("C4", 3, "group")


# Pools.

SIDES = [(4, 4), (5, 5), (4, 6), (5, 7), (6, 5), (2, 3)]


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_law_of_the_pool(name, kind, sides):
    assert error_of(GroupPool(kind), name, maps_for(name, *sides)) < 1e-12


@pytest.mark.parametrize("sides", SIDES)
def test_definition_of_the_pool(sides):
    """Windows at every other pixel that cover the whole side; weights ½, ½ or ¼, ½, ¼."""
    maps = maps_for("C2", *sides)
    largest, average = GroupPool("max")(maps), GroupPool("average")(maps)
    weights = [torch.tensor([1, 1] if n % 2 == 0 else [1, 2, 1]).double() for n in sides]
    window = torch.outer(*(w / w.sum() for w in weights))
    assert largest.shape[2:] == average.shape[2:] == (sides[0] // 2, sides[1] // 2)
    for r, c in itertools.product(range(sides[0] // 2), range(sides[1] // 2)):
        seen = maps[:, :, 2 * r : 2 * r + len(window), 2 * c : 2 * c + window.shape[1]]
        assert torch.equal(largest[:, :, r, c], seen.amax(dim=(2, 3)))
        torch.testing.assert_close(average[:, :, r, c], (seen * window).sum(dim=(2, 3)))


def test_control_of_the_pool():
    """Windows of 2 on an odd side leave the last pixels unseen."""
    assert error_of(GroupPool("max", 2), "C4", maps_for("C4", 5, 5)) > 0.1
    assert error_of(GroupPool("max", 3), "C4", maps_for("C4", 5, 5)) == 0


def test_pools_refuse_what_they_cannot_do():
    with pytest.raises(InputError, match="maps of 1 x 4 pixels are too small for windows of 3"):
        GroupPool()(torch.zeros(1, 4, 1, 4))
    with pytest.raises(InputError, match="kernel = 4 must be 2 or 3"):
        GroupPool("max", 4)
    with pytest.raises(InputError, match="unknown pool 'mean'"):
        GroupPool("mean")


# Stems.

PLAN = StemPlan((2, 4), kernels=(3, 3, 4), strides=(1, 1, 2), pools=(2, 0, 3), pool="average")


def stem_for(name, **options):
    return shaken(ConvStem(name, 2, WIDTH, replace(PLAN, **options)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm": "layer", "activation": "gelu", "pool": "max"}])
@pytest.mark.parametrize("name", [*GRID, "D8"])
def test_law_of_the_stem(name, options, training):
    stem, images = stem_for(name, **options).train(training), pictures(12, 20)
    assert lifting_error(stem, name, images) < 1e-11
    sides = tuple(output_size(side, stem.stages) for side in images.shape[2:])
    assert stem(images).shape == (2, order_of(name) * WIDTH, *sides)


def test_the_stem_states_its_sizes():
    """The control: on a size that it does not state, it is not exact."""
    stem = stem_for("C4")
    same = Stage(3, 1, 1)
    assert stem.stages == (same, Stage(2, 2), same, Stage(4, 2, 1), Stage(3, 2))
    assert exact_sizes(14, stem.stages) == (12, 20)
    assert lifting_error(stem, "C4", pictures(14, 14)) > 1e-2


def test_witness_of_the_stem():
    """Other pictures, other maps; poses differ; gradients reach every parameter; dropout drops."""
    stem, images = stem_for("D4", activation="silu"), pictures(12, 12)
    out = stem(images)
    assert (out[0] - out[1]).abs().max() > 1e-2
    assert maps_to_field(out, 8).std(dim=1).max() > 1e-2
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.abs().max() > 1e-6 for p in stem.parameters())
    dropping = stem_for("D4", dropout=0.5)
    assert not torch.equal(dropping(images), dropping(images))
    assert torch.equal(dropping.eval()(images), dropping(images))


def test_plans_must_agree_with_themselves():
    with pytest.raises(InputError, match=r"kernels = \(3,\), .* widths = \(2,\) one less"):
        StemPlan(widths=(2,), kernels=(3,), strides=(1,), pools=(0,))
    with pytest.raises(InputError, match="unknown activation 'rely'"):
        stem_for("C4", activation="rely")
    with pytest.raises(InputError, match="must be from 0 to below 1"):
        stem_for("C4", dropout=1.0)


# Patches.


@pytest.mark.parametrize("overlap", [None, 0, 1, 3])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_law_of_patches(name, kind, overlap):
    layer = shaken(PatchLift(name, 2, WIDTH, 4, overlap, kind))
    assert lifting_error(layer, name, pictures(8, 12)) < 1e-12
    assert [output_size(side, layer.stages) for side in (8, 10, 12)] == [2, None, 3]
    assert layer(pictures(8, 12)).shape[2:] == (2, 3)


def test_definition_of_plain_patches():
    """In the first pose, one linear map of each patch."""
    layer, images = shaken(PatchLift("D4", 2, WIDTH, 3)), pictures(6, 9)
    out = layer(images)
    for r, c in itertools.product(range(2), range(3)):
        patch = images[:, :, 3 * r : 3 * r + 3, 3 * c : 3 * c + 3].flatten(1)
        expected = patch @ layer.lift.weight.flatten(1).T + layer.lift.bias
        torch.testing.assert_close(out[:, :WIDTH, r, c], expected)


@pytest.mark.parametrize("name", ["D4", "C8"])
def test_every_pixel_of_a_patch_is_seen(name):
    """The control: on a disc without overlap the corners are not."""

    def unseen(overlap):
        images = pictures(8, 8).requires_grad_()
        PatchLift(name, 2, WIDTH, 4, overlap).double()(images).square().sum().backward()
        return int((images.grad == 0).sum())

    assert unseen(None) == 0
    assert (unseen(0) > 0) == (name == "C8")


# In one graph, and in half precision.

ONE_GRAPH = """
from dataclasses import replace
import torch
from turnwise.layers.conv.conv import ConvStem, StemPlan
images, plan = torch.rand(2, 1, 8, 12), StemPlan((2,), (3, 3), (1, 1), (0, 2))
turned, finer = ConvStem("D4", 1, 3, plan), ConvStem("C8", 1, 3, replace(plan, norm="layer"))
both = lambda images: (turned(images), finer(images))
compiled = torch.compile(both, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(images), both(images))
"""


def test_compiled_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("name", ["D4", "C8"])
def test_law_in_half_precision(name):
    stem, images = stem_for(name, norm="layer").float(), pictures(12, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lifting_error(lambda x: stem(x).float(), name, images) < 5e-2
