"""Recorded forward passes; a graph that calls the function again stands for CUDA's."""

import contextlib
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from turnwise.errors import InputError
from turnwise.inference import Predictor
from turnwise.inference.graphs import RecordedPass
from turnwise.models import create_model


class Graph:
    """Replays what was called while it was recorded, into the same outputs."""

    def replay(self):
        for name, output in self.function(self.batch).items():
            self.outputs[name].copy_(output)


@pytest.fixture
def recorded(monkeypatch):
    """A pass whose recordings run on the CPU; `recorded.calls` are the batches of the function."""
    calls, stream = [], SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    made = RecordedPass()
    record = made._record

    def remember(function, batch):
        record(lambda x: calls.append(x.clone()) or function(x), batch)
        made._graph.function, made._graph.batch = function, made._batch
        made._graph.outputs = made._outputs

    made._record, made.calls = remember, calls
    return made


def test_replays_read_the_new_batch_and_record_once_for_each_state(recorded):
    def double(batch):
        return {"twice": 2 * batch}

    for _ in range(3):
        batch = torch.rand(4)
        assert torch.equal(recorded(double, batch, ("a",))["twice"], 2 * batch)
    assert len(recorded.calls) == 3  # two to warm up, one recorded
    recorded(double, torch.rand(5), ("b",))
    assert len(recorded.calls) == 6


def test_a_pass_that_cannot_be_recorded_is_an_error_with_advice(recorded, monkeypatch):
    def fail(batch):
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError):  # of the model itself, in the warm-up
        recorded(fail, torch.rand(2), ())

    @contextlib.contextmanager
    def capturing(_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
        yield

    monkeypatch.setattr(torch.cuda, "graph", capturing)
    with pytest.raises(InputError, match=r"recorded \(operation .* capturing\); set cuda_graphs"):
        recorded(lambda batch: {}, torch.rand(2), ())


def test_a_predictor_records_whole_batches_on_a_gpu_and_nothing_on_a_cpu(recorded, monkeypatch):
    model = create_model("vit", width=16, heads=2, depth=1)
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28), dtype=np.uint8)
    plain = Predictor(model, batch_size=2)({"image": images})["probabilities"]
    predict = Predictor(model, batch_size=2, cuda_graphs=True)
    assert np.array_equal(predict({"image": images})["probabilities"], plain)
    predict._recorded = recorded
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: x.device.type == "cpu"))
    assert np.allclose(predict({"image": images})["probabilities"], plain, atol=1e-6)
    assert [len(batch) for batch in recorded.calls] == [2, 2, 2]  # the last image runs as usual
    with torch.no_grad():
        model.head.weight.mul_(2)
    changed = Predictor(model, batch_size=2)({"image": images})["probabilities"]
    assert np.allclose(predict({"image": images})["probabilities"], changed, atol=1e-6)
    assert not np.allclose(changed, plain, atol=1e-3)


def test_a_predictor_with_a_recording_can_be_sent_to_workers():
    predict = Predictor(create_model("vit", width=16, heads=2, depth=1), cuda_graphs=True)
    predict._recorded._graph = lambda: None  # which cannot be pickled
    assert pickle.loads(pickle.dumps(predict))._recorded._graph is None
