"""ResNet-50 has the published parts, and its twin turns with the picture at every size."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import act_on_image, equivariance_error, equivariance_errors
from turnwise.layers.roto.conv import RotoConv
from turnwise.models import create_model, load, save

SMALL = {"widths": (4, 6, 8), "depths": (1, 2, 1), "stem": "small"}


def small(name="roto_resnet50", size=16, group="D4", **options):
    torch.manual_seed(0)
    options = SMALL | options
    model = create_model(name, group, num_classes=5, in_chans=3, image_size=size, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after some training
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.double().eval()


def pictures(size=16, cols=None, count=2):
    return torch.rand(count, 3, size, cols or size, dtype=torch.float64)


def test_parameters_are_as_many_as_published():
    for name in ("resnet50", "roto_resnet50"):
        with torch.device("meta"):
            model = create_model(name, "D4", num_classes=1000, in_chans=3, image_size=224)
        assert sum(p.numel() for p in model.parameters()) == 25_557_032
        assert sum(isinstance(m, (nn.Conv2d, RotoConv)) for m in model.modules()) == 53


@pytest.mark.parametrize("stem", ["large", "small"])
@pytest.mark.parametrize("size", [28, 31, 32])
def test_law(stem, size):
    model, x = small(size=size, stem=stem), pictures(size)
    assert max(equivariance_errors(model, "D4", x)) < 1e-12
    assert max(equivariance_errors(model.forward_features, "D4", x, act_out=act_on_image)) < 1e-12


@pytest.mark.parametrize("group", ["C2", "D1"])
def test_law_of_other_groups_and_of_rectangles(group):
    model = small(group=group)
    assert equivariance_error(model, group, pictures(16, 24)) < 1e-12
    assert equivariance_error(model, "D4", pictures()) > 1e-4


def test_law_in_training():
    assert equivariance_error(small().train(), "D4", pictures(count=8)) < 1e-10


def test_witness_and_control():
    roto, x = small(), pictures()
    y = roto.forward_features(x)
    assert all((act_on_image("D4", g, y) - y).abs().max() > 1e-3 for g in range(1, 8))
    assert (roto(x)[0] - roto(x)[1]).abs().max() > 1e-4
    plain = small("resnet50")
    plain.load_state_dict(roto.state_dict())
    assert equivariance_error(plain, "D4", x) > 1e-3
    assert (plain.group.name, roto.group.name) == ("C1", "D4")


def test_definition():
    """Stem and blocks spelled out, in the plain network."""
    model, x = small("resnet50"), pictures()
    conv, norm, _ = model.stem
    maps = norm(nn.functional.conv2d(x, conv.weight, None, 1, 1)).relu()

    def point(part, maps):
        return part[1](torch.einsum("oi,bixy->boxy", part[0].weight[:, :, 0, 0], maps))

    for number, stage in enumerate(model.stages):
        for place, block in enumerate(stage):
            stride = 2 if number and not place else 1
            inner = point(block.reduce, maps).relu()
            inner = nn.functional.conv2d(inner, block.look[0].weight, None, stride, 1)
            inner = point(block.expand, block.look[1](inner).relu())
            short = maps[:, :, ::stride, ::stride]
            maps = ((short if place else point(block.shortcut, short)) + inner).relu()
    expected = maps.flatten(2).mean(-1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


def test_it_learns_and_is_kept(tmp_path):
    model, x = small("resnet50", stem="large", size=32).train(), pictures(32, count=4)
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    save(model.eval().float(), tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(again(x.float()), model(x.float()))


def test_poses_are_refused():
    with pytest.raises(InputError, match=r"oriented = 1 is not known to bottleneck blocks"):
        small(oriented=1)
