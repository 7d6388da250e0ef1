"""Law, witness, control, definition of rotary attention on the group, on pictures."""

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
from turnwise.geometry.neighbourhoods import Neighbourhood, find_sources
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup, act_on_field, equivariance_errors
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
    """Two pairs of channels to an orbit, and large weights, so that what is wrong shows."""
    group, given = PlanarGroup.named(name), FORMS[form] | options
    width = heads * 4 * group.order
    layer = GroupRotaryAttention(group, width, heads, **given)
    for module in layer.modules():
        if isinstance(module, GroupLinear):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (width * group.order)))
            nn.init.normal_(module.bias)
        if isinstance(module, nn.RMSNorm):
            nn.init.normal_(module.weight)
    return layer.double()


def field_for(layer, rows=3, cols=4):
    shape = (1, layer.group.order, rows, cols, layer.to_output.in_width)
    return torch.randn(shape, dtype=torch.float64)


def to_tokens(field):
    return field.permute(0, 2, 3, 1, 4).flatten(1, 2)


def on_fields(layer):
    """The layer from (batch, group, row, col, channel) to the same."""

    def function(field):
        rows, cols = field.shape[2:4]
        out = layer(to_tokens(field), rows, cols)
        return out.unflatten(1, (rows, cols)).permute(0, 3, 1, 2, 4)

    return function


def error_of(layer, field):
    given = {"act_in": act_on_field, "act_out": act_on_field}
    given["elements"] = layer.group.grid_elements()
    return max(equivariance_errors(on_fields(layer), layer.group, field, **given))


@EVERY_FORM
@pytest.mark.parametrize("name", ["C1", "D1", "C2", "C4", "D4"])
def test_law(name, form):
    """On a rectangle, which quarter turns lay on its side."""
    layer = layer_for(name, form)
    assert error_of(layer, field_for(layer)) < 1e-12


@EVERY_FORM
def test_law_on_a_square_of_odd_size(form):
    layer = layer_for("D4", form)
    assert error_of(layer, field_for(layer, 3, 3)) < 1e-12


@EVERY_FORM
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_law_of_the_turns_that_the_grid_has(name, form):
    layer = layer_for(name, form, heads=1)
    assert error_of(layer, field_for(layer, 2, 3)) < 1e-10


@pytest.mark.parametrize("frame", ["own", "cross"])
def test_turns_between_the_pixels_are_near(frame):
    """Smooth pictures, turned by 45° and sampled anew: not exact, but far nearer than unturned."""
    layer = layer_for("C8", frame, heads=1, wavelengths=(8.0, 32.0))
    layer.to_query_key_value.weight.data *= 0.5
    smooth = nn.functional.avg_pool2d(
        torch.randn(8 * layer.to_output.in_width, 27, 27).double(), 13, 1
    )
    field = smooth.unflatten(0, (1, 8, -1)).permute(0, 1, 3, 4, 2)
    near_centre = (slice(None), slice(None), slice(5, 10), slice(5, 10))

    def turned(field):
        flat = field.permute(0, 1, 4, 2, 3).flatten(1, 2)
        back = rotate_image(flat, 45.0).unflatten(1, (8, -1)).permute(0, 1, 3, 4, 2)
        return back.roll(1, dims=1)

    out, moved = on_fields(layer)(field), on_fields(layer)(turned(field))
    right = (moved - turned(out))[near_centre].abs().mean()
    assert right < 0.5 * (moved - out)[near_centre].abs().mean()


@EVERY_FORM
def test_witness(form):
    """The output follows the input, moves with it, and differs from pose to pose."""
    layer = layer_for("D4", form)
    field, function = field_for(layer), on_fields(layer)
    out = function(field)
    assert (function(field_for(layer)) - out).abs().max() > 0.1
    assert all((act_on_field("D4", g, out) - out).abs().max() > 0.1 for g in (2, 4, 6))
    assert out.std(dim=1).min() > 1e-3
    nn.init.zeros_(layer.frequency)
    assert (function(field) - out).abs().max() > 1e-3  # it knew where things stood


@pytest.mark.parametrize(
    ("form", "table"),
    [
        *itertools.product(FORMS, ["matrices"]),
        *((form, "relative") for form in FORMS if FORMS[form]["frame"] == "cross"),
    ],
)
def test_control(form, table):
    """Phases that do not turn; an orbit that is not permuted."""
    layer = layer_for("D4", form)
    right = getattr(layer, table)
    setattr(layer, table, right[:1].expand_as(right))
    assert error_of(layer, field_for(layer)) > 1e-3


@EVERY_FORM
def test_definition(form):
    """W_o attend(q, k, v), with the positions of the pixels and the sources of the window."""
    layer, options, centres = layer_for("D4", form), FORMS[form], pixel_centres(3, 4).flatten(0, 1)
    tokens = to_tokens(field_for(layer))
    split = layer.to_query_key_value(tokens).unflatten(-1, (3, 2, -1))
    query, key, value = (split[..., part, :, :] for part in range(3))
    if "qk_norm" in options:
        query, key = (
            x / x.square().mean(dim=-1, keepdim=True).sqrt() * norm.weight
            for x, norm in ((query, layer.norm_query), (key, layer.norm_key))
        )
    own, matrices = options["frame"] == "own", layer.group.matrices()
    phases = (own_frame_phases if own else cross_frame_phases)(layer.frequency, matrices, centres)
    given = (query, key, value, phases, None if own else layer.group.relative())
    if "kernel" in options:
        mixed = attend_linearly(*given, kernel=options["kernel"], backend="plain")
    else:
        mask = seen_in(options) if "window" in options else None
        mixed = attend_on_group(*given, mask, backend="plain")
    expected = layer.to_output(mixed.flatten(3))
    torch.testing.assert_close(layer(tokens, 3, 4), expected, rtol=0, atol=1e-11)


def seen_in(options):
    """Which of 3 × 4 tokens each of them sees, from the list of its sources."""
    sources = find_sources(Neighbourhood(3, options.get("shape", "disc")), 3, 4)
    mask = torch.zeros(12, 12, dtype=torch.bool)
    for t, s in torch.nonzero(sources.inside).tolist():
        mask[t, sources.pixel[t, s]] = True
    return mask


@EVERY_FORM
def test_gradients_reach_every_parameter(form):
    layer = layer_for("D4", form)
    out = layer(to_tokens(field_for(layer)), 3, 4)
    (out * torch.randn_like(out)).sum().backward()
    assert min(p.grad.abs().max() for p in layer.parameters()) > 1e-6


def test_waves_start_in_all_lengths_and_directions():
    layer = GroupRotaryAttention(PlanarGroup(4), 64, 4, wavelengths=(3.0, 24.0))
    lengths = 2 * math.pi / layer.frequency.detach().norm(dim=-1)
    expected = torch.tensor([3.0 * 8 ** (p / 7) for p in range(8)])
    torch.testing.assert_close(lengths, expected.expand(4, 8))
    angles = torch.atan2(*layer.frequency.detach().flatten(0, 1).unbind(-1))
    assert angles.min() < -2 < 2 < angles.max()


def test_tables_are_no_weights():
    assert set(layer_for("D4").state_dict()) == {
        "frequency", "to_query_key_value.weight", "to_query_key_value.bias", "to_output.weight",
        "to_output.bias",
    }  # fmt: skip


def test_a_part_for_the_linear_maps():
    """Across the frames the poses mix in the attention, so plain linear maps will do."""

    def plain(group, in_width, out_width):
        return nn.Linear(in_width, out_width)

    layer = GroupRotaryAttention(PlanarGroup(4), 16, 2, frame="cross", linear=plain).double()
    field = torch.randn(1, 4, 3, 4, 16, dtype=torch.float64)
    assert error_of(layer, field) < 1e-12
    other = field.clone()
    other[:, 1] += 1
    assert (on_fields(layer)(other) - on_fields(layer)(field))[:, 0].abs().max() > 1e-3


@EVERY_FORM
def test_sixteen_bits(form):
    """Autocast, and a layer of 16 bits: the numbers stay near, and training goes on."""
    layer = layer_for("D4", form).float()
    tokens = to_tokens(field_for(layer)).float()
    exact = layer(tokens, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = layer(tokens, 3, 4)
    near.float().sum().backward()
    assert layer.frequency.grad.isfinite().all()
    rounded = layer.bfloat16()(tokens.bfloat16(), 3, 4)
    for out in (near, rounded):
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
        tokens = torch.randn(2, rows * cols, 8, 16)
        torch.testing.assert_close(compiled(tokens, rows, cols), layer(tokens, rows, cols))
exported = torch.export.export(layer, (tokens, rows, cols)).module()
torch.testing.assert_close(exported(tokens, rows, cols), layer(tokens, rows, cols))
"""


def test_compiled_and_exported_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("form", [form for form in FORMS if "kernel" not in FORMS[form]])
def test_nothing_is_made_on_another_device(form):
    layer = layer_for("D4", form).to("meta")
    tokens = torch.empty(1, 12, 8, layer.to_output.in_width, dtype=torch.float64, device="meta")
    assert layer(tokens, 3, 4).shape == tokens.shape


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 0}, "heads = 0 must be at least 1"),
        ({"heads": 3}, r"width = 16 must be a multiple of 6 \(3 heads of pairs\); try 12 or 18"),
        (
            {"heads": 4, "frame": "cross"},
            r"width = 16 must be a multiple of 32 \(4 heads of pairs for 4 poses\); try 32",
        ),
        ({"frame": "crow"}, r"unknown frame 'crow'\. Did you mean 'cross'\?"),
        ({"kernel": "elo"}, r"unknown kernel 'elo'\. Did you mean 'elu'\?"),
        ({"window": 4}, "window = 4 must be odd and positive"),
        ({"shape": "dish"}, r"unknown shape of a neighbourhood 'dish'\. Did you mean 'disc'\?"),
        ({"kernel": "elu", "window": 3}, "window = 3: linear attention has no window; take 0"),
        ({"backend": "state"}, r"unknown backend 'state'\..* Known: auto, plain, sdpa"),
        ({"kernel": "elu", "backend": "sdpa"}, r"'sdpa'\..* Known: auto, plain, state"),
        ({"wavelengths": (8.0, 2.0)}, "must be positive, the shortest first"),
    ],
)
def test_a_layer_that_cannot_work_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        GroupRotaryAttention(PlanarGroup(4), 16, **({"heads": 2} | options))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 11, 4, 16), "3 x 4 tokens in 4 poses expected, got 11 in 4"),
        ((1, 12, 8, 16), "3 x 4 tokens in 4 poses expected, got 12 in 8"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(shape, words):
    with pytest.raises(InputError, match=words):
        GroupRotaryAttention(PlanarGroup(4), 16, 2)(torch.zeros(shape), 3, 4)
