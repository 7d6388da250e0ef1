"""TF32 is off inside and what it was outside; and what measures runs inside."""

import pytest
import torch

from turnwise.data import Examples
from turnwise.evaluation.certificate.scores import answerer
from turnwise.evaluation.rotations import predict_probabilities
from turnwise.evaluation.shifts import predict_shifted
from turnwise.inference.precision import full_precision
from turnwise.models import create_model

PARTS = (torch.backends.cudnn, torch.backends.cuda.matmul)


@pytest.fixture(params=[True, False])
def allowed(request):
    before = state()
    for part in PARTS:
        part.allow_tf32 = request.param
    yield request.param
    for part, value in zip(PARTS, before, strict=True):
        part.allow_tf32 = value


def state():
    return [part.allow_tf32 for part in PARTS]


def test_off_inside_and_as_before_outside(allowed):
    with full_precision():
        assert state() == [False, False]
    assert state() == [allowed, allowed]


def test_as_before_after_an_error(allowed):
    with pytest.raises(KeyError), full_precision():
        raise KeyError
    assert state() == [allowed, allowed]


def test_everything_that_measures_runs_inside(allowed):
    model = create_model("vit", width=16, heads=2, depth=1)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(state()))
    images = torch.randint(0, 255, (3, 1, 28, 28), dtype=torch.uint8)
    pictures = Examples(images, torch.zeros(3, dtype=torch.long))
    predict_probabilities(model, pictures)
    predict_shifted(model, pictures, [0, 1], "horizontal")
    measured = answerer(model, "float32", 2)
    measured.model.register_forward_hook(lambda *_: seen.append(state()))
    measured(images.float())
    assert len(seen) >= 5
    assert all(found == [False, False] for found in seen)
    assert state() == [allowed, allowed]
