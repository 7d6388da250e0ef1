"""Certificates of maps: exact models pass, and each control fails where it should."""

import pytest
import torch
from torch import nn

from turnwise.evaluation.certificate import certify as module
from turnwise.evaluation.certificate.certify import Scope
from turnwise.evaluation.certificate.comparison import predict_logits
from turnwise.evaluation.certificate.controls import acting, measure_controls
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.models import create_model, orbit

SCOPE = Scope(shifts=1, layers=False, precisions=("float64",), chunk=3)


def unet(name="turnwise_unet_nano", group="D4"):
    torch.manual_seed(0)
    return create_model(name, group=group, num_classes=3, image_size=12, widths=(16, 32)).eval()


def images(rows=12, cols=12):
    return torch.rand(4, 1, rows, cols, generator=torch.Generator().manual_seed(0))


def errors_of(model, group="D4", given=None):
    given = images() if given is None else given
    certificate = module.certify(model, group, given, angles=2, scope=SCOPE)
    return certificate, [check.float64 for check in certificate.elements]


@pytest.mark.parametrize("group", ["C4", "D4"])
def test_the_maps_of_an_exact_model_pass_on_squares_and_rectangles(group):
    for given in (images(), images(12, 16)):
        certificate, errors = errors_of(unet(group=group), group, given)
        assert max(errors) < 1e-10 and all(e.agreement == 1 for e in certificate.elements)
        assert len(certificate.controls) == 5
        assert all(control.change > control.threshold for control in certificate.controls)


def test_the_plain_network_fails_and_its_orbit_passes():
    assert max(errors_of(unet("unet"))[1]) > 1e-2
    assert max(errors_of(orbit(unet("unet"), "D4"))[1]) < 1e-10


class Constant(nn.Module):
    """A map that depends on the image as a whole, and not on the pixel."""

    output = "map"

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, images):
        mean = images.square().mean((1, 2, 3))
        return (mean[:, None] * self.weight)[:, :, None, None].expand(-1, -1, *images.shape[2:])


def test_a_constant_map_is_equivariant_but_fails_two_controls():
    certificate, errors = errors_of(Constant())
    assert max(errors) < 1e-10
    failed = {c.name for c in certificate.controls if not c.change > c.threshold}
    assert {"maps rotated the wrong way differ", "maps are not constant"} <= failed


def test_maps_that_are_rotated_back_the_wrong_way_differ():
    predictor, group = Predictor(unet(), precision="float64"), PlanarGroup.named("D4")
    before = predict_logits(predictor, images())
    act, back = acting(group, 1)
    assert (predict_logits(predictor, images(), act, back) - before).abs().max() < 1e-10
    assert (predict_logits(predictor, images(), act, act) - before).abs().max() > 1e-3
    names = [control.name for control in measure_controls(predictor, group, images(), before)]
    assert names[3:] == ["maps rotated the wrong way differ", "maps are not constant"]


def test_other_axes_are_undone_as_well():
    """A shift around the border moves a map exactly where the network has no border: not here."""
    certificate, _ = errors_of(unet(group="C4"), "C4")
    flips = [t for t in certificate.transformations if t.kind == "reflection"]
    assert all(t.change > 1e-3 for t in flips), "C4 does not claim flips"
    certificate, _ = errors_of(Pixelwise(), "C4")
    assert all(t.change < 1e-10 for t in certificate.transformations if "zeros" not in t.meaning
               and t.kind in ("reflection", "shift"))  # fmt: skip


class Pixelwise(nn.Conv2d):
    output = "map"

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(1, 3, 1)
