"""The plain vision transformer: shapes and sizes, and that it is not equivariant."""

import pytest
import torch

from turnwise.errors import InputError
from turnwise.groups import equivariance_error
from turnwise.models import create_model

SMALL = {"width": 16, "depth": 2, "heads": 2}


def test_it_maps_images_to_logits():
    model = create_model("vit", num_classes=7, in_chans=3, image_size=32, patch=8, **SMALL)
    images = torch.rand(2, 3, 32, 32)
    assert model(images).shape == (2, 7)
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), model(images))


def test_it_is_not_invariant():
    """A negative control for the other models: a plain transformer knows which way is up."""
    model = create_model("vit", **SMALL).double().eval()
    assert equivariance_error(model, "C4", torch.rand(2, 1, 28, 28).double()) > 0.01
    assert model.group.name == "C1"


def test_its_output_depends_on_positions():
    model = create_model("vit", image_size=8, **SMALL).double()
    images = torch.rand(1, 1, 8, 8).double()
    swapped = torch.cat([images[..., 4:], images[..., :4]], dim=-1)
    assert (model(swapped) - model(images)).abs().max() > 1e-4


def test_first_loss_is_that_of_uniform_probabilities():
    """Small initial weights: the loss is ln(classes), not hundreds."""
    model = create_model("vit")
    loss = torch.nn.functional.cross_entropy(model(torch.rand(8, 1, 28, 28)), torch.arange(8))
    assert loss.item() == pytest.approx(2.303, abs=0.2)


def test_the_error_for_a_size_that_patches_do_not_cover_names_the_nearest():
    with pytest.raises(InputError, match=r"image_size = 30 .* try 28 or 32"):
        create_model("vit", image_size=30)
    assert create_model("vit", **SMALL).exact_size(32) == (28,), "its positions are for one size"


@pytest.mark.parametrize("shape", [(2, 3, 28, 28), (2, 1, 32, 32), (2, 1, 28, 32)])
def test_the_error_for_a_wrong_shape_names_the_right_one(shape):
    with pytest.raises(InputError, match=r"takes images of shape \(1, 28, 28\)"):
        create_model("vit", **SMALL)(torch.rand(shape))


def test_gradients_reach_every_parameter():
    model = create_model("vit", **SMALL)
    model(torch.rand(2, 1, 28, 28)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@torch.no_grad()
def test_a_class_token_reads_all_patches_and_is_normalised_in_the_head():
    model = create_model("vit", pool="class", mlp_ratio=2, **SMALL).double().eval()
    images = torch.rand(2, 1, 28, 28).double()
    tokens = model.forward_features(images)
    assert tokens.shape == (2, 50, 16)
    assert torch.equal(model.pool(tokens), tokens[:, 0])
    assert model.blocks[0].mlp[0].out_features == 32
    norm, linear = model.head
    torch.testing.assert_close(model(images), linear(norm(tokens[:, 0])))
    features, maps = model.forward_intermediates(images)
    torch.testing.assert_close(features, tokens)
    torch.testing.assert_close(maps[-1], tokens[:, 1:].mT.unflatten(2, (7, 7)))
    images[:, :, -4:, -4:] += 1
    assert (model(images) - linear(norm(tokens[:, 0]))).abs().max() > 1e-6
    model.reset_classifier(3)
    assert model(images).shape == (2, 3)
