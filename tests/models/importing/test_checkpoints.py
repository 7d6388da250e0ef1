"""Files of other programs are read without executing them, and fit completely or not at all."""

import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.models.importing.checkpoints import (
    Counterpart,
    fill_strictly,
    read_checkpoint_weights,
)

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.tensor([7.0, 8.0])}


def same(read):
    assert read.keys() == WEIGHTS.keys()
    return all(torch.equal(read[key], WEIGHTS[key]) for key in WEIGHTS)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "weights.pt"


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        {"state_dict": WEIGHTS, "epoch": 3},
        {"model": WEIGHTS, "optimizer": {"lr": 0.1, "state": {}}},
        {"model_state_dict": WEIGHTS, "model": "gsa"},
        {f"module.{key}": value for key, value in WEIGHTS.items()},
        {"state_dict": {f"module.{key}": value for key, value in WEIGHTS.items()}},
    ],
)
def test_a_state_dict_is_found(file, content):
    torch.save(content, file)
    assert same(read_checkpoint_weights(file))
    assert same(read_checkpoint_weights(str(file)))


def test_files_of_old_versions_are_read(file):
    torch.save(WEIGHTS, file, _use_new_zipfile_serialization=False)
    assert same(read_checkpoint_weights(file))


def test_a_parallel_model_is_read_as_the_model(file):
    model = nn.Sequential(nn.Linear(2, 3))
    torch.save(nn.DataParallel(model).state_dict(), file)
    assert read_checkpoint_weights(file).keys() == model.state_dict().keys()


def test_a_single_layer_called_module_keeps_its_name(file):
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, file)
    assert list(read_checkpoint_weights(file)) == ["module.a", "b"]


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_file_is_refused_and_not_run(file, tmp_path, new):
    ran = tmp_path / "ran"
    content = {**WEIGHTS, "trap": Trap(ran)}
    torch.save(content, file, _use_new_zipfile_serialization=new)
    with pytest.raises(InputError, match="holds more than tensors, and nothing in it was"):
        read_checkpoint_weights(file)
    assert not ran.exists()
    torch.load(file, weights_only=False)["trap"].close()
    assert ran.exists(), "control: the trap works"


def test_a_whole_module_is_refused(file):
    torch.save(nn.Linear(2, 2), file)
    with pytest.raises(InputError, match=r"give a state dict, as torch\.save\(model\.state_dict"):
        read_checkpoint_weights(file)


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"PK\x03\x04garbage", b"\x80\x02}q\x00.", b"\x80\x05\x95"]
)
def test_other_files_are_refused(file, content):
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"weights\.pt (is damaged|holds a)"):
        read_checkpoint_weights(file)


def test_a_truncated_file_is_refused(file):
    torch.save(WEIGHTS, file)
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match="is damaged or holds more than tensors"):
        read_checkpoint_weights(file)


@pytest.mark.parametrize("content", [{}, [torch.ones(1)], {"lr": 0.1}, {"state_dict": {}}, {1: 2}])
def test_a_file_without_a_state_dict_is_refused(file, content):
    torch.save(content, file)
    with pytest.raises(InputError, match=r"that is no state dict; .* under state_dict, model or"):
        read_checkpoint_weights(file)


def test_a_missing_file_is_refused(file, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*weights\.pt: no such file"):
        read_checkpoint_weights(file)
    with pytest.raises(InputError, match=r"is a directory; give a file that torch\.save wrote"):
        read_checkpoint_weights(tmp_path)


@pytest.fixture
def model():
    return nn.Linear(3, 2)


def swap_rows(values):
    return values.flip(0)


PAIRS = {"weight": Counterpart("w", swap_rows), "bias": Counterpart("b")}


def fill(model, **weights):
    fill_strictly(model, PAIRS, weights, ignored=lambda key: key.startswith("table"))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 1, 1, 1)])
def test_every_parameter_gets_the_values_of_its_counterpart(model, shape):
    values = torch.arange(6.0, dtype=torch.float64)
    fill(model, w=values.view(shape), b=torch.tensor([7.0, 8.0]), table_1=torch.ones(5))
    assert model.weight.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert model.bias.tolist() == [7, 8]
    assert model.weight.dtype == torch.float32


def test_any_memory_layout_is_read(model):
    fill(model, w=torch.arange(6.0).view(3, 2).T, b=torch.zeros(2))
    assert model.weight.tolist() == [[1, 3, 5], [0, 2, 4]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"b": torch.ones(2)}, "but missing are w."),
        ({"w": torch.ones(2, 3), "b": torch.ones(2), "c": torch.ones(1)}, "but unexpected are c."),
        ({"w": torch.ones(3, 2), "b": torch.ones(2)}, "of another shape are w (3 x 2, not 2 x 3)."),
        ({"w": torch.ones(6), "b": torch.ones(2)}, "w (6, not 2 x 3)."),
        ({"w": torch.ones(2, 3, 2), "b": torch.ones(2)}, "w (2 x 3 x 2, not 2 x 3)."),
        ({"w": torch.ones(2, 3), "b": torch.tensor(1.0)}, "b (one number, not 2)."),
        (
            {"w": torch.ones(2), "x": torch.ones(1), "y": torch.ones(1)},
            "missing are b; unexpected are x, y; of another shape are w (2, not 2 x 3).",
        ),
    ],
)
def test_keys_that_do_not_fit_are_named_and_nothing_is_assigned(model, weights, message):
    before = model.weight.clone()
    with pytest.raises(InputError) as refusal:
        fill(model, **weights)
    assert str(refusal.value).endswith(message)
    assert torch.equal(model.weight, before)


def test_of_many_keys_ten_are_listed_and_the_rest_counted(model):
    extra = {f"x{n}": torch.ones(1) for n in range(13)}
    with pytest.raises(InputError, match=r"unexpected are x0, .*, x9 and 3 more\.$") as refusal:
        fill(model, w=torch.ones(2, 3), b=torch.ones(2), **extra)
    assert "x10" not in str(refusal.value)
    del extra["x10"], extra["x11"], extra["x12"]
    with pytest.raises(InputError, match=r"unexpected are x0, .*, x9\.$"):
        fill(model, w=torch.ones(2, 3), b=torch.ones(2), **extra)
