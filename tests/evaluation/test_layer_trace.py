"""Which layer an error is attributed to: planted faults are found, excused breaks are not."""

import re
from functools import partial

import pytest
import small_networks as nets
import torch
from torch import nn

from turnwise.evaluation import Scope, certify
from turnwise.evaluation.layer_trace import LayerCheck, find_error_source, trace_layers
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.models import create_model

C4 = PlanarGroup.named("C4")
SMALL_VIT = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
double = partial(Predictor, precision="float64")


def check(layer, input_error, output_error):
    return LayerCheck(layer, "Linear", "maps of C4", input_error, output_error)


def test_the_first_break_is_named():
    layers = [check("a", 0.0, 0.0), check("b", 0.0, 1.0), check("the model", 0.0, 1.0)]
    assert find_error_source(layers, 1e-10) == (
        "b (Linear): its input is equivariant, its output is not"
    )


def test_no_source_is_named_if_the_output_is_equivariant():
    layers = [check("a", 0.0, 1.0), check("the model", 0.0, 1e-11)]
    assert find_error_source(layers, 1e-10) == ""
    assert find_error_source([], 1e-10) == ""


def test_a_break_inside_an_equivariant_module_is_excused():
    layers = [
        check("a.inner", 0.0, 1.0), check("a", 0.0, 0.0), check("b", 0.0, 1.0),
        check("the model", 0.0, 1.0),
    ]  # fmt: skip
    assert find_error_source(layers, 1e-10).startswith("b (Linear)")


def test_a_break_that_a_later_layer_undoes_is_excused():
    """Its output transformed in a way that no layout describes."""
    layers = [
        check("a", 0.0, 1.0), check("b", 1.0, 0.0), check("c", 0.0, 1.0), check("d", 1.0, 1.0),
    ]  # fmt: skip
    assert find_error_source(layers, 1e-10).startswith("c (Linear)")


def test_a_layer_without_a_known_layout_is_skipped():
    layers = [check("a", None, None), check("b", None, 1.0)]
    assert find_error_source(layers, 1e-10) == (
        "b (Linear) or the code before it: the input of this layer has no known layout"
    )


class Table(nn.Module):
    """Its inner layer returns the same for every image."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Linear(2, 3)
        self.positions = torch.randn(rows, 2, dtype=torch.float64)

    def forward(self, images):
        return self.rows(self.positions).sum() * images.flatten(1).pow(2).mean(1, keepdim=True)


def test_a_table_is_not_measured_even_with_one_row_per_image(digits_like):
    predictor = Predictor(Table(4), batch_size=1, precision="float64")  # traced in one batch
    table, whole = trace_layers(predictor, C4, digits_like)
    assert (table.layer, table.input_error, table.output_error) == ("rows", None, None)
    assert whole.output_error < 1e-12


def test_calls_of_the_same_layer_are_numbered(digits_like):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.tanh = nn.Tanh()

        def forward(self, images):
            return self.tanh(self.tanh(images)).mean((2, 3))

    names = [c.layer for c in trace_layers(double(Twice()), C4, digits_like)]
    assert names == ["tanh", "tanh, call 2", "the model"]


def test_rectangles_are_left_out():
    assert trace_layers(Predictor(nn.Tanh()), C4, torch.rand(4, 1, 4, 6)) == ()


def test_all_hooks_are_removed(digits_like):
    predictor = double(Table(4))
    trace_layers(predictor, C4, digits_like)
    assert not any(module._forward_hooks for module in predictor.model.modules())


# Whole certificates of networks with planted faults.


def failed_certificate(model, images, group="C4"):
    certificate = certify(model, group, images, angles=1)
    assert not certificate.holds
    return certificate


@pytest.mark.parametrize(("net", "layers"), [(nets.group_net, 7), (nets.plain_net, 6)])
def test_control_the_network_without_a_fault_holds(net, layers, digits_like):
    certificate = certify(net(), "C4", digits_like, angles=1)
    assert certificate.holds
    assert certificate.error_source == ""
    assert len(certificate.layers) == layers
    assert all(layer.output_error < 1e-12 for layer in certificate.layers)


PLANTED = {
    "absolute positions": (lambda: nets.plain_net(nets.Position()), "2 (Position)"),
    "positions on the group": (lambda: nets.group_net(nets.Position()), "2 (Position)"),
    "zeros at one side": (
        lambda: nets.plain_net(nn.ZeroPad2d((0, 1, 0, 1)), nets.SymmetricConv(stride=2)),
        "2 (ZeroPad2d)",
    ),
    "off-centre stride": (
        lambda: nets.plain_net(nets.SymmetricConv(stride=2)),
        "2 (SymmetricConv)",
    ),
    "a wrong inverse": (lambda: nets.group_net(nets.WrongInverse()), "2 (WrongInverse)"),
    "a permuted channel": (lambda: nets.group_net(nets.SwappedChannels()), "2 (SwappedChannels)"),
    "dropout left on": (lambda: nets.group_net(nets.EternalDropout()), "2 (EternalDropout)"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_attributed_to_its_layer(fault, digits_like):
    make, layer = PLANTED[fault]
    found = failed_certificate(make(), digits_like).error_source
    assert found == f"{layer}: its input is equivariant, its output is not"


def test_control_the_right_inverse_holds(digits_like):
    assert certify(nets.group_net(nets.WrongInverse(right=True)), "C4", digits_like, angles=1).holds


def test_control_a_centred_stride_holds():
    """Every second one of an odd number of pixels is a symmetric choice."""
    images = torch.rand(4, 1, 9, 9)
    assert certify(nets.plain_net(nets.SymmetricConv(stride=2)), "C4", images, angles=1).holds


def test_dropout_left_on_fails_for_the_identity_too(digits_like):
    certificate = failed_certificate(nets.group_net(nets.EternalDropout()), digits_like)
    assert not certificate.elements[0].holds


def test_a_position_added_in_forward_is_attributed_to_the_layer_after_it(digits_like):
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nets.plain_net()[:3], nets.plain_net()[3:]
            self.table = nn.Parameter(torch.randn(8, 8))

        def forward(self, images):
            return self.head(self.body(images) + self.table)

    assert re.fullmatch(
        r"head\.3 \(Powers\) or the code before it, inside the model \(Coded\), whose input is "
        "equivariant: the input of this layer is not equivariant",
        failed_certificate(Coded(), digits_like).error_source,
    )


def test_the_plain_transformer_breaks_at_its_patches(digits_like):
    found = failed_certificate(create_model("vit", **SMALL_VIT), digits_like).error_source
    assert found.startswith("patches.project (Conv2d): its input is equivariant")


def test_the_layers_of_an_orbit_have_the_views_in_the_batch(digits_like):
    model = create_model("orbit_vit", group="C4", **SMALL_VIT)
    layers = certify(model, "C4", digits_like, angles=1).layers
    assert {c.layout for c in layers if c.layer.startswith("model.blocks")} == {"views of C4"}


def test_a_small_fault_is_not_the_source_of_a_large_error(digits_like):
    """Rounding in an early layer does not cause an error a billion times larger."""
    early = nets.Position()
    with torch.no_grad():
        early.table.mul_(1e-9)
    model = nets.group_net(early, nets.SwappedChannels())
    found = failed_certificate(model, digits_like).error_source
    assert found.startswith("3 (SwappedChannels)")


def test_layers_are_measured_only_on_request(digits_like):
    model, scope = nets.group_net(nets.Position()), Scope(layers=False)
    certificate = certify(model, "C4", digits_like, angles=1, scope=scope)
    assert (certificate.layers, certificate.error_source) == ((), "")
    assert not certificate.holds
