"""Recorded passes; what records them on a GPU is replaced by what it does before: run the model."""

import pytest
import torch

from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.models import create_model
from turnwise.training.graphs import RecordedModel
from turnwise.training.module import SupervisedModule
from turnwise.training.recipe import make_recipe

SMALL = {"model": {"name": "resnet18"}, "data": {"name": "digits"}}
TEN = make_kind("class", tuple("0123456789"))


@pytest.fixture
def recordings(monkeypatch):
    """Run the passes as torch does before it records them; list the batches."""
    found = []

    def run(passes, samples, allow_unused_input):
        found.append(samples)
        for _ in range(3):
            passes(*samples).sum().backward()
        return passes

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", run)
    return found


def small_resnet():
    return create_model("resnet18", stem="small", widths=(4, 4), depths=(1, 1), dropout=0.5)


def test_recording_leaves_buffers_and_random_numbers_as_they_were(recordings):
    model, images = small_resnet(), torch.rand(4, 1, 28, 28)
    before = {name: x.clone() for name, x in model.named_buffers()}
    torch.manual_seed(0)
    replay = RecordedModel(model).replay_for(images)
    assert all(torch.equal(x, before[name]) for name, x in model.named_buffers())
    torch.manual_seed(0)
    found = replay(images)
    torch.manual_seed(0)
    torch.testing.assert_close(found, model(model.preprocess(images)))
    assert any(not torch.equal(x, before[name]) for name, x in model.named_buffers())


def test_passes_are_recorded_again_only_for_another_shape_or_memory(recordings):
    recorded, images = RecordedModel(small_resnet()), torch.rand(4, 1, 28, 28)
    for _ in range(2):
        recorded.replay_for(images)
    assert len(recordings) == 1
    assert recordings[0][0].data_ptr() != images.data_ptr()  # replays write into the sample
    recorded.replay_for(images[:2])
    assert len(recordings) == 2
    recorded.model.double().float()
    recorded.replay_for(images[:2])
    assert len(recordings) == 3


def test_the_autocast_of_a_recording_has_no_cache(monkeypatch):
    seen = []

    def look(passes, samples, allow_unused_input):
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        return passes

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", look)
    with torch.autocast("cpu", torch.bfloat16):
        RecordedModel(small_resnet()).replay_for(torch.rand(2, 1, 28, 28))
        assert torch.is_autocast_cache_enabled()
    RecordedModel(small_resnet()).replay_for(torch.rand(2, 1, 28, 28))
    assert seen == [(True, False), (False, False)]


def test_the_module_records_only_what_is_not_compiled():
    model = small_resnet()
    plain, graphs, both = (
        SupervisedModule(model, make_recipe(SMALL, overrides), TEN)
        for overrides in (
            [], ["trainer.cuda_graphs=true"], ["trainer.cuda_graphs=true", "trainer.compile=true"],
        )
    )  # fmt: skip
    assert plain._recorded is None
    assert both._recorded is None
    assert isinstance(graphs._recorded, RecordedModel)
    assert list(graphs.state_dict()) == list(plain.state_dict())
    images = torch.rand(2, 1, 28, 28)
    model.eval()
    assert torch.equal(graphs(images), plain(images))  # on a CPU, the model itself


def test_what_cannot_be_recorded_is_an_error_with_advice(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    words = r"cannot be recorded \(CUDA error: .* capturing\); set trainer.cuda_graphs=false"
    with pytest.raises(InputError, match=words):
        RecordedModel(small_resnet()).replay_for(torch.rand(2, 1, 28, 28))
    model = small_resnet()
    model.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"set trainer.compile, too"):
        RecordedModel(model)
