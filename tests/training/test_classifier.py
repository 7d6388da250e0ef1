"""What is trained on: cross-entropy of the prepared pictures, smoothed as the recipe says."""

import pytest
import torch
import torch.nn.functional as F

from turnwise.models import create_model
from turnwise.training.classifier import Classifier
from turnwise.training.recipe import make_recipe


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_formula(smoothing, monkeypatch):
    recipe = make_recipe(
        {"model": {"name": "vit"}, "data": {"name": "digits"}},
        [f"optimisation.label_smoothing={smoothing}"],
    )
    model = create_model("vit", width=16, heads=2, depth=1)
    model.preprocess.fit(torch.randint(0, 99, (4, 1, 28, 28), dtype=torch.uint8))
    module = Classifier(model, recipe, 10)
    monkeypatch.setattr(module, "log", lambda *args, **kwargs: None)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    log_p = model(model.preprocess(images)).log_softmax(-1)
    target = (1 - smoothing) * F.one_hot(labels, 10) + smoothing / 10
    expected = -(target * log_p).sum(-1).mean()
    torch.testing.assert_close(module.training_step((images, labels), 0), expected)
