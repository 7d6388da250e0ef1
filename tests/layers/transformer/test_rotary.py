"""Rotary attention on the group: equivariance, witness, control, definition; options, errors."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from turnwise.attention.linear import attend_linearly
from turnwise.attention.rotary import attend_on_group, cross_frame_phases, own_frame_phases
from turnwise.errors import InputError
from turnwise.geometry.grids import pixel_centres
from turnwise.geometry.layouts import action_on, regular_to_tokens, tokens_to_regular
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, equivariance_errors
from turnwise.layers.transformer.linear import GroupLinear
from turnwise.layers.transformer.rotary import GroupRotaryAttention

FORMS = {
    "own": {"frame": "own"},
    "cross": {"frame": "cross"},
    "own in a disc": {"frame": "own", "window": 3},
    "cross in a square": {"frame": "cross", "window": 3, "shape": "square"},
    "own, normed": {"frame": "own", "qk_norm": True},
    "cross, normed": {"frame": "cross", "qk_norm": True},
    "own, linear": {"frame": "own", "kernel": "elu"},
    "cross, linear": {"frame": "cross", "kernel": "softplus"},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def layer_for(name, form="own", heads=2, **options):
    """Make a layer with two orbits of pairs, and large weights, so that a fault has an effect."""
    group, given = PlanarGroup.named(name), FORMS[form] | options
    channels = heads * 4 * group.order
    layer = GroupRotaryAttention(group, channels, heads, **given)
    for module in layer.modules():
        if isinstance(module, GroupLinear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (channels * group.order)))
            nn.init.normal_(module.bias)
        if isinstance(module, nn.RMSNorm):
            nn.init.normal_(module.weight)
    return layer.double()


def features(layer, rows=3, cols=4):
    """Return regular features."""
    shape = (1, layer.channels, layer.group.order, rows, cols)
    return torch.randn(shape, dtype=torch.float64)


act = action_on("regular")


def error_of(layer, x):
    options = {"act_in": act, "act_out": act, "elements": layer.group.grid_elements()}
    return max(equivariance_errors(layer, layer.group, x, **options))


@EVERY_FORM
@pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4"])
def test_equivariance_on_a_rectangle(name, form):
    layer = layer_for(name, form)
    assert error_of(layer, features(layer)) < 1e-12


@EVERY_FORM
def test_equivariance_on_an_odd_square(form):
    layer = layer_for("D4", form)
    assert error_of(layer, features(layer, 3, 3)) < 1e-12


@EVERY_FORM
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_finer_groups_are_exact_for_the_symmetries_of_the_grid(name, form):
    layer = layer_for(name, form, heads=1)
    assert error_of(layer, features(layer, 2, 3)) < 1e-10


@pytest.mark.parametrize("frame", ["own", "cross"])
def test_rotations_by_45_degrees_are_approximate(frame):
    """For smooth features, interpolated: not exact, but much closer than without the action."""
    layer = layer_for("C8", frame, heads=1, wavelengths=(8.0, 32.0))
    layer.to_query_key_value.weight.data *= 0.5
    smooth = nn.functional.avg_pool2d(torch.randn(layer.channels * 8, 27, 27).double(), 13, 1)
    x = smooth.unflatten(0, (1, 8, -1)).transpose(1, 2)
    near_centre = (..., slice(5, 10), slice(5, 10))

    def rotated(x):
        maps = rotate_image(x.flatten(1, 2), 45.0).unflatten(1, (-1, 8))
        return maps.roll(1, dims=2)

    out, transformed = layer(x), layer(rotated(x))
    error = (transformed - rotated(out))[near_centre].abs().mean()
    assert error < 0.5 * (transformed - out)[near_centre].abs().mean()


@EVERY_FORM
def test_witness(form):
    """The output depends on the input, its positions and the group element, and is not constant."""
    layer = layer_for("D4", form)
    x = features(layer)
    out = layer(x)
    assert (layer(features(layer)) - out).abs().max() > 0.1
    assert all((act("D4", g, out) - out).abs().max() > 0.1 for g in (2, 4, 6))
    assert out.std(dim=2).min() > 1e-3
    nn.init.zeros_(layer.frequency)
    assert (layer(x) - out).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("form", "table"),
    [
        *itertools.product(FORMS, ["matrices"]),
        *((form, "relative") for form in FORMS if FORMS[form]["frame"] == "cross"),
    ],
)
def test_control(form, table):
    """Phases that are not rotated; an orbit that is not permuted."""
    layer = layer_for("D4", form)
    correct = getattr(layer, table)
    setattr(layer, table, correct[:1].expand_as(correct))
    assert error_of(layer, features(layer)) > 1e-3


@EVERY_FORM
def test_definition(form):
    """W_o attend(q, k, v), with the positions of the pixels and the sources of the window."""
    layer, options, centres = layer_for("D4", form), FORMS[form], pixel_centres(3, 4).flatten(0, 1)
    x = features(layer)
    split = layer.to_query_key_value(regular_to_tokens(x)).unflatten(-1, (3, 2, -1))
    query, key, value = (split[..., part, :, :] for part in range(3))
    if "qk_norm" in options:
        query, key = (
            y / y.square().mean(dim=-1, keepdim=True).sqrt() * norm.weight
            for y, norm in ((query, layer.norm_query), (key, layer.norm_key))
        )
    own, matrices = options["frame"] == "own", layer.group.matrices()
    phases = (own_frame_phases if own else cross_frame_phases)(layer.frequency, matrices, centres)
    given = (query, key, value, phases, None if own else layer.group.relative())
    if "kernel" in options:
        mixed = attend_linearly(*given, kernel=options["kernel"], backend="plain")
    else:
        mask = mask_of(options) if "window" in options else None
        mixed = attend_on_group(*given, mask, backend="plain")
    expected = tokens_to_regular(layer.to_output(mixed.flatten(3)), 3, 4)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-11)


def mask_of(options):
    """Return which of 3 × 4 tokens each of them attends to, from the list of its sources."""
    sources = find_sources(Neighbourhood(3, options.get("shape", "disc")), 3, 4)
    mask = torch.zeros(12, 12, dtype=torch.bool)
    for t, s in torch.nonzero(sources.inside).tolist():
        mask[t, sources.pixel[t, s]] = True
    return mask


@EVERY_FORM
def test_gradients_reach_every_parameter(form):
    layer = layer_for("D4", form)
    out = layer(features(layer))
    (out * torch.randn_like(out)).sum().backward()
    assert min(p.grad.abs().max() for p in layer.parameters()) > 1e-6


def test_initial_frequencies_have_all_wavelengths_and_directions():
    layer = GroupRotaryAttention(PlanarGroup(4), 64, 4, wavelengths=(3.0, 24.0))
    lengths = 2 * math.pi / layer.frequency.detach().norm(dim=-1)
    expected = torch.tensor([3.0 * 8 ** (p / 7) for p in range(8)])
    torch.testing.assert_close(lengths, expected.expand(4, 8))
    angles = torch.atan2(*layer.frequency.detach().flatten(0, 1).unbind(-1))
    assert angles.min() < -2 < 2 < angles.max()


def test_the_state_dict_has_no_tables():
    assert set(layer_for("D4").state_dict()) == {
        "frequency", "to_query_key_value.weight", "to_query_key_value.bias", "to_output.weight",
        "to_output.bias",
    }  # fmt: skip


def test_the_linear_maps_can_be_replaced():
    """Across frames the attention mixes group elements, so plain linear maps suffice."""

    def plain(group, in_features, out_features):
        return nn.Linear(in_features, out_features)

    layer = GroupRotaryAttention(PlanarGroup(4), 16, 2, frame="cross", linear=plain).double()
    x = features(layer)
    assert error_of(layer, x) < 1e-12
    other = x.clone()
    other[:, :, 1] += 1
    assert (layer(other) - layer(x))[:, :, 0].abs().max() > 1e-3


@EVERY_FORM
def test_autocast_and_a_layer_in_sixteen_bits_stay_accurate(form):
    layer = layer_for("D4", form).float()
    x = features(layer).float()
    exact = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(x)
    mixed.float().sum().backward()
    assert layer.frequency.grad.isfinite().all()
    rounded = layer.bfloat16()(x.bfloat16())
    for out in (mixed, rounded):
        assert (out - exact).abs().max() < 0.1 * exact.abs().max()


ONE_GRAPH = """
import torch
from turnwise.groups import PlanarGroup
from turnwise.layers.transformer.rotary import GroupRotaryAttention
own, cross = {"window": 3, "qk_norm": True}, {"frame": "cross", "kernel": "elu"}
for options, sizes in ((own, [(3, 4), (4, 2)]), (cross, [(3, 4)])):
    layer = GroupRotaryAttention(PlanarGroup(4, reflections=True), 16, 1, **options)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for rows, cols in sizes:
        x = torch.randn(2, 16, 8, rows, cols)
        torch.testing.assert_close(compiled(x), layer(x))
exported = torch.export.export(layer, (x,)).module()
torch.testing.assert_close(exported(x), layer(x))
"""


def test_compiled_and_exported_in_one_graph():
    """In a separate process: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("form", [form for form in FORMS if "kernel" not in FORMS[form]])
def test_all_tensors_are_made_on_the_device_of_the_input(form):
    layer = layer_for("D4", form).to("meta")
    x = features(layer).to("meta")
    assert layer(x).shape == x.shape


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_heads": 0}, "num_heads = 0 must be at least 1"),
        (
            {"num_heads": 3},
            r"channels = 16 must be a multiple of 6 \(3 heads of pairs\); try 12 or 18",
        ),
        (
            {"num_heads": 4, "frame": "cross"},
            r"channels = 16 must be a multiple of 32 \(4 heads of pairs for 4 group elements\)",
        ),
        ({"frame": "crow"}, r"unknown frame 'crow'\. Did you mean 'cross'\?"),
        ({"kernel": "elo"}, r"unknown kernel 'elo'\. Did you mean 'elu'\?"),
        ({"window": 4}, "window = 4 must be odd and positive"),
        ({"shape": "dish"}, r"unknown shape of a neighbourhood 'dish'\. Did you mean 'disc'\?"),
        ({"kernel": "elu", "window": 3}, "window = 3: linear attention has no window; use 0"),
        ({"backend": "state"}, r"unknown backend 'state'\..* Known: auto, plain, sdpa"),
        ({"kernel": "elu", "backend": "sdpa"}, r"'sdpa'\..* Known: auto, plain, state"),
        ({"wavelengths": (8.0, 2.0)}, "must be positive, the shortest first"),
    ],
)
def test_invalid_options_raise_errors(options, words):
    with pytest.raises(InputError, match=words):
        GroupRotaryAttention(PlanarGroup(4), 16, **({"num_heads": 2} | options))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 8, 4, 3, 4), r"features of 16 channels and 4 group elements, .* \(1, 8, 4, 3, 4\)"),
        ((1, 16, 8, 3, 4), r"\(batch, 16, 4, row, col\); got shape \(1, 16, 8, 3, 4\)"),
    ],
)
def test_features_of_another_shape_raise_an_error(shape, words):
    with pytest.raises(InputError, match=words):
        GroupRotaryAttention("C4", 16, 2)(torch.zeros(shape))


def test_position_maps_rotate_with_the_group_element():
    maps = layer_for("D4", "own").position_maps(side=9)
    assert list(maps) == ["head 0", "head 1"]
    for by_element in maps.values():
        assert by_element.shape == (8, 9, 9)
        torch.testing.assert_close(by_element[1], by_element[0].rot90(1))
        assert (by_element[1] - by_element[0]).abs().max() > 1e-3
        torch.testing.assert_close(by_element[:, 4, 4], torch.ones(8, dtype=torch.float64))
