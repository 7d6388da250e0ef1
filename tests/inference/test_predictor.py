"""Batches, precision and padding change no output; TF32 is off while a predictor runs."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from turnwise.data import Examples
from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.evaluation.shifts import predict_shifted
from turnwise.evaluation.transformations import predict_over_group
from turnwise.geometry.warps import keep_disc, rotate_image
from turnwise.groups import PlanarGroup
from turnwise.inference import Predictor
from turnwise.inference.predictor import device_of, full_precision
from turnwise.models import create_model

BACKENDS = (torch.backends.cudnn, torch.backends.cuda.matmul)
SMALL = {"width": 16, "heads": 2, "depth": 1}


class Linear(nn.Module):
    """A linear classifier that records its mode and the size of each batch."""

    def __init__(self, pixels=64):
        super().__init__()
        self.linear = nn.Linear(pixels, 3)
        self.batches, self.modes = [], []

    def preprocess(self, images):
        return images * 2 - 1

    def forward(self, images):
        self.batches.append(len(images))
        self.modes.append(self.training)
        return 5 * self.linear(images.flatten(1))


class Pixels(nn.Module):
    """Returns its pixels as logits; its attributes are named as those of a model in a file."""

    batch, precision = nn.Identity(), 16

    def forward(self, images):
        return images.flatten(1)


@pytest.fixture
def images():
    return torch.randint(256, (7, 1, 5, 5), dtype=torch.uint8)


def by_hand(model, images):
    with torch.no_grad():
        return model(images.float() / 255 * 2 - 1).softmax(-1)


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_batches_of_any_size_give_the_same_probabilities(images, batch_size):
    model = Linear(25)
    found = Predictor(model, batch_size=batch_size).probabilities(images)
    assert max(model.batches) == min(batch_size, 7)
    torch.testing.assert_close(found, by_hand(model, images))
    torch.testing.assert_close(found.sum(-1), torch.ones(7))
    assert not found.requires_grad


def test_a_transformation_is_applied_to_each_batch_before_preprocessing(images):
    model = Linear(25)
    found = Predictor(model, batch_size=3).probabilities(images, lambda x: x.flip(-1))
    torch.testing.assert_close(found, by_hand(model, images.flip(-1)))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_runs_in_eval_mode_and_keeps_its_own(images, training):
    model = Linear(25).train(training)
    Predictor(model).probabilities(images)
    assert model.modes == [False]
    assert model.training is training


def test_an_error_in_the_model_leaves_its_mode(images):
    class Failing(Linear):
        def forward(self, images):
            raise KeyError

    model = Failing().train()
    with pytest.raises(KeyError):
        Predictor(model).logits(images)
    assert model.training


def test_a_dictionary_of_arrays_in_and_out():
    """Columns that are no images are returned as they are, so that an engine can chain steps."""
    model = create_model("vit", num_classes=4, **SMALL).eval()
    predict = Predictor(model, outputs=("probabilities", "embedding", "logits"))
    batch = {"image": np.random.default_rng(0).random((3, 1, 28, 28)), "name": ["a", "b", "c"]}
    found = predict(batch)
    assert found["name"] == ["a", "b", "c"] and "image" not in found
    assert all(isinstance(found[name], np.ndarray) for name in predict.outputs)
    prepared = model.preprocess(torch.from_numpy(batch["image"]).float())
    features = model.forward_features(prepared)
    expected = {
        "embedding": model.forward_head(features, pre_logits=True),
        "logits": model(prepared),
        "probabilities": model(prepared).softmax(-1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(torch.from_numpy(found[name]), value.detach())


def test_a_predictor_is_pickled_and_takes_read_only_arrays():
    """As parallel engines do with it."""
    predict = Predictor(create_model("orbit_vit", **SMALL), ("embedding", "probabilities"))
    images = np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32)[..., ::-1]
    images.flags.writeable = False
    expected, found = (
        predict({"image": images}),
        pickle.loads(pickle.dumps(predict))({"image": images}),
    )
    assert expected.keys() == found.keys() == {"embedding", "probabilities"}
    assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_a_batch_without_images_is_refused():
    with pytest.raises(InputError, match="needs a column image; it has name, path"):
        Predictor(Pixels())({"name": [], "path": []})


def test_the_embedding_alone_runs_no_classifier():
    model = create_model("vit", **SMALL)
    model.head.register_forward_hook(lambda *_: pytest.fail("the classifier ran"))
    found = Predictor(model, ("embedding",)).run(torch.zeros(2, 1, 28, 28))
    assert found["embedding"].shape == (2, 16)


def test_a_model_outside_the_contract_has_no_embedding(images):
    with pytest.raises(InputError, match="a Linear has no embedding"):
        Predictor(Linear(25), ("embedding",)).run(images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": ("features",)}, "unknown output 'features'"),
        ({"batch_size": 0}, "batch_size = 0 must be at least 1"),
        ({"precision": "float8"}, "unknown precision 'float8'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        Predictor(Linear(), **options)


@pytest.mark.parametrize("output", [lambda x: (x, x), lambda x: x[:1].flatten(1)])
def test_a_model_must_return_one_row_for_each_image(images, output):
    class Odd(nn.Module):
        def forward(self, images):
            return output(images)

    with pytest.raises(InputError, match=r"must return (a tensor|one row of logits)"):
        Predictor(Odd()).logits(images)


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_a_precision_is_that_of_a_copy(precision, digits_like):
    model = Linear().train()
    predictor = Predictor(model, precision=precision)
    assert predictor.precision == predictor.model.linear.weight.dtype == getattr(torch, precision)
    assert model.linear.weight.dtype == torch.float32 and model.training
    assert predictor.logits(digits_like).dtype == torch.float64


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_images_are_transformed_before_they_are_rounded(precision, digits_like):
    """Between its pixels no image can be sampled in bfloat16."""
    kind = getattr(torch, precision)
    model = nn.Sequential(Pixels(), nn.Linear(64, 64, dtype=kind))
    nn.init.eye_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    found = Predictor(model).logits(digits_like, lambda images: rotate_image(images, 45.0))
    expected = rotate_image(digits_like.float(), 45.0).to(kind)
    assert torch.equal(found, expected.flatten(1).double())


def test_a_model_without_parameters_runs_in_the_requested_precision(digits_like):
    images = digits_like.double() + 1e-12
    assert torch.equal(Predictor(Pixels(), precision="float64").logits(images), images.flatten(1))
    assert torch.equal(Predictor(Pixels()).logits(images), images.float().flatten(1).double())


def test_images_in_float64_are_not_rounded(digits_like):
    model = Linear().double()
    images = digits_like.double() + 1e-12
    expected = 5 * model.linear(images.flatten(1) * 2 - 1)
    found = Predictor(model).logits(images)
    assert torch.allclose(found, expected, rtol=0, atol=1e-14)


def test_a_model_may_write_on_its_input(images):
    class Writing(nn.Module):
        def forward(self, images):
            return images.mul_(0).flatten(1)

    given = images / 255
    before = given.clone()
    Predictor(Writing()).logits(given)
    assert torch.equal(given, before)


def test_one_logit_is_the_log_odds_of_the_second_class():
    found = make_kind("class").predict(torch.tensor([[0.0], [100.0]]))
    assert torch.allclose(found, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))


def test_the_device_is_that_of_the_parameters():
    assert device_of(nn.Linear(2, 2)) == torch.device("cpu")
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")
    assert device_of(nn.Identity()) == torch.device("cpu")


# TF32


def tf32_allowed():
    return [backend.allow_tf32 for backend in BACKENDS]


@pytest.fixture(params=[True, False])
def allowed(request):
    before = tf32_allowed()
    for backend in BACKENDS:
        backend.allow_tf32 = request.param
    yield request.param
    for backend, value in zip(BACKENDS, before, strict=True):
        backend.allow_tf32 = value


def test_tf32_is_off_inside_and_as_before_outside(allowed):
    with full_precision():
        assert tf32_allowed() == [False, False]
    assert tf32_allowed() == [allowed, allowed]


def test_tf32_is_as_before_after_an_error(allowed):
    with pytest.raises(KeyError), full_precision():
        raise KeyError
    assert tf32_allowed() == [allowed, allowed]


def test_every_measurement_runs_without_tf32(allowed):
    model, seen = create_model("vit", **SMALL), []
    model.register_forward_hook(lambda *_: seen.append(tf32_allowed()))
    images = torch.randint(0, 255, (3, 1, 28, 28), dtype=torch.uint8)
    examples = Examples(images, torch.zeros(3, dtype=torch.long))
    predict_over_group(Predictor(model), PlanarGroup.named("C2"), images)
    predict_shifted(model, examples.images, [0, 1], "horizontal")
    copied = Predictor(model, precision="float64")
    copied.logits(images)
    assert len(seen) == 5
    assert all(found == [False, False] for found in seen)
    assert tf32_allowed() == [allowed, allowed]


def test_a_model_of_discs_sees_only_the_disc(digits_like):
    """As in training with data.fill=disc; the outputs do not depend on the corners."""
    model = nn.Flatten()
    whole = Predictor(model).logits(digits_like)
    model.fill = "disc"
    shown = Predictor(model).logits(digits_like)
    torch.testing.assert_close(shown, keep_disc(digits_like).flatten(1).double())
    assert not torch.equal(shown, whole)
