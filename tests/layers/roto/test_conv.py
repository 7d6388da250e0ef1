"""RotoConv2d: equivariance, witness, negative control, definition as loops, three algorithms.

The published form, "legacy", is invariant instead: it does not rotate the responses back.
"""

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.geometry.sizes import Stage, remainder_of
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_image,
    equivariance_error,
    equivariance_errors,
)
from turnwise.layers.roto.conv import RotoConv2d

# kernel/stride/padding and a size: those of the reference, and some with larger remainders
CASES = [
    (Stage(7, 4, 2), 32),
    (Stage(3, 2, 1), 8),
    (Stage(3, 2, 1), 7),
    (Stage(3, 1, 1), 5),
    (Stage(4, 4, 0), 16),
    (Stage(8, 4, 2), 16),
    (Stage(7, 2, 3), 10),
    (Stage(1, 2, 0), 8),
    (Stage(1, 1, 0), 4),
    (Stage(3, 3, 0), 8),
]
NAMES = [f"{s.kernel}/{s.stride}/{s.padding}@{n}" for s, n in CASES]
cases = pytest.mark.parametrize(("stage", "size"), CASES, ids=NAMES)


def make_layer(stage, size, group="D4", **options):
    torch.manual_seed(0)
    remainder = remainder_of(size, stage)
    return RotoConv2d(group, 3, 5, *stage, remainder=remainder, **options).double()


def images(rows, cols=None):
    torch.manual_seed(1)
    return torch.randn(2, 3, rows, cols or rows, dtype=torch.float64)


@cases
@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_roto_conv_is_equivariant(stage, size, reduce):
    layer = make_layer(stage, size, reduce=reduce)
    errors = equivariance_errors(layer, "D4", images(size), act_out=act_on_image)
    assert len(errors) == 8
    assert max(errors) < 1e-12


@pytest.mark.parametrize("group", GRID_GROUPS)
def test_roto_conv_is_equivariant_for_every_group_on_rectangles(group):
    layer = make_layer(Stage(3, 2, 1), 8, group)
    error = equivariance_error(layer, group, images(8, 6), act_out=act_on_image)
    assert error < 1e-12


@cases
def test_control_a_plain_convolution_is_not_equivariant(stage, size):
    plain = nn.Conv2d(3, 5, *stage).double()
    error = equivariance_error(plain, "D4", images(size), act_out=act_on_image)
    assert (error > 0.1) == (stage != Stage(1, 1, 0)), "a filter of one pixel has no direction"


def test_control_without_the_remainder_the_sampling_is_off_centre():
    """A bank of rotated 7 × 7 filters on 32 pixels."""
    whole = make_layer(Stage(7, 4, 2), 32)
    bank = [act_on_image("D4", g, whole.weight) for g in range(8)]

    def naive(images):
        return torch.stack([F.conv2d(images, w, None, 4, 2) for w in bank]).amax(0)

    assert equivariance_error(naive, "D4", images(32), act_out=act_on_image) > 0.1


def test_witness_the_output_rotates_and_depends_on_the_image_and_every_parameter():
    layer, x = make_layer(Stage(3, 2, 1), 8), images(8)
    y = layer(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 0.1 for g in range(1, 8))
    assert (layer(images(8).flip(0)) - y).abs().max() > 0.1
    (y * torch.randn_like(y)).sum().backward()
    assert all(p.grad.abs().min() > 0 for p in layer.parameters())


@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_definition_as_loops(reduce):
    """y_g(p) = b + Σ_i Σ_δ w(gδ) x(p + δ), on a rectangle, over centred positions."""
    layer, x = make_layer(Stage(2, 2), 6, reduce=reduce), images(6, 4)
    half = (-0.5, 0.5)
    responses = torch.zeros(8, 2, 5, 3, 2, dtype=torch.float64)
    for g, matrix in enumerate(PlanarGroup.named("D4").matrices()):
        for row, col in itertools.product(range(3), range(2)):
            total = layer.bias.detach().clone().expand(2, 5).clone()
            for x_step, y_step in itertools.product(half, half):
                x_tap, y_tap = (matrix @ torch.tensor([x_step, y_step]).double()).tolist()
                tap = layer.weight[:, :, int(0.5 - y_tap), int(0.5 + x_tap)]
                pixel = x[:, :, 2 * row + int(0.5 - y_step), 2 * col + int(0.5 + x_step)]
                total += pixel @ tap.T
            responses[g, :, :, row, col] = total
    expected = {
        "max": responses.amax(0),
        "mean": responses.mean(0),
        "rms": responses.square().mean(0).sqrt(),
    }[reduce]
    torch.testing.assert_close(layer(x), expected)


@cases
@pytest.mark.parametrize("reduce", ["max", "mean", "rms", "legacy"])
def test_algorithms_agree_forward_and_backward(stage, size, reduce):
    results = []
    for algorithm in ("copies", "bank", "fourier", "auto"):
        layer = make_layer(stage, size, reduce=reduce, algorithm=algorithm)
        x = images(size).requires_grad_()
        y = layer(x)
        direction = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        grads = torch.autograd.grad((y * direction).sum(), [x, layer.weight, layer.bias])
        results.append((y, *grads))
    for result in results[1:]:
        for value, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(value, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("group", GRID_GROUPS)
@pytest.mark.parametrize("reduce", ["max", "rms"])
def test_algorithms_agree_for_every_group_on_rectangles(group, reduce):
    results = [
        make_layer(Stage(4, 2, 1), 8, group, reduce=reduce, algorithm=algorithm)(images(8, 12))
        for algorithm in ("copies", "bank", "fourier")
    ]
    torch.testing.assert_close(results[1], results[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(results[2], results[0], atol=1e-12, rtol=0)


def test_both_fast_algorithms_are_accurate_in_single_precision():
    exact = make_layer(Stage(2, 2), 8)(images(8))
    for algorithm in ("bank", "fourier"):
        single = make_layer(Stage(2, 2), 8, algorithm=algorithm).float()(images(8).float())
        assert (single - exact).abs().max() < 2e-6


@cases
@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_the_legacy_form_is_invariant_and_not_equivariant(stage, size, algorithm):
    layer, x = make_layer(stage, size, reduce="legacy", algorithm=algorithm), images(size)
    assert equivariance_error(layer, "D4", x) < 1e-12
    is_rotated = equivariance_error(layer, "D4", x, act_out=act_on_image) < 0.1
    assert is_rotated == (stage == Stage(1, 1, 0)), "filters of one pixel give a symmetric output"


def test_definition_of_the_legacy_form():
    """max_g K(g·x), as published."""
    layer, x = make_layer(Stage(7, 4, 2), 32, reduce="legacy"), images(32)
    rotated = [act_on_image("D4", g, x) for g in range(8)]
    responses = [F.conv2d(image, layer.weight, layer.bias, 4, 2) for image in rotated]
    torch.testing.assert_close(layer(x), torch.stack(responses).amax(0))


@pytest.mark.parametrize("h", range(1, 8))
def test_only_the_aligned_form_detects_that_one_part_was_transformed(h):
    """Part A stays, h transforms part B; the legacy form gives the same output as before."""
    a, b = torch.zeros(2, 1, 3, 16, 16, dtype=torch.float64)
    a[..., :4, :4] = torch.randn(1, 3, 4, 4)
    b[..., :4, 4:8] = torch.randn(1, 3, 4, 4)
    before, after = a + b, a + act_on_image("D4", h, b)
    aligned = make_layer(Stage(4, 4), 16)
    legacy = make_layer(Stage(4, 4), 16, reduce="legacy")
    torch.testing.assert_close(legacy(after), legacy(before), atol=1e-13, rtol=0)
    assert (aligned(after) - aligned(before)).abs().max() > 0.1


@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_one_of_several_equal_responses_takes_the_gradient(algorithm):
    """On a constant image all eight are equal: the gradient of the image is one rotated filter."""
    layer = RotoConv2d("D4", 3, 1, 2, stride=2, algorithm=algorithm).double()
    with torch.no_grad():
        layer.weight.copy_(torch.arange(-6.0, 6).view(1, 3, 2, 2))  # whole numbers: exact ties
    x = torch.ones(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    rotated = [act_on_image("D4", g, layer.weight[0]) for g in range(8)]
    assert sum(torch.equal(x.grad[0], filters) for filters in rotated) == 1


def test_rms_in_half_precision_neither_overflows_nor_underflows():
    layer = make_layer(Stage(2, 2), 4, reduce="rms", bias=False, algorithm="bank")
    for scale in (1e-3, 1.0, 1e3):
        x = scale * images(4)
        torch.testing.assert_close(
            layer.half()(x.half()).double(), layer.double()(x), rtol=1e-2, atol=0
        )


def test_rms_has_a_gradient_at_zero():
    layer = make_layer(Stage(2, 2), 4, reduce="rms", bias=False)
    x = torch.zeros(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all()


def test_parameters_are_those_of_the_plain_convolution():
    plain, layer = nn.Conv2d(3, 5, 3), RotoConv2d("D4", 3, 5, 3)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    one = RotoConv2d("C1", 3, 5, 3)
    one.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(one(x), F.conv2d(x, plain.weight, plain.bias, padding=1))


def test_around_makes_an_existing_convolution_equivariant():
    plain = nn.Conv2d(3, 5, 7, stride=4, padding=2).double()
    layer = RotoConv2d.around(plain, "D4", 32).double()
    assert layer.weight is plain.weight
    assert layer.remainder == 1
    assert equivariance_error(layer, "D4", images(32), act_out=act_on_image) < 1e-12


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_around_keeps_the_type_of_the_convolution(kind):
    plain = nn.Conv2d(3, 5, 3, padding=1).to(kind)
    layer = RotoConv2d.around(plain, "D4", 8)
    assert layer.weight is plain.weight
    assert layer(images(8).to(kind)).dtype == kind
    if kind == torch.float64:
        assert equivariance_error(layer, "D4", images(8), act_out=act_on_image) < 1e-12


def test_around_keeps_the_device_of_the_convolution():
    layer = RotoConv2d.around(nn.Conv2d(3, 5, 3, device="meta"), "D4", 8)
    assert {table.device.type for table in layer.buffers()} == {"meta"}
    with torch.device("meta"):
        layer = RotoConv2d("D4", 3, 5, 3)
    assert layer(torch.rand(1, 3, 8, 8, device="meta")).shape == (1, 5, 8, 8)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, (3, 5)),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(4, 4, 3),
    ],
    ids=str,
)
def test_a_convolution_that_cannot_be_made_equivariant_raises_an_error(conv):
    with pytest.raises(InputError, match=r"cannot be made eq|takes square|got ConvTranspose2d"):
        RotoConv2d.around(conv, "D4", 8)


def test_another_image_size_raises_an_error_with_the_nearest_exact_sizes():
    layer = RotoConv2d("D4", 3, 5, 4, stride=4, padding=0)
    with pytest.raises(InputError, match=r"image_size = 30 .* try 28 or 32"):
        layer(torch.zeros(1, 3, 30, 30))
    with pytest.raises(InputError, match=r"image_size = 7 .* try 6 or 8"):
        make_layer(Stage(3, 2, 1), 8)(images(7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce": "sum"}, "unknown reduction 'sum'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"remainder": 2}, "remainder = 2 must be from 0 to below the stride, 2"),
        ({"padding": -1}, "padding = -1 must be 0 or more"),
        ({"kernel_size": 0}, "kernel_size = 0 must be at least 1"),
        ({"stride": 0}, "stride = 0 must be at least 1"),
        ({"in_channels": 0}, "in_channels = 0 must be at least 1"),
        ({"group": "C8"}, "C8 does not map pixels to pixels"),
    ],
)
def test_impossible_options_raise_an_error(options, message):
    usual = {"in_channels": 3, "out_channels": 5, "kernel_size": 3, "stride": 2}
    with pytest.raises(InputError, match=message):
        RotoConv2d(**{"group": "D4"} | usual | options)


def test_the_legacy_form_needs_square_images():
    with pytest.raises(InputError, match="8 x 6 pixels do not allow; give square images"):
        make_layer(Stage(2, 2), 8, reduce="legacy")(images(8, 6))
    assert make_layer(Stage(2, 2), 8, "D2", reduce="legacy")(images(8, 6)).shape == (2, 5, 4, 3)


def test_auto_chooses_the_fastest_algorithm():
    x = images(8)
    assert make_layer(Stage(2, 2), 8).chosen(x) == "fourier"
    assert make_layer(Stage(2, 2), 8, "C1").chosen(x) == "bank"
    assert make_layer(Stage(2, 2), 8, algorithm="copies").chosen(x) == "copies"


ONE_GRAPH = """
import torch
from turnwise.layers.roto.conv import RotoConv2d
for algorithm in ("copies", "bank", "fourier"):
    for reduce in ("max", "legacy"):
        torch.compiler.reset()
        layer = RotoConv2d("D4", 3, 4, 4, stride=2, reduce=reduce, algorithm=algorithm)
        maps = torch.rand(2, 3, 8, 8)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(maps), layer(maps))
"""


def test_roto_conv_compiles_to_one_graph():
    """In a separate process: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("reduce", ["max", "mean", "rms", "legacy"])
@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_autocast_returns_the_type_that_a_plain_convolution_returns(algorithm, reduce):
    """Adding a bias in single precision would return single precision."""
    layer = make_layer(Stage(2, 2), 4, algorithm=algorithm, reduce=reduce).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(images(4).float()).dtype == torch.bfloat16
        assert nn.Conv2d(3, 5, 2, 2)(images(4).float()).dtype == torch.bfloat16
