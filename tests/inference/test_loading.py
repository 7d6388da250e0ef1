"""Every kind of target is opened; one that cannot be is refused in one line."""

import sys
import textwrap

import pytest
import torch

from turnwise.errors import InputError
from turnwise.inference.exported import FileModel
from turnwise.inference.loading import (
    class_names,
    image_shape,
    is_code,
    open_callable,
    open_model,
    open_trained,
    read_settings,
)
from turnwise.models import create_model, save
from turnwise.models.orbits import Orbit

SMALL = ("width=16", "depth=1", "heads=2", "patch=7")
CODE = """
    import torch
    from torch import nn

    def make(classes=3):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    ready = make()
    number = 7
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "code_of_a_user.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    yield "code_of_a_user"
    sys.modules.pop("code_of_a_user", None)


def test_a_registered_model_with_options():
    model = open_model("orbit_vit", SMALL, group="D2")
    assert isinstance(model, Orbit)
    assert model.group.name == "D2"


def test_a_model_folder(tmp_path):
    save(create_model("vit", width=16, depth=1, heads=2), tmp_path / "net")
    for model in (open_model(str(tmp_path / "net")), open_trained(tmp_path / "net")):
        assert model.position.shape == (49, 16)
        assert not model.training


def test_a_folder_takes_no_options(tmp_path):
    with pytest.raises(InputError, match="is a folder and takes no options"):
        open_model(str(tmp_path), SMALL)


@pytest.mark.parametrize("target", ["no/such/folder", "vit.pt"])
def test_a_path_that_does_not_exist(target):
    with pytest.raises(InputError, match="neither a folder nor a model"):
        open_model(target)


def test_a_callable_and_a_ready_model(code):
    assert open_model(f"{code}:make", ("classes=5",))[1].out_features == 5
    assert open_model(f"{code}:ready")[1].out_features == 3


def test_the_seed_draws_the_weights_of_a_callable(code):
    draws = [open_model(f"{code}:make", seed=seed)[1].weight for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("code_of_a_user:missing", "has no attribute 'missing'"),
        ("code_of_a_user:number", "'int' object is not callable"),
        ("torch:rand", "cannot be made"),
        ("code_of_a_user:lazy", "lazy layers without weights; call it once"),
        ("builtins:dict", "returns a dict; it must return an nn.Module"),
    ],
)
def test_code_that_makes_no_module(code, name, message):
    with pytest.raises(InputError, match=message):
        open_model(name)


def test_code_that_exits_at_import(tmp_path, monkeypatch):
    """Its exit status 0 would be read as success."""
    (tmp_path / "exits_at_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="exits_at_import:model cannot be made"):
        open_callable("exits_at_import:model", {})


def test_the_import_path_is_restored(code):
    before = list(sys.path)
    open_model(f"{code}:make")
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "expected"),
    [("a:b", True), ("pkg.mod:make", True), ("vit", False), ("a:b.onnx", False)],
)
def test_code_is_distinguished_from_names_and_files(target, expected):
    assert is_code(target) is expected


def test_settings_are_yaml_values():
    assert read_settings(["width=64", "crops=[1, 0]"]) == {"width": 64, "crops": [1, 0]}
    with pytest.raises(InputError, match=r"written key=value, e\.g\. width=64, got 'width'"):
        read_settings(["width"])
    with pytest.raises(InputError, match="name=vit is no option"):
        read_settings(["name=vit"])


def test_the_image_shape_is_known_for_models_made_by_name_and_files(tmp_path):
    assert image_shape(create_model("vit", in_chans=3, image_size=14, patch=7)) == (3, 14)
    assert image_shape(torch.nn.Tanh()) == (None, None)
    (tmp_path / "net.onnx").touch()
    file = FileModel(tmp_path / "net.onnx", torch.tanh, "float32", (None, 3, 8, None))
    assert image_shape(file) == (3, 8)


def test_classes_without_names_are_numbered():
    model = create_model("vit", num_classes=3)
    assert class_names(model) == ("0", "1", "2")
    model.classes = ("a", "b", "c")
    assert class_names(model) == ("a", "b", "c")
    assert class_names(torch.nn.Tanh()) == ()
