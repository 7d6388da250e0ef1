"""Imported Performers give the logits of the programs that wrote them, in float64."""

import sys
from types import ModuleType

import pytest
import torch
from models.importing.golden_states import CASES, distance, images_of, in_float64, state_of

from turnwise.models import load, save
from turnwise.models.importing.checkpoints import Checkpoint, read_checkpoint
from turnwise.models.importing.performer import build_performer, import_performer

PERFORMERS = [name for name in CASES if "erformer" in name]


def performer(case, state):
    size = images_of(case).shape[-1]
    return build_performer(Checkpoint(state, CASES[case]["options"]), size)


@pytest.mark.parametrize("case", PERFORMERS)
def test_performers(case):
    model = in_float64(lambda state: performer(case, state), state_of(case))
    images = images_of(case)
    torch.testing.assert_close(model.preprocess(images), images, msg="it is not normalised")
    assert distance(model(images), case) < 1e-10
    options = model.config.options
    assert (options["variant"], options["heads"], options["depth"]) == ("tep-2021", 4, 2)


def test_control_another_number_of_heads_gives_other_logits():
    case = "Performer_MLP_softmax"
    state = state_of(case)
    for key in state:
        if key.endswith("projection_matrix"):
            state[key] = torch.zeros(10, 8)
    model = in_float64(lambda state: performer(case, state), state)
    assert distance(model(images_of(case)), case) > 1e-3


@torch.no_grad()
def test_an_imported_model_is_saved_and_loaded(tmp_path):
    case = "RelativePerformer"
    torch.save(state_of(case), tmp_path / "net.pt")
    model = import_performer(tmp_path / "net.pt", 8)
    save(model, tmp_path / "net")
    images = images_of(case).float()
    assert torch.equal(load(tmp_path / "net")(images), model(images))


class ModelCheckpoint:
    """As old Lightning wrote the class of a callback: a name, nothing more."""


ModelCheckpoint.__module__ = "pytorch_lightning.callbacks.model_checkpoint"


def test_checkpoints_of_old_lightning_are_read(tmp_path, monkeypatch):
    """They hold the classes of callbacks as keys, and the options of the model."""
    module = ModuleType("pytorch_lightning.callbacks.model_checkpoint")
    module.ModelCheckpoint = ModelCheckpoint
    monkeypatch.setitem(sys.modules, module.__name__, module)
    content = {
        "state_dict": state_of("RelativePerformer"),
        "callbacks": {ModelCheckpoint: {"best_model_score": torch.tensor(0.9)}},
        "hyper_parameters": {"no_projection": True, "heads": 4},
    }
    torch.save(content, tmp_path / "last.ckpt")
    checkpoint = read_checkpoint(tmp_path / "last.ckpt")
    assert checkpoint.options["no_projection"] is True
    assert build_performer(checkpoint, 8).config.options["kernel"] == "softmax"
