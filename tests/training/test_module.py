"""The Lightning module: the loss, mixup, gradient clipping, validation."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.models import create_model
from turnwise.training.module import GatheredScores, SupervisedModule
from turnwise.training.recipe import make_recipe

TEN = make_kind("class", tuple("0123456789"))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_smoothed_cross_entropy(smoothing, monkeypatch):
    recipe = make_recipe(
        {"model": {"name": "vit"}, "data": {"name": "digits"}},
        [f"optimisation.label_smoothing={smoothing}"],
    )
    model = create_model("vit", width=16, heads=2, depth=1)
    model.preprocess.fit(torch.randint(0, 99, (4, 1, 28, 28), dtype=torch.uint8))
    module = SupervisedModule(model, recipe, TEN)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    log_p = model(model.preprocess(images)).log_softmax(-1)
    target = (1 - smoothing) * F.one_hot(labels, 10) + smoothing / 10
    expected = -(target * log_p).sum(-1).mean()
    torch.testing.assert_close(module.training_step((images, labels), 0), expected)


def test_the_loss_of_mixed_images_is_weighted_by_both_labels(monkeypatch):
    """λ depends on the step alone."""
    recipe = make_recipe(
        {"model": {"name": "vit"}, "data": {"name": "digits"}}, ["optimisation.mixup=0.4"]
    )
    model = create_model("vit", width=16, heads=2, depth=1).eval()
    model.preprocess.fit(torch.randint(0, 99, (4, 1, 28, 28), dtype=torch.uint8))
    module = SupervisedModule(model, recipe, TEN)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    seen = []
    monkeypatch.setattr(model, "forward", lambda x, inner=model.forward: seen.append(x) or inner(x))
    losses = []
    for step in (0, 0, 1):
        monkeypatch.setattr(SupervisedModule, "global_step", step)
        losses.append(module.training_step((images, labels), 0))
    assert losses[0] == losses[1] != losses[2]
    shown = model.preprocess(images)
    step = shown - shown.flip(0)
    share = ((seen[0] - shown.flip(0)) * step).sum() / step.square().sum()
    torch.testing.assert_close(seen[0], torch.lerp(shown.flip(0), shown, share))
    log_p = model(seen[0]).log_softmax(-1)
    own, other = (-log_p[torch.arange(6), these].mean() for these in (labels, labels.flip(0)))
    torch.testing.assert_close(losses[0], share * own + (1 - share) * other)
    assert abs((2 * share - 1) * (own - other)) > 1e-3  # exchanged labels would differ


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_are_clipped_by_their_norm_for_fused_steps_too(fused, monkeypatch):
    """Lightning clips for ordinary steps and refuses to for fused ones."""
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}})
    model = create_model("vit", width=16, heads=2, depth=1)
    monkeypatch.setattr(SupervisedModule, "fused", fused)
    module = SupervisedModule(model, recipe, TEN)
    calls = []
    monkeypatch.setattr(module, "clip_gradients", lambda *given: calls.append(given))
    model(torch.rand(2, 1, 28, 28)).square().sum().backward()
    optimiser = torch.optim.SGD(model.parameters())
    module.configure_gradient_clipping(optimiser, 0.01, "norm")
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert calls == ([] if fused else [(optimiser, 0.01, "norm")])
    assert (norm <= 0.0101) == fused


def test_gradients_are_not_clipped_by_default(monkeypatch):
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}})
    monkeypatch.setattr(SupervisedModule, "fused", True)
    module = SupervisedModule(create_model("vit", width=16, heads=2, depth=1), recipe, TEN)
    module.model(torch.rand(2, 1, 28, 28)).square().sum().mul(1e6).backward()
    before = module.model.head.weight.grad.clone()
    module.configure_gradient_clipping(torch.optim.SGD(module.parameters()))
    assert torch.equal(module.model.head.weight.grad, before)


def test_validation_runs_the_model_without_compilation(monkeypatch):
    """The compiled call is replaced by zeros, which training uses and validation does not."""
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}})
    model = create_model("vit", width=16, heads=2, depth=1)
    module = SupervisedModule(model, recipe, TEN)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    images = torch.rand(8, 1, 28, 28)
    labels = model(model.preprocess(images)).argmax(-1)
    zeros = torch.zeros(8, 10, requires_grad=True)
    monkeypatch.setattr(model, "_compiled_call_impl", lambda images: zeros)
    module.validation_step((images, labels), 0)
    assert module.val_scores.compute()["accuracy"] == 1.0
    loss = module.training_step((images, labels), 0)
    torch.testing.assert_close(loss, torch.tensor(10.0).log())


def test_weights_of_classes_change_the_training_loss_and_not_that_of_validation(monkeypatch):
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}})
    model = create_model("vit", width=16, heads=2, depth=1)
    weights = tuple(float(1 + label) for label in range(10))
    module = SupervisedModule(model, recipe, TEN, weights)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    logits = model(model.preprocess(images))
    expected = F.cross_entropy(logits, labels, torch.tensor(weights))
    torch.testing.assert_close(module.training_step((images, labels), 0), expected)
    module.validation_step((images, labels), 0)
    torch.testing.assert_close(module.val_loss.compute(), F.cross_entropy(logits, labels))


def test_scores_are_those_of_all_batches_together():
    """The mean of the scores of batches would be another number."""
    predictions, labels = torch.rand(30, 10).softmax(1), torch.arange(30) % 10
    metric = GatheredScores(TEN)
    for part in (slice(0, 4), slice(4, 30)):
        metric.update(predictions[part], labels[part])
    assert metric.compute() == TEN.point_scores(TEN.measure(predictions, labels))
    metric.reset()
    metric.update(predictions[:5], labels[:5])
    assert metric.compute()["accuracy"] != TEN.point_scores(TEN.measure(predictions, labels))


def test_masks_are_not_mixed():
    recipe = make_recipe(
        {"model": {"name": "vit"}, "data": {"name": "digits"}}, ["optimisation.mixup=0.2"]
    )
    with pytest.raises(InputError, match="do not combine targets of the kind 'mask'"):
        SupervisedModule(create_model("vit"), recipe, make_kind("mask", ("a", "b")))
