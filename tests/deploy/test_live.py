"""The live part of a report: the models in it are those of the run, and nothing is fetched."""

import base64
import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import turnwise
from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.deploy.browser_runtime import BrowserRuntime
from turnwise.deploy.live import live_part
from turnwise.errors import InputError
from turnwise.groups import PlanarGroup
from turnwise.inference.predictor import Predictor
from turnwise.reports.loaded_models import LoadedModel
from turnwise.reports.pages import Section, page

RUNTIME = BrowserRuntime(b"export const nothing = 0;", b"\0asm")
SIZE = 8


@pytest.fixture(scope="module")
def loaded():
    torch.manual_seed(0)
    model = turnwise.create_model(
        "orbit_vit", image_size=SIZE, patch=4, width=16, depth=1, heads=2
    ).eval()
    examples = load_dataset("digits", image_size=SIZE).val.take(torch.arange(3))
    classes = ("<zero>", *map(str, range(1, 10)))
    return LoadedModel("tiny", model, classes, PlanarGroup.named("C4"), examples, "", None)


@pytest.fixture(scope="module")
def part(loaded):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    return live_part([loaded], loaded.examples, RUNTIME)


def data_of(part):
    return json.loads(re.search(r'id="live-data">(.*)</script>', part.html)[1])


def unpacked(text):
    return gzip.decompress(base64.b64decode(text))


def test_the_model_in_the_page_is_the_model(part, loaded):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(unpacked(data_of(part)["models"][0]["file"]))
    images = to_unit(loaded.examples.images)
    (found,) = session.run(["probabilities"], {"images": images.numpy()})
    expected = Predictor(loaded.model).probabilities(images).numpy()
    assert np.abs(found - expected).max() < 1e-5
    assert np.ptp(found, axis=0).max() > 1e-4, "different images, different predictions"


def test_the_page_holds_runtime_and_examples(part, loaded):
    data = data_of(part)
    assert unpacked(data["runtime"]["script"]) == RUNTIME.script
    assert unpacked(data["runtime"]["program"]) == RUNTIME.program
    pixels = base64.b64decode(data["examples"][1]["pixels"])
    assert pixels == loaded.examples.images[1].movedim(0, -1).contiguous().numpy().tobytes()
    assert (data["size"], data["channels"], data["fill"]) == (SIZE, 1, "zeros")
    assert "<zero>" not in part.html, "names of classes are escaped"


def test_its_policy_forbids_every_connection(part):
    html = page("live", [Section("x", part.html)], script=part.script, runs_models=True)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy and "connect-src" not in policy
    assert "'wasm-unsafe-eval' blob:" in policy
    assert "wasm" not in re.search(r'Policy" content="([^"]*)"', page("x", [], script="0"))[1]


def test_numbers_are_refused(loaded):
    numbers = replace(loaded.examples, targets=torch.rand(3, 1))
    with pytest.raises(InputError, match="a live page shows the probabilities of classes"):
        live_part([loaded], numbers, RUNTIME)
