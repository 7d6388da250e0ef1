"""Backbones are opened by name, with their own sizes and normalisation, and made invariant."""

import json
import pickle
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.groups import equivariance_error
from turnwise.inference import Predictor
from turnwise.inference.backbones import BackboneName, ClassifierName, open_backbone
from turnwise.inference.preparation import Preparation
from turnwise.models import create_model, save

IMAGES = torch.rand(3, 3, 16, 16)


def difference(model, images=IMAGES):
    return equivariance_error(lambda x: Predictor(model, ("embedding",)).run(x)["embedding"],
                              "D4", images)  # fmt: skip


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 4, stride=4), nn.Flatten(), nn.Linear(64, 5))


@pytest.fixture
def exported(tmp_path):
    torch.manual_seed(0)
    program = torch.export.export(
        Plain().eval(),
        (torch.rand(2, 3, 16, 16),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    torch.export.save(program, tmp_path / "net.pt2")
    return tmp_path / "net.pt2"


@pytest.fixture
def fixed_batch(tmp_path):
    torch.export.save(torch.export.export(Plain().eval(), (IMAGES[:2],)), tmp_path / "two.pt2")
    return tmp_path / "two.pt2"


@pytest.fixture
def onnx_file(tmp_path):
    helper, onnx = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    weight = np.random.default_rng(0).standard_normal((768, 5)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]),
         helper.make_node("MatMul", ["flat", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 5])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("prefix", ["", "pt2:"])
def test_a_file_of_torch_export_is_made_invariant(prefix, exported):
    model = BackboneName(f"{prefix}{exported}", "D4").open()
    assert difference(model) < 1e-5
    assert difference(BackboneName(str(exported), "D4", combine="none").open()) > 1e-2
    assert BackboneName(str(exported)).backbone().preparation == Preparation(16, 3)


@pytest.mark.parametrize("prefix", ["", "onnx:"])
def test_an_onnx_file_is_made_invariant(prefix, onnx_file):
    assert difference(BackboneName(f"{prefix}{onnx_file}", "D4").open()) < 1e-5
    assert difference(BackboneName(str(onnx_file), "D4", combine="none").open()) > 1e-2


def test_a_file_for_a_fixed_number_of_images_takes_any_number(fixed_batch):
    model = BackboneName(str(fixed_batch), "D4").open()
    whole = Predictor(model, ("embedding",)).run(IMAGES)["embedding"]
    single = [Predictor(model, ("embedding",)).run(x[None])["embedding"] for x in IMAGES]
    torch.testing.assert_close(whole, torch.cat(single))


@pytest.fixture
def vit_folder(tmp_path):
    """Write a small ViT of transformers with random weights, and the settings of its images."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24,
        image_size=16, patch_size=4,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    settings = {
        "do_resize": True, "size": {"shortest_edge": 19}, "do_center_crop": True,
        "crop_size": {"height": 16, "width": 16}, "resample": 3, "do_normalize": True,
        "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4],
    }  # fmt: skip
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    return tmp_path / "vit"


def test_a_vit_of_transformers_is_made_invariant(vit_folder):
    for pool in ("auto", "mean", "pooler"):
        assert difference(BackboneName(f"hf:{vit_folder}", "D4", pool=pool).open()) < 1e-4
    assert difference(BackboneName(f"hf:{vit_folder}", "D4", combine="none").open()) > 1e-2


def test_sizes_and_normalisation_are_those_of_its_settings(vit_folder):
    found = open_backbone(f"hf:{vit_folder}")
    assert found.preparation == Preparation(16, 3, 19, "bicubic")
    prepared = found.preprocess(IMAGES)
    torch.testing.assert_close(prepared[:, 2], (IMAGES[:, 2] - 0.6) / 0.4)


def test_a_crop_that_is_not_central_is_made_symmetric_and_said(vit_folder):
    backbone = BackboneName(f"hf:{vit_folder}", "D4").backbone()
    assert backbone.preparation.resize == 20
    assert "resampled to 20 pixels before the crop to 16, not to 19" in backbone.notes[0]


def test_a_backbone_without_settings_says_so(vit_folder):
    (vit_folder / "preprocessor_config.json").unlink()
    backbone = open_backbone(f"hf:{vit_folder}")
    assert backbone.preprocess is None and backbone.preparation == Preparation(16, 3, 16)
    assert "states no normalisation" in backbone.notes[0]


def test_the_orbit_sees_the_prefix_of_the_tokens(vit_folder):
    backbone = open_backbone(f"hf:{vit_folder}")
    assert backbone.model.prefix == 1


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match="cannot be opened"):
        open_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize(("name", "package"), [("timm:vit", "timm"), ("hf:vit", "transformers")])
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}; install it with pip"):
        open_backbone(name)


def test_a_model_of_timm_brings_its_configuration(monkeypatch):
    """With a stand-in for timm, which cannot be installed everywhere."""
    timm = ModuleType("timm")
    config = {"input_size": (3, 16, 16), "crop_pct": 0.85, "interpolation": "bicubic",
              "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # fmt: skip

    def create(name, pretrained, num_classes):
        if name != "net":
            raise RuntimeError(f"Unknown model ({name})")
        return Plain()

    timm.create_model = create
    timm.data = SimpleNamespace(resolve_model_data_config=lambda model: config)
    monkeypatch.setitem(sys.modules, "timm", timm)
    found = open_backbone("timm:net")
    assert found.preparation == Preparation(16, 3, 19, "bicubic")
    torch.testing.assert_close(found.preprocess(IMAGES), 2 * IMAGES - 1)
    with pytest.raises(InputError, match=r"timm:other cannot be opened: Unknown model \(other\)"):
        open_backbone("timm:other")


@pytest.fixture
def model_folder(tmp_path):
    model = create_model("orbit_vit", group="C4", in_chans=3, image_size=16, patch=4, width=8,
                         depth=1, heads=2)  # fmt: skip
    save(model, tmp_path / "model")
    return str(tmp_path / "model")


def test_a_model_of_ours_keeps_its_own_group(model_folder):
    own, wider = BackboneName(model_folder).open(), BackboneName(model_folder, "D4").open()
    assert own.group.name == "C4" and not hasattr(own, "readout")
    assert not hasattr(BackboneName(model_folder, "C2").open(), "readout"), "C4 contains C2"
    assert difference(wider) < 1e-5 < 1e-3 < difference(own)
    assert BackboneName(model_folder).backbone().preparation == Preparation(16, 3)


def test_code_is_imported_and_run(tmp_path, monkeypatch):
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(768, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    model = BackboneName("my_net:make", "D4", size=16)
    assert model.backbone().preparation == Preparation(16, 3)
    assert difference(model.open()) < 1e-5


def test_names_can_be_sent_to_another_process(model_folder):
    for name in (BackboneName(model_folder, "D4"), ClassifierName(model_folder)):
        assert pickle.loads(pickle.dumps(name)) == name
    assert ClassifierName(model_folder).preparation() == Preparation(16, 3)
