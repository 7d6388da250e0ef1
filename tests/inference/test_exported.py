"""Files give the outputs of the models that they were exported from, and their faults are found.

The tests of ONNX files need the packages onnx, onnxruntime and onnxscript.
"""

import sys
import warnings

import pytest
import small_networks as nets
import torch

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.inference.exported import hash_file, open_file
from turnwise.inference.predictor import Predictor

QUICK = Scope(shifts=0)
NETWORKS = {"right": nets.group_net, "faulty": lambda: nets.group_net(nets.Position())}


def export(model, path, batch=None):
    """Write a .pt2 or .onnx file, for any number of images or for a fixed one."""
    example = (torch.rand(batch or 3, 1, nets.SIDE, nets.SIDE),)
    dynamic = None if batch else ({0: torch.export.Dim("images", min=1)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".pt2":
            program = torch.export.export(model.eval(), example, dynamic_shapes=dynamic)
            torch.export.save(program, path)
        else:
            torch.onnx.export(
                model.eval(), example, str(path), dynamic_shapes=dynamic, dynamo=True,
                verbose=False, external_data=False,
            )  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a network and the model in its file, which is written once for all tests."""
    made, folder = {}, tmp_path_factory.mktemp("exported")

    def get(name, suffix, batch=None):
        if suffix == "onnx":
            for package in ("onnx", "onnxruntime", "onnxscript"):
                pytest.importorskip(package)
        key = (name, suffix, batch)
        if key not in made:
            model = NETWORKS[name]()
            path = folder / f"{name}-{batch}.{suffix}"
            export(model, path, batch)
            made[key] = model, open_file(path)
        return made[key]

    return get


@pytest.fixture(params=["pt2", "onnx"])
def suffix(request):
    return request.param


def test_a_file_has_the_outputs_of_its_model(exported, suffix, digits_like):
    model, opened = exported("right", suffix)
    assert opened.precision == "float32"
    assert opened.shape == (None, 1, 8, 8)
    found = Predictor(opened, batch_size=2).logits(digits_like)
    assert (found - Predictor(model).logits(digits_like)).abs().max() < 1e-6


def test_a_file_has_one_precision(exported, suffix):
    _, opened = exported("right", suffix)
    with pytest.raises(InputError, match="computes in float32, not in float64"):
        Predictor(opened, precision="float64")


def test_a_correct_file_holds_and_is_traced_layer_by_layer(exported, suffix, digits_like):
    model, opened = exported("right", suffix)
    certificate = certify(
        opened, "C4", digits_like, angles=2, scope=QUICK, original=("the model", model)
    )
    assert certificate.holds
    assert certificate.error_source == ""
    assert certificate.elements[1].float64 is None
    assert certificate.original.change < 1e-5
    assert len(certificate.layers) > 5


def test_a_fault_in_a_file_is_attributed_to_its_layer(exported, suffix, digits_like):
    """The file of a network with absolute positions between the layers."""
    _, opened = exported("faulty", suffix)
    certificate = certify(opened, "C4", digits_like, angles=1, scope=QUICK)
    assert not certificate.holds
    assert certificate.error_source.startswith("2")
    assert "its input is equivariant, its output is not" in certificate.error_source


def test_a_file_of_other_weights_fails_though_it_is_invariant(exported, suffix, digits_like):
    _, opened = exported("right", suffix)
    torch.manual_seed(5)
    certificate = certify(
        opened, "C4", digits_like, angles=1, scope=QUICK, original=("the model", nets.group_net())
    )
    assert all(element.holds for element in certificate.elements)
    assert not certificate.original.holds
    assert not certificate.holds


@pytest.mark.parametrize(("suffix", "batch"), [("pt2", 1), ("pt2", 4), ("onnx", 4)])
def test_a_file_for_a_fixed_number_of_images(exported, suffix, batch, digits_like):
    model, opened = exported("right", suffix, batch)
    assert opened.batch == batch
    found = Predictor(opened).logits(digits_like)
    assert (found - Predictor(model).logits(digits_like)).abs().max() < 1e-6
    certificate = certify(opened, "C4", digits_like, angles=1, scope=QUICK)
    assert certificate.holds
    assert bool(certificate.layers) is (batch == 4), "a trace takes two images, both transformed"


def test_the_hash_is_that_of_the_file(exported, digits_like):
    right, faulty = exported("right", "pt2")[1], exported("faulty", "pt2")[1]
    assert certify(right, "C4", digits_like, angles=1, scope=QUICK).weights_sha256 == right.sha256
    assert len(right.sha256) == 64
    assert right.sha256 != faulty.sha256


def test_the_hash_covers_weights_beside_the_file(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"graph")
    alone = hash_file(tmp_path / "net.onnx")
    (tmp_path / "net.onnx.data").write_bytes(b"weights")
    beside = hash_file(tmp_path / "net.onnx")
    (tmp_path / "net.onnx.data").write_bytes(b"Weights")
    assert len({alone, beside, hash_file(tmp_path / "net.onnx")}) == 3


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="does not exist; give a"):
        open_file(tmp_path / "net.onnx")


def test_a_missing_package_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(InputError, match=r"install it with pip install turnwise\[onnx\]"):
        open_file(tmp_path / "net.onnx")


def test_a_damaged_onnx_file_is_reported_in_one_line(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(b"not a graph")
    with pytest.raises(InputError, match="cannot be run by onnxruntime"):
        open_file(tmp_path / "net.onnx")


def test_a_program_that_takes_no_images_is_refused(tmp_path):
    path = tmp_path / "net.pt2"
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.rand(4, 3),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)
    with pytest.raises(InputError, match="does not take images of shape"):
        open_file(path)
