"""The twin of ResNet-18 turns with the picture at every size, pool and shortcuts included."""

import pytest
import torch
from torch import nn

from turnwise.checks import InputError
from turnwise.evaluation import Scope, certify
from turnwise.groups import act_on_image, equivariance_error, equivariance_errors
from turnwise.layers.roto_conv import RotoConv
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
