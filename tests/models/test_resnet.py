"""The twin of ResNet-18 turns with the picture at every size, pool and shortcuts included."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import act_on_image, equivariance_error, equivariance_errors
from turnwise.layers.roto.conv import RotoConv
from turnwise.models import create_model, load, save

BRIEF = Scope(shifts=0, layers=False)
SMALL = {"widths": (6, 8, 10, 12), "depths": (1, 2, 1, 1)}


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


def pictures(size=32, cols=None, count=2):
    return torch.rand(count, 3, size, cols or size, dtype=torch.float64)


def test_parameters_are_as_many_as_published():
    for name in ("resnet18", "roto_resnet18"):
        with torch.device("meta"):
            model = create_model(name, "D4", num_classes=1000, in_chans=3, image_size=224)
        assert sum(p.numel() for p in model.parameters()) == 11_689_512
        assert sum(isinstance(m, (nn.Conv2d, RotoConv)) for m in model.modules()) == 20


@pytest.mark.parametrize("stem", ["large", "small"])
@pytest.mark.parametrize("size", [28, 31, 32])
def test_law(stem, size):
    model, x = small(size=size, stem=stem), pictures(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12


@pytest.mark.parametrize("group", ["C2", "C4", "D1", "D2"])
def test_law_of_other_groups_and_of_rectangles(group):
    model = small(group=group)
    assert equivariance_error(model, group, pictures(32, 48)) < 1e-12
    assert equivariance_error(model, "D4", pictures()) > 1e-4


def test_law_in_training():
    model = small().train()
    assert equivariance_error(model, "D4", pictures(count=8)) < 1e-10


@pytest.mark.parametrize("stem", ["large", "small"])
def test_witness_and_control(stem):
    roto, x = small(size=64, stem=stem), pictures(64)
    y = roto.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (roto(x)[0] - roto(x)[1]).abs().max() > 1e-4
    plain = small("resnet18", 64, stem=stem)
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", x) > 1e-3
    assert (plain.group.name, roto.group.name) == ("C1", "D4")


def test_control_the_plain_pool_would_break_it():
    roto, x = small(size=64, stem="large"), pictures(64)
    roto.stem[-1] = nn.MaxPool2d(3, 2, 1)
    assert equivariance_error(roto, "D4", x) > 1e-4


def test_definition():
    """Stem and blocks spelled out, in the plain network."""
    model, x = small("resnet18"), pictures()
    maps = x
    conv, norm, _ = model.stem
    maps = norm(nn.functional.conv2d(maps, conv.weight, None, 1, 1)).relu()
    for number, stage in enumerate(model.stages):
        for place, block in enumerate(stage):
            stride = 2 if number and not place else 1
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
    x, results = pictures(16), []
    for chosen in (algorithm, "auto"):
        model = small(size=16, algorithm=chosen)
        y = model(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)


def test_the_certificate_passes_the_twin_and_fails_the_plain_one():
    images = torch.rand(2, 3, 32, 32)
    assert certify(small(), "D4", images, angles=2, scope=BRIEF).holds
    assert not certify(small("resnet18"), "D4", images, angles=2, scope=BRIEF).holds


def test_sizes():
    assert small().exact_size(30) == (24, 32)
    with pytest.raises(InputError, match=r"image_size = 30 .* try 24 or 32"):
        small()(pictures(30))
    assert small(size=30).exact_size(30) == (30,)
    assert small("resnet18").exact_size(30) == (30,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stem": "tiny"}, "unknown stem 'tiny'"),
        ({"widths": (6, 8)}, "must have one entry for each stage"),
        ({"reduce": "median"}, "unknown reduction 'median'"),
        ({"algorithm": "fft"}, "unknown algorithm 'fft'"),
    ],
)
def test_nonsense_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        small(**options)


def test_wrong_channels_are_refused():
    with pytest.raises(InputError, match="pictures with 3 channels, got 1"):
        small()(torch.rand(1, 1, 32, 32).double())


def test_it_is_saved_and_loaded(tmp_path):
    model, x = small().float(), torch.rand(1, 3, 32, 32)
    save(model, tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model").eval()(x), model(x))


def test_gradients_reach_every_parameter():
    model = small().train()
    model(pictures()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


ORIENTED = {"widths": (8, 16, 16, 12), "depths": (1, 1, 1, 1)}


@pytest.mark.parametrize("oriented", [1, 2, 3])
@pytest.mark.parametrize(("stem", "size"), [("small", 28), ("large", 32), ("large", 31)])
def test_law_where_poses_are_kept(oriented, stem, size):
    model, x = small(size=size, stem=stem, oriented=oriented, **ORIENTED), pictures(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12
    assert equivariance_error(model.train(), "D4", pictures(size, count=8)) < 1e-10


def test_witness_and_control_where_poses_are_kept():
    model, x = small(size=64, oriented=1, **ORIENTED), pictures(64)
    y = model.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (model(x)[0] - model(x)[1]).abs().max() > 1e-4
    taps = model.stem[0].filters.source
    taps[9:] = taps[:9].repeat(7)  # all poses see the picture from one side
    assert equivariance_error(model, "D4", x) > 1e-4


def test_definition_where_poses_are_kept():
    """As the plain one, with filters on the group, and the greatest pose where stages fold."""
    model, x = small(oriented=2, **ORIENTED), pictures(32, 64)

    def conv(part, maps, fold=False):
        layer = part[0] if fold else part
        stage = layer.stages[0]
        build = layer.filters.group if layer.weight.ndim == 4 else layer.filters.lifting
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


def test_weights_where_poses_are_kept():
    """The same width of every stage; |G| times fewer weights where maps keep their poses."""

    def weights(oriented):
        model = create_model(
            "roto_resnet18", "D4", num_classes=7, in_chans=3, stem="small", oriented=oriented
        )
        return sum(p.numel() for p in model.parameters())

    assert [weights(oriented) for oriented in (0, 1, 3)] == [11_172_423, 11_123_247, 8_795_407]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "resnet18", "oriented": 1}, "oriented = 1 .* use the roto_ twin"),
        ({"oriented": 4}, "oriented = 4 must be from 0 to 3"),
        ({"oriented": 1}, "width = 6 .* 8 poses"),
        ({"dropout": 1.0}, "dropout = 1.0 must be 0 to below 1"),
    ],
)
def test_stages_that_cannot_keep_poses(options, said):
    with pytest.raises(InputError, match=said):
        small(**options)


def test_dropout_is_before_the_read_out():
    model, x = small(dropout=0.5).train(), pictures()
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
