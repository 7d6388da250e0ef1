"""A device by name, or one line that says what to try."""

import pytest
import torch

from turnwise.cli.devices import chosen_device
from turnwise.errors import InputError


def test_a_device_by_its_name():
    assert chosen_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("there", "kind"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_where_there_is_one(there, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert chosen_device("auto").type == kind


@pytest.mark.parametrize("name", ["abacus", "", "cpu:x", "cuda:99"])
def test_a_device_that_cannot_be_used(name):
    with pytest.raises(InputError, match=rf"device '{name}' cannot be used here; try auto or cpu"):
        chosen_device(name)
