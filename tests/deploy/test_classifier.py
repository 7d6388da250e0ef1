"""Images are decoded for the model, and predicted together without mixing them up."""

import io
import threading

import pytest
import torch
from PIL import Image

from turnwise.deploy import classifier as module
from turnwise.deploy.classifier import Batcher, BusyError, ImageClassifier, open_image
from turnwise.errors import InputError
from turnwise.models import create_model


def model(**options):
    torch.manual_seed(0)
    return create_model("vit", patch=7, width=16, depth=1, heads=2, **options).eval()


@pytest.fixture
def png(digits):
    encoded = io.BytesIO()
    Image.fromarray(digits.val.images[200, 0].numpy()).save(encoded, "PNG")
    return encoded.getvalue()


def test_an_image_of_any_mode_is_converted_for_the_model():
    for mode in ("RGB", "RGBA", "P", "I;16", "1"):
        encoded = io.BytesIO()
        Image.new(mode, (40, 30)).save(encoded, "PNG")
        assert open_image(encoded.getvalue(), 28, 1).shape == (1, 28, 28)
        assert open_image(encoded.getvalue(), 28, 3).shape == (3, 28, 28)


def test_the_limit_of_pixels_is_checked_before_decoding():
    encoded = io.BytesIO()
    Image.new("1", (5000, 5000)).save(encoded, "PNG")
    with pytest.raises(InputError, match="25,000,000 pixels, and 16,000,000 is the limit"):
        open_image(encoded.getvalue(), 28, 1)


def test_only_the_most_probable_of_many_classes_are_returned(png):
    many = model(num_classes=30)
    classifier = ImageClassifier("m", many, tuple(map(str, range(30))))
    (row,) = classifier.outputs(classifier.rotate(classifier.read(png), 0.0)[None])
    found = classifier.describe(row)
    assert found["classes"] == [str(c) for c in sorted(row.topk(10).indices.tolist())]
    assert found["label"] == str(int(row.argmax()))
    assert max(found["probabilities"]) == pytest.approx(float(row.max()))


def test_a_model_of_maps_is_refused():
    maps = torch.nn.Conv2d(1, 3, 3).eval()
    with pytest.raises(InputError, match="does not say which images"):
        ImageClassifier("m", maps, ())


@pytest.fixture
def slow():
    """A classifier that predicts when it may, and the sizes of its batches."""
    classifier = ImageClassifier("m", model(), ())
    run, gate, sizes = classifier.predictor.run, threading.Event(), []

    def gated(images):
        assert gate.wait(20)
        sizes.append(len(images))
        return run(images)

    classifier.predictor.run = gated
    return classifier, gate, sizes


def test_waiting_images_are_predicted_together_and_in_order(slow):
    classifier, gate, sizes = slow
    batcher = Batcher(classifier)
    images = torch.rand(9, 1, 28, 28)
    futures = [batcher.submit(images[i : i + 1]) for i in range(9)]
    gate.set()
    found = torch.cat([future.result(20) for future in futures])
    batcher.close()
    torch.testing.assert_close(found, classifier.outputs(images))
    assert sizes[-1] == 9 and len(sizes) <= 3, "the first batch, and all that waited meanwhile"


def test_a_batch_is_bounded_and_too_many_are_refused(slow, monkeypatch):
    classifier, gate, sizes = slow
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    batcher = Batcher(classifier)
    futures = []
    with pytest.raises(BusyError):
        for _ in range(20):
            futures.append(batcher.submit(torch.rand(1, 1, 28, 28)))
    gate.set()
    assert all(future.result(20).shape == (1, 10) for future in futures)
    batcher.close()
    assert max(sizes) <= 4
    with pytest.raises(BusyError):
        batcher.submit(torch.rand(1, 1, 28, 28))


def test_a_failure_of_the_model_is_reported_and_the_next_batch_works(slow):
    classifier, gate, _ = slow
    run = classifier.predictor.run

    def fail(images):
        classifier.predictor.run = run
        raise RuntimeError("out of memory")

    classifier.predictor.run = fail
    gate.set()
    batcher = Batcher(classifier)
    with pytest.raises(RuntimeError, match="memory"):
        batcher.submit(torch.rand(1, 1, 28, 28)).result(20)
    assert batcher.submit(torch.rand(1, 1, 28, 28)).result(20).shape == (1, 10)
    batcher.close()
