"""RotoConv turns with the picture, exactly; the published form is invariant and folds it."""

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
from turnwise.layers.roto.conv import RotoConv

# kernel/stride/padding and a size: those of the reference, and some that leave more than one pixel
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


def made(stage, size, group="D4", **options):
    torch.manual_seed(0)
    left = remainder_of(size, stage)
    return RotoConv(group, 3, 5, stage, remainder=left, **options).double()


def pictures(rows, cols=None):
    torch.manual_seed(1)
    return torch.randn(2, 3, rows, cols or rows, dtype=torch.float64)


@cases
@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_law(stage, size, reduce):
    layer = made(stage, size, reduce=reduce)
    errors = equivariance_errors(layer, "D4", pictures(size), act_out=act_on_image)
    assert len(errors) == 8
    assert max(errors) < 1e-12


@pytest.mark.parametrize("group", GRID_GROUPS)
def test_law_of_every_group_on_rectangles(group):
    layer = made(Stage(3, 2, 1), 8, group)
    error = equivariance_error(layer, group, pictures(8, 6), act_out=act_on_image)
    assert error < 1e-12


@cases
def test_control_the_plain_convolution_breaks_it(stage, size):
    plain = nn.Conv2d(3, 5, *stage).double()
    error = equivariance_error(plain, "D4", pictures(size), act_out=act_on_image)
    assert (error > 0.1) == (stage != Stage(1, 1, 0)), "single pixels know no direction"


def test_control_without_the_remainder_nothing_is_exact():
    """The bank of turned 7 × 7 filters on 32 pixels: the grid itself is off-centre."""
    whole = made(Stage(7, 4, 2), 32)
    bank = [act_on_image("D4", g, whole.weight) for g in range(8)]

    def naive(images):
        return torch.stack([F.conv2d(images, w, None, 4, 2) for w in bank]).amax(0)

    assert equivariance_error(naive, "D4", pictures(32), act_out=act_on_image) > 0.1


def test_witness_the_output_moves_and_depends_on_the_picture():
    layer, x = made(Stage(3, 2, 1), 8), pictures(8)
    y = layer(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 0.1 for g in range(1, 8))
    assert (layer(pictures(8).flip(0)) - y).abs().max() > 0.1


@pytest.mark.parametrize("reduce", ["max", "mean", "rms"])
def test_definition(reduce):
    """y_g(p) = b + Σ_i Σ_δ w(gδ) x(p + δ), on a rectangle, by loops over centred positions."""
    layer, x = made(Stage(2, 2), 6, reduce=reduce), pictures(6, 4)
    half = (-0.5, 0.5)
    answers = torch.zeros(8, 2, 5, 3, 2, dtype=torch.float64)
    for g, matrix in enumerate(PlanarGroup.named("D4").matrices()):
        for row, col in itertools.product(range(3), range(2)):
            total = layer.bias.detach().clone().expand(2, 5).clone()
            for x_step, y_step in itertools.product(half, half):
                x_tap, y_tap = (matrix @ torch.tensor([x_step, y_step]).double()).tolist()
                tap = layer.weight[:, :, int(0.5 - y_tap), int(0.5 + x_tap)]
                pixel = x[:, :, 2 * row + int(0.5 - y_step), 2 * col + int(0.5 + x_step)]
                total += pixel @ tap.T
            answers[g, :, :, row, col] = total
    expected = {
        "max": answers.amax(0),
        "mean": answers.mean(0),
        "rms": answers.square().mean(0).sqrt(),
    }[reduce]
    torch.testing.assert_close(layer(x), expected)


@cases
@pytest.mark.parametrize("reduce", ["max", "mean", "rms", "legacy"])
def test_three_algorithms_have_one_result_and_one_gradient(stage, size, reduce):
    results = []
    for algorithm in ("copies", "bank", "fourier", "auto"):
        layer = made(stage, size, reduce=reduce, algorithm=algorithm)
        x = pictures(size).requires_grad_()
        y = layer(x)
        push = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        grads = torch.autograd.grad((y * push).sum(), [x, layer.weight, layer.bias])
        results.append((y, *grads))
    for found in results[1:]:
        for value, wanted in zip(found, results[0], strict=True):
            torch.testing.assert_close(value, wanted, atol=1e-11, rtol=0)


@pytest.mark.parametrize("group", GRID_GROUPS)
@pytest.mark.parametrize("reduce", ["max", "rms"])
def test_algorithms_agree_for_every_group_on_rectangles(group, reduce):
    results = [
        made(Stage(4, 2, 1), 8, group, reduce=reduce, algorithm=algorithm)(pictures(8, 12))
        for algorithm in ("copies", "bank", "fourier")
    ]
    torch.testing.assert_close(results[1], results[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(results[2], results[0], atol=1e-12, rtol=0)


def test_fourier_rounds_no_more_than_the_bank_in_single_precision():
    exact = made(Stage(2, 2), 8)(pictures(8))
    for algorithm in ("bank", "fourier"):
        single = made(Stage(2, 2), 8, algorithm=algorithm).float()(pictures(8).float())
        assert (single - exact).abs().max() < 2e-6


@cases
@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_the_legacy_form_is_invariant_and_not_equivariant(stage, size, algorithm):
    layer, x = made(stage, size, reduce="legacy", algorithm=algorithm), pictures(size)
    assert equivariance_error(layer, "D4", x) < 1e-12
    folded = equivariance_error(layer, "D4", x, act_out=act_on_image) > 0.1
    assert folded == (stage != Stage(1, 1, 0)), "of single pixels the folded map is symmetric"


def test_legacy_definition():
    """max_g K(g·x), as published."""
    layer, x = made(Stage(7, 4, 2), 32, reduce="legacy"), pictures(32)
    turned = [act_on_image("D4", g, x) for g in range(8)]
    answers = [F.conv2d(picture, layer.weight, layer.bias, 4, 2) for picture in turned]
    torch.testing.assert_close(layer(x), torch.stack(answers).amax(0))


@pytest.mark.parametrize("h", range(1, 8))
def test_moving_one_part_is_seen_by_the_aligned_form_alone(h):
    """Part A stays, part B goes where h takes it: the folded picture is the same, the other not."""
    a, b = torch.zeros(2, 1, 3, 16, 16, dtype=torch.float64)
    a[..., :4, :4] = torch.randn(1, 3, 4, 4)
    b[..., :4, 4:8] = torch.randn(1, 3, 4, 4)
    before, after = a + b, a + act_on_image("D4", h, b)
    aligned = made(Stage(4, 4), 16)
    legacy = made(Stage(4, 4), 16, reduce="legacy")
    torch.testing.assert_close(legacy(after), legacy(before), atol=1e-13, rtol=0)
    assert (aligned(after) - aligned(before)).abs().max() > 0.1


@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_of_equal_answers_one_takes_the_gradient(algorithm):
    """On blank ground all eight are equal: the picture's gradient is one turned filter."""
    layer = RotoConv("D4", 3, 1, Stage(2, 2), algorithm=algorithm).double()
    with torch.no_grad():
        layer.weight.copy_(torch.arange(-6.0, 6).view(1, 3, 2, 2))  # whole numbers: exact ties
    x = torch.ones(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    turned = [act_on_image("D4", g, layer.weight[0]) for g in range(8)]
    assert sum(torch.equal(x.grad[0], filters) for filters in turned) == 1


def test_rms_of_half_precision_neither_overflows_nor_forgets_the_small():
    layer = made(Stage(2, 2), 4, reduce="rms", bias=False, algorithm="bank")
    for scale in (1e-3, 1.0, 1e3):
        x = scale * pictures(4)
        torch.testing.assert_close(
            layer.half()(x.half()).double(), layer.double()(x), rtol=1e-2, atol=0
        )


def test_rms_has_a_gradient_at_zero():
    layer = made(Stage(2, 2), 4, reduce="rms", bias=False)
    x = torch.zeros(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all()


def test_weights_are_those_of_the_plain_convolution():
    plain, layer = nn.Conv2d(3, 5, 3), RotoConv("D4", 3, 5, Stage(3, 1, 1))
    assert layer.state_dict().keys() == plain.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    one = RotoConv("C1", 3, 5, Stage(3, 1, 1))
    one.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(one(x), F.conv2d(x, plain.weight, plain.bias, padding=1))


def test_around_an_existing_convolution():
    plain = nn.Conv2d(3, 5, 7, stride=4, padding=2).double()
    layer = RotoConv.around(plain, "D4", 32).double()
    assert layer.weight is plain.weight
    assert layer.remainder == 1
    assert equivariance_error(layer, "D4", pictures(32), act_out=act_on_image) < 1e-12


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_around_a_convolution_of_another_type(kind):
    plain = nn.Conv2d(3, 5, 3, padding=1).to(kind)
    layer = RotoConv.around(plain, "D4", 8)
    assert layer.weight is plain.weight
    assert layer(pictures(8).to(kind)).dtype == kind
    if kind == torch.float64:
        assert equivariance_error(layer, "D4", pictures(8), act_out=act_on_image) < 1e-12


def test_around_a_convolution_on_another_device():
    layer = RotoConv.around(nn.Conv2d(3, 5, 3, device="meta"), "D4", 8)
    assert {table.device.type for table in layer.buffers()} == {"meta"}
    with torch.device("meta"):
        layer = RotoConv("D4", 3, 5, Stage(3, 1, 1))
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
def test_a_convolution_that_cannot_be_turned_is_refused(conv):
    with pytest.raises(InputError, match=r"cannot be turned|takes square|got ConvTranspose2d"):
        RotoConv.around(conv, "D4", 8)


def test_another_size_is_refused_with_the_nearest_that_work():
    layer = RotoConv("D4", 3, 5, Stage(4, 4))
    with pytest.raises(InputError, match=r"image_size = 30 .* try 28 or 32"):
        layer(torch.zeros(1, 3, 30, 30))
    with pytest.raises(InputError, match=r"image_size = 7 .* try 6 or 8"):
        made(Stage(3, 2, 1), 8)(pictures(7))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reduce": "sum"}, "unknown reduction 'sum'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"remainder": 2}, "remainder = 2 must be from 0 to below the stride, 2"),
        ({"stage": Stage(3, 2, -1)}, "padding = -1"),
        ({"stage": Stage(0, 2, 1)}, "kernel = 0"),
        ({"group": "C8"}, "C8 does not map pixels to pixels"),
    ],
)
def test_nonsense_is_refused(options, said):
    usual = {"group": "D4", "in_width": 3, "width": 5, "stage": Stage(3, 2, 1)}
    with pytest.raises(InputError, match=said):
        RotoConv(**usual | options)


def test_the_legacy_form_needs_squares():
    with pytest.raises(InputError, match="8 x 6 pixels do not allow; give square pictures"):
        made(Stage(2, 2), 8, reduce="legacy")(pictures(8, 6))
    assert made(Stage(2, 2), 8, "D2", reduce="legacy")(pictures(8, 6)).shape == (2, 5, 4, 3)


def test_auto_takes_the_products_and_one_convolution_where_nothing_turns():
    x = pictures(8)
    assert made(Stage(2, 2), 8).chosen(x) == "fourier"
    assert made(Stage(2, 2), 8, "C1").chosen(x) == "bank"
    assert made(Stage(2, 2), 8, algorithm="copies").chosen(x) == "copies"
    assert "D4, reduce='max', algorithm='auto'" in str(made(Stage(2, 2), 8))


ONE_GRAPH = """
import torch
from turnwise.geometry.sizes import Stage
from turnwise.layers.roto.conv import RotoConv
for algorithm in ("copies", "bank", "fourier"):
    for reduce in ("max", "legacy"):
        torch.compiler.reset()
        layer = RotoConv("D4", 3, 4, Stage(4, 2, 1), reduce=reduce, algorithm=algorithm)
        maps = torch.rand(2, 3, 8, 8)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(maps), layer(maps))
"""


def test_it_compiles_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("reduce", ["max", "mean", "rms", "legacy"])
@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_autocast_gives_what_a_plain_convolution_gives(algorithm, reduce):
    """A bias in single precision would leave maps in it, and all that follows at twice the cost."""
    layer = made(Stage(2, 2), 4, algorithm=algorithm, reduce=reduce).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(pictures(4).float()).dtype == torch.bfloat16
        assert nn.Conv2d(3, 5, 2, 2)(pictures(4).float()).dtype == torch.bfloat16
