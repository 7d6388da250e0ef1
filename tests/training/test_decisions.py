"""Temperature and threshold come from the validation images, and only if they are requested."""

import pytest
import torch
from torch import nn

from turnwise.data.dataset import Dataset, Examples, Target
from turnwise.data.targets import make_kind
from turnwise.training.decisions import choose_decisions, predict_batches
from turnwise.training.module import SupervisedModule
from turnwise.training.recipe import make_recipe

CPU = torch.device("cpu")


class TooSure(nn.Module):
    """The logits of class 1 are eight times the log odds of the mean grey value."""

    def __init__(self):
        super().__init__()
        self.preprocess = nn.Identity()
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, images):
        grey = images.mean((1, 2, 3)).clamp(0.01, 0.99)
        return torch.stack([torch.zeros_like(grey), self.scale * grey.logit()], dim=1)


class Forgetful(TooSure):
    """Forgets most pixels, but not in eval mode."""

    def forward(self, images):
        return super().forward(nn.functional.dropout(images, 0.9, self.training))


@pytest.fixture
def dataset():
    """Images of the value p are of class 1 with probability p; the test images are reversed."""
    grey = torch.randint(20, 236, (1500, 1, 1, 1)).expand(-1, 1, 2, 2).byte().contiguous()
    labels = (torch.rand(1500) < grey[:, 0, 0, 0] / 255).long()
    val, test = Examples(grey, labels), Examples(grey, 1 - labels)
    target = Target("class", ("well", "ill"))
    return Dataset("toy", target, val, val, test, "made here", "none")


def decide(dataset, *settings):
    recipe = make_recipe({"model": {"name": "vit"}, "data": {"name": "digits"}}, settings)
    module = SupervisedModule(TooSure(), recipe, dataset.target_kind)
    return module, choose_decisions(module, dataset, CPU)


def test_the_temperature_is_fitted_to_validation(dataset):
    _, kind = decide(dataset)
    assert kind.temperature == pytest.approx(8.0, rel=0.2)
    assert kind.threshold is None


def test_the_threshold_is_one_of_calibrated_probabilities(dataset):
    module, kind = decide(dataset, "evaluation.sensitivity=0.9")
    assert 0.05 < kind.threshold < 0.6
    outputs = module.model(dataset.val.images / 255)
    scores = kind.point_scores(kind.measure(kind.predict(outputs), dataset.val.targets))
    assert 0.9 <= scores["sensitivity"] < 0.92
    _, raw = decide(dataset, "evaluation.sensitivity=0.9", "evaluation.calibrate=false")
    assert raw.temperature == 1.0 and raw.threshold < kind.threshold


def test_nothing_is_chosen_unless_requested(dataset):
    _, kind = decide(dataset, "evaluation.calibrate=false")
    assert kind == make_kind("class", ("well", "ill"))


def test_outputs_are_those_of_the_model_in_eval_mode(dataset):
    module, _ = decide(dataset)
    module.model = Forgetful()
    images = torch.rand(6, 1, 2, 2)
    batches = [(images[:4], None), (images[4:], None)]
    expected = module.model.eval()(module.model.preprocess(images))
    torch.testing.assert_close(predict_batches(module.train(), batches, CPU), expected)
