"""Planted faults are found, and named to the layer; what is right is not accused."""

import re

import pytest
import small_networks as nets
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.models import create_model


def found(model, images, group="C4"):
    certificate = certify(model, group, images, angles=1)
    assert not certificate.holds
    return certificate


@pytest.mark.parametrize("net", [nets.group_net, nets.plain_net])
def test_control_without_a_fault_the_network_holds(net, digits_like):
    certificate = certify(net(), "C4", digits_like, angles=1)
    assert certificate.holds
    assert certificate.entry == ""
    assert len(certificate.layers) == (7 if net is nets.group_net else 6)
    assert all(layer.error < 1e-12 for layer in certificate.layers)


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
def test_a_planted_fault_is_named_to_the_layer(fault, digits_like):
    make, layer = PLANTED[fault]
    assert found(make(), digits_like).entry == (
        f"{layer}: what it is given holds, what it gives does not"
    )


def test_control_the_right_inverse_holds(digits_like):
    assert certify(nets.group_net(nets.WrongInverse(right=True)), "C4", digits_like, angles=1).holds


def test_control_a_centred_stride_holds():
    """Of an odd number of pixels, every second one is symmetric."""
    images = torch.rand(4, 1, 9, 9)
    assert certify(nets.plain_net(nets.SymmetricConv(stride=2)), "C4", images, angles=1).holds


def test_dropout_left_on_fails_for_the_identity_too(digits_like):
    certificate = found(nets.group_net(nets.EternalDropout()), digits_like)
    assert not certificate.elements[0].holds


def test_a_position_in_the_code_is_named_to_what_follows_it(digits_like):
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nets.plain_net()[:3], nets.plain_net()[3:]
            self.table = nn.Parameter(torch.randn(8, 8))

        def forward(self, images):
            return self.head(self.body(images) + self.table)

    assert re.fullmatch(
        r"head\.3 \(Powers\) or the code before it, inside the model \(Coded\), whose input holds: "
        "what this layer is given already breaks",
        found(Coded(), digits_like).entry,
    )


def test_the_plain_transformer_breaks_at_its_patches(digits_like):
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8)
    assert found(model, digits_like).entry.startswith("patches.project (Conv2d): what it is given")


def test_layers_of_an_orbit_are_read_as_views(digits_like):
    model = create_model("orbit_vit", group="C4", width=16, depth=1, heads=2, image_size=8)
    layers = certify(model, "C4", digits_like, angles=1).layers
    assert {layer.reading for layer in layers if layer.layer.startswith("model.blocks")} == {
        "views of C4"
    }


def test_the_smaller_fault_beside_a_larger_one_is_not_the_cause(digits_like):
    """Rounding in an early layer is no entry for an error a billion times larger."""
    early = nets.Position()
    with torch.no_grad():
        early.table.mul_(1e-9)
    model = nets.group_net(early, nets.SwappedChannels())
    assert found(model, digits_like).entry.startswith("3 (SwappedChannels)")


def test_layers_need_not_be_looked_at(digits_like):
    scope = Scope(layers=False)
    certificate = certify(nets.group_net(nets.Position()), "C4", digits_like, angles=1, scope=scope)
    assert (certificate.layers, certificate.entry) == ((), "")
    assert not certificate.holds


def test_what_else_is_written_down(digits_like):
    certificate = certify(nets.group_net(), "C4", digits_like, angles=1)
    assert certificate.versions.keys() == {"turnwise", "torch", "python", "platform"}
    other = certify(nets.group_net(), "C4", digits_like.flip(0), angles=1)
    assert len(certificate.data_sha256) == 64
    assert certificate.data_sha256 != other.data_sha256


def test_an_answer_that_is_no_row_of_scores_is_refused(digits_like):
    with pytest.raises(InputError, match=r"5 pictures with shape \(5, 1, 8, 8\)"):
        certify(nn.Tanh(), "C4", digits_like)


@pytest.mark.parametrize("count", [0, 1])
def test_a_certificate_needs_two_pictures(count):
    """With one, no answer could differ from another's, and an exact model would fail."""
    with pytest.raises(InputError, match=f"needs 2 pictures or more, .* got {count}"):
        certify(nets.group_net(), "C4", torch.rand(count, 1, 8, 8), angles=1)
