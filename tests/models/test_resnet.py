"""ResNets have the published parts, and the roto_ variants are equivariant at every size."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import act_on_image, equivariance_error, equivariance_errors
from turnwise.layers.roto.conv import RotoConv2d
from turnwise.models import create_model, load, save

BRIEF = Scope(shifts=0, layers=False)
SMALL = {"widths": (6, 8, 10, 12), "depths": (1, 2, 1, 1)}
SMALL_50 = {"widths": (4, 6, 8), "depths": (1, 2, 1), "stem": "small"}


def small(name="roto_resnet18", size=32, group="D4", **options):
    torch.manual_seed(0)
    options = SMALL | {"stem": "small"} | options
    model = create_model(name, group, num_classes=5, in_chans=3, image_size=size, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after some training
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.double().eval()


def small_50(name="roto_resnet50", size=16, group="D4", **options):
    return small(name, size, group, **SMALL_50 | options)


def random_images(size=32, cols=None, count=2):
    return torch.rand(count, 3, size, cols or size, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "count", "convolutions"),
    [("resnet18", 11_689_512, 20), ("resnet50", 25_557_032, 53)],
)
def test_the_number_of_parameters_is_the_published_one(name, count, convolutions):
    for full_name in (name, f"roto_{name}"):
        with torch.device("meta"):
            model = create_model(full_name, "D4", num_classes=1000, in_chans=3, image_size=224)
        assert sum(p.numel() for p in model.parameters()) == count
        layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, RotoConv2d))]
        assert len(layers) == convolutions


@pytest.mark.parametrize("stem", ["large", "small"])
@pytest.mark.parametrize("size", [28, 31, 32])
@pytest.mark.parametrize("make", [small, small_50])
def test_the_logits_are_invariant_and_the_features_equivariant(make, stem, size):
    model, x = make(size=size, stem=stem), random_images(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12


@pytest.mark.parametrize("group", ["C2", "C4", "D1", "D2"])
def test_invariance_under_other_groups_and_of_rectangles(group):
    model = small(group=group)
    assert equivariance_error(model, group, random_images(32, 48)) < 1e-12
    assert equivariance_error(model, "D4", random_images()) > 1e-4


def test_invariance_in_training():
    model = small().train()
    assert equivariance_error(model, "D4", random_images(count=8)) < 1e-10


@pytest.mark.parametrize("stem", ["large", "small"])
def test_outputs_differ_and_negative_control(stem):
    roto, x = small(size=64, stem=stem), random_images(64)
    y = roto.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (roto(x)[0] - roto(x)[1]).abs().max() > 1e-4
    plain = small("resnet18", 64, stem=stem)
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", x) > 1e-3
    assert (plain.group.name, roto.group.name) == ("C1", "D4")


def test_negative_control_the_plain_pool_breaks_invariance():
    roto, x = small(size=64, stem="large"), random_images(64)
    roto.stem[-1] = nn.MaxPool2d(3, 2, 1)
    assert equivariance_error(roto, "D4", x) > 1e-4


def test_definition():
    """Stem and blocks of the plain network, written out."""
    model, x = small("resnet18"), random_images()
    maps = x
    conv, norm, _ = model.stem
    maps = norm(nn.functional.conv2d(maps, conv.weight, None, 1, 1)).relu()
    for number, stage in enumerate(model.stages):
        for position, block in enumerate(stage):
            stride = 2 if number and not position else 1
            inner = nn.functional.conv2d(maps, block.conv_in.weight, None, stride, 1)
            inner = block.norm_in(inner).relu()
            inner = block.norm_out(nn.functional.conv2d(inner, block.conv_out.weight, None, 1, 1))
            short = maps
            if stride == 2:
                short = maps[:, :, ::2, ::2]
                short = torch.einsum("oi,bixy->boxy", block.shortcut[0].weight[:, :, 0, 0], short)
                short = block.shortcut[1](short)
            maps = (short + inner).relu()
    expected = maps.flatten(2).mean(-1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("algorithm", ["copies", "bank", "fourier"])
def test_algorithms_agree_forward_and_backward(algorithm):
    x, results = random_images(16), []
    for chosen in (algorithm, "auto"):
        model = small(size=16, algorithm=chosen)
        y = model(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


def test_the_certificate_holds_for_the_roto_variant_and_not_for_the_plain_one():
    images = torch.rand(2, 3, 32, 32)
    assert certify(small(), "D4", images, angles=2, scope=BRIEF).holds
    assert not certify(small("resnet18"), "D4", images, angles=2, scope=BRIEF).holds


def test_the_nearest_exact_sizes_are_named():
    assert small().exact_size(30) == (24, 32)
    with pytest.raises(InputError, match=r"image_size = 30 .* try 24 or 32"):
        small()(random_images(30))
    assert small(size=30).exact_size(30) == (30,)
    assert small("resnet18").exact_size(30) == (30,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "tiny"}, "unknown stem 'tiny'"),
        ({"widths": (6, 8)}, "must have one entry per stage"),
        ({"reduce": "median"}, "unknown reduce 'median'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_wrong_channels_are_refused():
    with pytest.raises(InputError, match="images with 3 channels, got 1"):
        small()(torch.rand(1, 1, 32, 32).double())


def test_a_saved_model_is_loaded_exactly(tmp_path):
    model, x = small().float(), torch.rand(1, 3, 32, 32)
    save(model, tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model").eval()(x), model(x))


def test_gradients_reach_every_parameter():
    model = small().train()
    model(random_images()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


ORIENTED = {"widths": (8, 16, 16, 12), "depths": (1, 1, 1, 1)}


@pytest.mark.parametrize("oriented", [1, 2, 3])
@pytest.mark.parametrize(("stem", "size"), [("small", 28), ("large", 32), ("large", 31)])
def test_invariance_of_networks_with_oriented_stages(oriented, stem, size):
    model, x = small(size=size, stem=stem, oriented=oriented, **ORIENTED), random_images(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert equivariance_error(model.train(), "D4", random_images(size, count=8)) < 1e-10


def test_outputs_differ_and_negative_control_with_oriented_stages():
    model, x = small(size=64, oriented=1, **ORIENTED), random_images(64)
    y = model.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (model(x)[0] - model(x)[1]).abs().max() > 1e-4
    taps = model.stem[0].filters.source
    taps[9:] = taps[:9].repeat(7)  # the same filters for all group elements
    assert equivariance_error(model, "D4", x) > 1e-4


def test_definition_with_oriented_stages():
    """Filters on the group in oriented stages, and the maximum over the group after them."""
    model, x = small(oriented=2, **ORIENTED), random_images(32, 64)

    def conv(part, maps, fold=False):
        layer = part[0] if fold else part
        stage = layer.stages[0]
        build = layer.filters.group_conv if layer.weight.ndim == 4 else layer.filters.lifting
        y = nn.functional.conv2d(maps, build(layer.weight), None, stage.stride, stage.padding)
        return y.unflatten(1, (8, -1)).amax(1) if fold else y

    def norm(part, maps):
        plain = part.norm
        rest = (maps.unflatten(1, (8, -1)).movedim(2, -1) - plain.running_mean) * plain.weight
        rest = rest / (plain.running_var + plain.eps).sqrt() + plain.bias
        return rest.movedim(-1, 2).flatten(1, 2)

    maps = norm(model.stem[1], conv(model.stem[0], x)).relu()
    for stage in list(model.stages)[:2]:
        for block in stage:
            inner = norm(block.norm_in, conv(block.conv_in, maps)).relu()
            short = maps
            if not isinstance(block.shortcut, nn.Identity):
                short = norm(block.shortcut[1], conv(block.shortcut[0], maps))
            maps = (short + norm(block.norm_out, conv(block.conv_out, inner))).relu()
    block = model.stages[2][0]
    inner = block.norm_in(conv(block.conv_in, maps, fold=True)).relu()
    short = block.shortcut[1](conv(block.shortcut[0], maps, fold=True))
    maps = (short + block.norm_out(block.conv_out(inner))).relu()
    mean = model.stages[3](maps).mean(dim=(2, 3))
    torch.testing.assert_close(model(x), mean @ model.head.weight.T + model.head.bias)


def test_number_of_parameters_with_oriented_stages():
    """Every stage has the same width; oriented ones have |G| times fewer parameters."""

    def parameter_count(oriented):
        model = create_model(
            "roto_resnet18", "D4", num_classes=7, in_chans=3, stem="small", oriented=oriented
        )
        return sum(p.numel() for p in model.parameters())

    assert [parameter_count(oriented) for oriented in (0, 1, 3)] == [
        11_172_423,
        11_123_247,
        8_795_407,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet18", "oriented": 1}, "oriented = 1 .* use the roto_ model"),
        ({"oriented": 4}, "oriented = 4 must be from 0 to 3"),
        ({"oriented": 1}, "width = 6 .* 8 group elements"),
        ({"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
    ],
)
def test_stages_that_cannot_be_oriented_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_dropout_is_before_the_classifier():
    model, x = small(dropout=0.5).train(), random_images()
    maps = model.forward_features(x)
    assert (model.forward_head(maps) - model.forward_head(maps)).abs().max() > 0
    model.eval()
    torch.testing.assert_close(model.forward_head(maps), model.head(maps.mean(dim=(2, 3))))


ONE_GRAPH = """
import torch, turnwise
small = dict(widths=[8, 16], depths=[1, 1], stem="large", oriented=1, algorithm="bank")
model = turnwise.create_model("roto_resnet18", "D4", 7, 3, 16, **small)
images = torch.rand(4, 3, 16, 16)
compiled = torch.compile(model, backend="eager", fullgraph=True)
compiled(images).square().sum().backward()
assert all(p.grad is not None for p in model.parameters())
torch.testing.assert_close(compiled.eval()(images), model(images))
"""


def test_it_compiles_in_one_graph():
    """In a process of its own: the run-time type checks of the tests would break the graph."""
    subprocess.run([sys.executable, "-c", ONE_GRAPH], check=True)


@pytest.mark.parametrize("group", ["C2", "D1"])
def test_invariance_of_resnet50_under_other_groups_and_of_rectangles(group):
    model = small_50(group=group)
    assert equivariance_error(model, group, random_images(16, 24)) < 1e-12
    assert equivariance_error(model, "D4", random_images(16)) > 1e-4


def test_invariance_of_resnet50_in_training():
    assert equivariance_error(small_50().train(), "D4", random_images(16, count=8)) < 1e-10


def test_outputs_of_resnet50_differ_and_negative_control():
    roto, x = small_50(), random_images(16)
    y = roto.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (roto(x)[0] - roto(x)[1]).abs().max() > 1e-4
    plain = small_50("resnet50")
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", x) > 1e-3
    assert (plain.group.name, roto.group.name) == ("C1", "D4")


def test_definition_of_resnet50():
    """Stem and blocks of the plain network, written out."""
    model, x = small_50("resnet50"), random_images(16)
    conv, norm, _ = model.stem
    maps = norm(nn.functional.conv2d(x, conv.weight, None, 1, 1)).relu()

    def point(part, maps):
        return part[1](torch.einsum("oi,bixy->boxy", part[0].weight[:, :, 0, 0], maps))

    for number, stage in enumerate(model.stages):
        for position, block in enumerate(stage):
            stride = 2 if number and not position else 1
            inner = point(block.reduce, maps).relu()
            inner = nn.functional.conv2d(inner, block.look[0].weight, None, stride, 1)
            inner = point(block.expand, block.look[1](inner).relu())
            short = maps[:, :, ::stride, ::stride]
            maps = ((short if position else point(block.shortcut, short)) + inner).relu()
    expected = maps.flatten(2).mean(-1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


def test_gradients_of_resnet50_and_saving(tmp_path):
    model, x = small_50("resnet50", stem="large", size=32).train(), random_images(32, count=4)
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    save(model.eval().float(), tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(again(x.float()), model(x.float()))


def test_oriented_bottleneck_blocks_are_refused():
    with pytest.raises(InputError, match=r"oriented = 1 is not available for bottleneck blocks"):
        small_50(oriented=1)
