"""Group-convolutional networks: exact invariance, negative controls, definitions, known sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import (
    GRID_GROUPS,
    PlanarGroup,
    act_on_field,
    act_on_image,
    equivariance_error,
    equivariance_errors,
)
from turnwise.models import create_model
from turnwise.models.g_cnn import LAYOUTS


def network(group="C4", size=28, **options):
    return create_model("g_cnn", group=group, image_size=size, **options).double().eval()


def random_images(rows=28, cols=28, channels=1):
    return torch.rand(2, channels, rows, cols, dtype=torch.float64)


@pytest.mark.parametrize("name", GRID_GROUPS)
def test_the_logits_are_invariant_and_the_features_equivariant(name):
    model, x = network(name, width=3), random_images()
    assert equivariance_error(model, name, x) < 1e-12
    error = equivariance_error(model.forward_features, name, x, act_out=act_on_field)
    assert error < 1e-12


def test_invariance_in_training_and_after_it():
    model = create_model("g_cnn", group="D4", width=3, dropout=0.0).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(torch.rand(4, 1, 28, 28)), torch.arange(4)).backward()
        optimiser.step()
    assert equivariance_error(model.double(), "D4", random_images()) < 1e-12
    assert equivariance_error(model.eval(), "D4", random_images()) < 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_invariance_of_the_layout_for_pcam(name):
    """The published network with eight group elements is not: its logits change by about 1."""
    model = network(name, size=36, data="pcam", width=4, in_chans=3)
    assert equivariance_error(model, name, random_images(36, 36, 3)) < 1e-10


def test_invariance_on_a_rectangle():
    assert equivariance_error(network("D2", width=3), "D2", random_images(28, 32)) < 1e-12


def test_finer_groups_are_exact_on_the_elements_of_the_grid():
    model = network("C8", width=3)
    group = PlanarGroup.named("C8")
    errors = equivariance_errors(model, group, random_images(), elements=group.grid_elements())
    assert max(errors) < 1e-12


def test_outputs_differ_between_images_and_features_between_orientations():
    model, x = network("D4", width=3), random_images()
    assert (model(x[:1]) - model(x[1:])).abs().max() > 1e-3
    field = model.forward_features(x)
    for g in range(1, 8):
        assert (act_on_field("D4", g, field) - field).abs().max() > 1e-3


def test_negative_control():
    """A plain network, one of a smaller group, and one with a wrong table fail the same check."""
    assert equivariance_error(network("C1", width=3), "C4", x := random_images()) > 1e-3
    assert equivariance_error(network("C4", width=3), "D4", x) > 1e-3
    model = network("C4", width=3)
    with torch.no_grad():  # the filters of one layer, with the wrong group element
        model.layers[0].filters.source = model.layers[0].filters.source.roll(1)
    assert equivariance_error(model, "C4", x) > 1e-3


def test_under_c1_it_is_an_ordinary_network():
    """C1, layer by layer in plain torch, on a rectangle."""
    model, x = network("C1", width=3), random_images(28, 30)
    maps = x
    convs = [m for m in model.layers if hasattr(m, "weight")]
    norms = [m.norm for m in model.layers if hasattr(m, "norm")]
    assert len(convs) == 6
    for number, (conv, norm) in enumerate(zip(convs, norms, strict=True), start=1):
        weight = conv.weight.reshape(3, -1, 3, 3)
        maps = F.relu(norm(F.conv2d(maps, weight, conv.bias)))
        maps = F.max_pool2d(maps, 2) if number == 2 else maps
    scores = F.conv2d(maps, model.head.weight.reshape(10, 3, 4, 4), model.head.bias)
    assert scores.shape[2:] == (1, 2)
    torch.testing.assert_close(model(x), scores.mean(dim=(2, 3)))


def test_definition_of_the_pooling():
    model, x = network("D4", width=3), random_images()
    field = model.forward_features(x)
    scores = model.head(field.permute(0, 4, 1, 2, 3))  # (batch, class, group, row, col)
    assert scores.shape == (2, 10, 8, 1, 1)
    for b in range(2):
        by_element = torch.stack([scores[b, :, h, 0, 0] for h in range(8)])
        torch.testing.assert_close(model(x)[b], by_element.amax(dim=0))


def test_published_sizes():
    """P4CNN has 10 channels and about 25,000 parameters, as 20 channels without group elements."""
    p4 = create_model("g_cnn", group="p4")
    assert p4.layers[0].weight.shape[0] == 10
    assert sum(p.numel() for p in p4.parameters()) == 24680
    z2 = create_model("g_cnn", group="z2")
    assert sum(p.numel() for p in z2.parameters()) == pytest.approx(24680, rel=0.15)
    assert len(LAYOUTS["rotmnist"].kernels) == 7
    assert p4.forward_features(torch.rand(1, 1, 28, 28)).shape == (1, 4, 4, 4, 10)
    stem = create_model("g_cnn", group="p4m", data="pcam", image_size=96, in_chans=3)
    assert stem.layers[0].weight.shape[0] == 8
    assert LAYOUTS["pcam"].kernels == (5,) * 8


def test_first_loss_is_that_of_uniform_probabilities():
    model = create_model("g_cnn")
    loss = F.cross_entropy(model(torch.rand(8, 1, 28, 28)), torch.arange(8))
    assert loss.item() == pytest.approx(2.303, abs=0.6)


def test_gradients_reach_every_parameter():
    model = create_model("g_cnn", group="D4", width=3, dropout=0.0)
    model(torch.rand(4, 1, 28, 28)).square().sum().backward()
    dead = {n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12}
    before_batch_norm = {n for n, _ in model.layers.named_parameters() if n.endswith("bias")}
    assert dead <= {f"layers.{n}" for n in before_batch_norm}


def test_dropout_is_on_in_training_only():
    model, x = create_model("g_cnn", width=3), torch.rand(2, 1, 28, 28)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
    assert any(isinstance(part, nn.Dropout) for part in model.layers)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: network(size=27), r"image_size = 27 cannot be exact .* try 28"),
        (lambda: network(data="pcam"), r"image_size = 28 cannot be exact .* try 33"),
        (lambda: network(data="cifar"), "unknown data 'cifar'"),
        (lambda: network(dropout=1.0), "dropout = 1.0 must be from 0 to below 1"),
        (lambda: network(width=-1), "width = -1 must be from 0"),
        (lambda: network()(random_images(27, 27)), "image_size = 27 cannot be exact"),
        (lambda: network()(random_images(channels=3)), "takes images with 1 channels, got 3"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_invariance_in_float32():
    model, x = network("D4").float(), random_images().float()
    for g in range(8):
        torch.testing.assert_close(model(act_on_image("D4", g, x)), model(x), rtol=1e-4, atol=1e-5)
