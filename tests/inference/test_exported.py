"""Files answer as the models that they were exported from, and their faults are found.

The tests of ONNX files need the packages onnx, onnxruntime and onnxscript.
"""

import sys
import warnings

import pytest
import small_networks as nets
import torch

from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.evaluation.certificate.scores import answerer
from turnwise.inference.exported import hash_file, open_file

QUICK = Scope(shifts=0)


NETWORKS = {"right": nets.group_net, "faulty": lambda: nets.group_net(nets.Position())}


def export(model, path, pictures=None):
    """A .pt2 or .onnx file, for any number of pictures or for a fixed one."""
    example = (torch.rand(pictures or 3, 1, nets.SIDE, nets.SIDE),)
    some = None if pictures else ({0: torch.export.Dim("pictures", min=1)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".pt2":
            program = torch.export.export(model.eval(), example, dynamic_shapes=some)
            torch.export.save(program, path)
        else:
            torch.onnx.export(
                model.eval(), example, str(path), dynamic_shapes=some, dynamo=True, verbose=False,
                external_data=False,
            )  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Each network and its file, exported once for all tests."""
    made = {}
    folder = tmp_path_factory.mktemp("exported")

    def take(name, suffix, pictures=None):
        if suffix == "onnx":
            for package in ("onnx", "onnxruntime", "onnxscript"):
                pytest.importorskip(package)
        key = (name, suffix, pictures)
        if key not in made:
            model = NETWORKS[name]()
            path = folder / f"{name}-{pictures}.{suffix}"
            export(model, path, pictures)
            made[key] = model, open_file(path)
        return made[key]

    return take


@pytest.fixture(params=["pt2", "onnx"])
def suffix(request):
    return request.param


def test_a_file_answers_as_its_model(shelf, suffix, digits_like):
    model, opened = shelf("right", suffix)
    assert opened.precision == "float32"
    assert opened.shape == (None, 1, 8, 8)
    ours = answerer(opened, "float32", 2)(digits_like)
    theirs = answerer(model, "float32", 64)(digits_like)
    assert (ours - theirs).abs().max() < 1e-6


def test_a_right_file_holds_and_is_read_layer_by_layer(shelf, suffix, digits_like):
    model, opened = shelf("right", suffix)
    certificate = certify(
        opened, "C4", digits_like, angles=2, scope=QUICK, original=("the model", model)
    )
    assert certificate.holds
    assert certificate.entry == ""
    assert certificate.elements[1].float64 is None
    assert certificate.likeness.change < 1e-5
    assert len(certificate.layers) > 5


def test_a_fault_in_a_file_is_named_to_the_layer(shelf, suffix, digits_like):
    """A file of the network with absolute positions between the layers."""
    _, opened = shelf("faulty", suffix)
    certificate = certify(opened, "C4", digits_like, angles=1, scope=QUICK)
    assert not certificate.holds
    assert certificate.entry.startswith("2")
    assert "what it is given holds, what it gives does not" in certificate.entry


def test_a_file_exported_wrongly_is_found_though_it_is_invariant(shelf, suffix, digits_like):
    """Exported from other weights: every symmetry holds, and the answers are not the model's."""
    _, opened = shelf("right", suffix)
    torch.manual_seed(5)
    certificate = certify(
        opened, "C4", digits_like, angles=1, scope=QUICK, original=("the model", nets.group_net())
    )
    assert all(element.holds for element in certificate.elements)
    assert not certificate.likeness.holds
    assert not certificate.holds


@pytest.mark.parametrize(("suffix", "pictures"), [("pt2", 1), ("pt2", 4), ("onnx", 4)])
def test_a_file_for_a_fixed_number_of_pictures(shelf, suffix, pictures, digits_like):
    model, opened = shelf("right", suffix, pictures)
    assert opened.batch == pictures
    answers = answerer(opened, "float32", 64)(digits_like)
    assert (answers - answerer(model, "float32", 64)(digits_like)).abs().max() < 1e-6
    certificate = certify(opened, "C4", digits_like, angles=1, scope=QUICK)
    assert certificate.holds
    assert bool(certificate.layers) is (pictures == 4), "two pictures and both moved are needed"


def test_the_hash_is_that_of_the_file(shelf, digits_like):
    right, faulty = shelf("right", "pt2")[1], shelf("faulty", "pt2")[1]
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


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="does not exist; give a"):
        open_file(tmp_path / "net.onnx")


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(InputError, match=r"install it with pip install turnwise\[onnx\]"):
        open_file(tmp_path / "net.onnx")


def test_a_damaged_onnx_file_is_one_line(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(b"not a graph")
    with pytest.raises(InputError, match="cannot be run by onnxruntime"):
        open_file(tmp_path / "net.onnx")


def test_what_takes_no_pictures_is_refused(tmp_path):
    path = tmp_path / "net.pt2"
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.rand(4, 3),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)
    with pytest.raises(InputError, match="does not take pictures of shape"):
        open_file(path)
