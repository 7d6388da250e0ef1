"""An exported file is its model, in its own runtime; what is not leaves no file."""

import subprocess
import sys
import zipfile

import exported_families as families
import numpy as np
import pytest
import torch
from torch import nn

import turnwise
from turnwise.deploy import export as module
from turnwise.deploy.export import CertificateError, certificate_path, export, require_close
from turnwise.errors import InputError
from turnwise.evaluation.certificate.certificate import read_certificate
from turnwise.evaluation.certificate.verification import verify
from turnwise.inference.exported import open_file
from turnwise.inference.predictor import Predictor

SUBSET = (("turnwise_vit_nano", ".onnx"), ("vit", ".pt2"))
REST = [(n, s) for n in families.FAMILIES for s in (".onnx", ".pt2") if (n, s) not in SUBSET]


def needs_onnx(suffix=".onnx"):
    if suffix == ".onnx":
        for package in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(package)


def tiny():
    torch.manual_seed(0)
    small = {"image_size": 8, "patch": 4, "width": 16, "depth": 1, "heads": 2}
    return turnwise.create_model("orbit_vit", num_classes=3, **small).eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small model and its .pt2 file, which takes uint8."""
    path, model = tmp_path_factory.mktemp("exported") / "tiny.pt2", tiny()
    model.classes = ("a", "b", "c")
    return model, export(model, path, pixels="uint8", licence="MIT")


@pytest.mark.parametrize(("name", "suffix"), SUBSET)
def test_the_file_of_a_family_is_its_model(name, suffix, tmp_path):
    needs_onnx(suffix)
    families.check(name, tmp_path / f"model{suffix}", size=12)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suffix"), REST)
def test_the_file_of_every_other_family_is_its_model(name, suffix, tmp_path):
    needs_onnx(suffix)
    families.check(name, tmp_path / f"model{suffix}")


@pytest.mark.slow
def test_every_family_is_exported():
    """A family is a class of models: names that differ only in their design share one."""
    with torch.device("meta"):
        built = {n: type(turnwise.create_model(n, image_size=32)) for n in turnwise.list_models()}
    tried = {**families.FAMILIES, **families.REFUSED}
    assert {built[name] for name in tried} == set(built.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", families.REFUSED)
def test_a_family_that_amplifies_rounding_is_refused(name, tmp_path):
    needs_onnx(".onnx")
    with pytest.raises(CertificateError, match="differ from the model's"):
        families.check(name, tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_the_file_describes_itself(written):
    _, exported = written
    opened = open_file(exported.path)
    assert opened.description == exported.description
    assert opened.classes == ("a", "b", "c") and opened.group.name == "C4"
    assert opened.shape == (None, 1, 8, 8)
    described = opened.description
    assert (described.licence, described.pixels, described.name) == (
        "MIT", "uint8", "orbit_vit",
    )  # fmt: skip
    certificate, holds = read_certificate(certificate_path(exported.path))
    assert holds and certificate.original.weights_sha256 == described.weights_sha256


def test_preprocessing_is_in_the_file(written):
    """Bytes in; logits, probabilities and the embedding of the model out."""
    model, exported = written
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    outputs = ("logits", "probabilities", "embedding")
    ours = turnwise.Predictor(open_file(exported.path), outputs)({"image": images})
    theirs = turnwise.Predictor(model, outputs)({"image": images})
    for name in outputs:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6)
    raw = torch.export.load(exported.path).module()(torch.from_numpy(images))
    np.testing.assert_allclose(raw[1].numpy(), theirs["probabilities"], atol=1e-6)


def test_the_certificate_can_be_verified(written, tmp_path):
    model, exported = written
    path = certificate_path(exported.path)
    turnwise.save(model, tmp_path / "own")
    assert verify(path, against=str(tmp_path / "own")).objections == ()
    other = tiny()
    nn.init.normal_(other.model.head.weight)
    turnwise.save(other, tmp_path / "other")
    assert not verify(path, against=str(tmp_path / "other")).holds


def test_one_file_and_its_certificate_are_written(written):
    _, exported = written
    names = {path.name for path in exported.path.parent.iterdir()}
    assert names == {"tiny.pt2", "tiny.pt2.certificate.json"}
    with zipfile.ZipFile(exported.path) as archive:
        assert any(name.endswith("extra/turnwise.json") for name in archive.namelist())


class Rotating(nn.Module):
    """Claims C4 and is not invariant."""

    group, num_classes, classes = turnwise.PlanarGroup.named("C4"), 3, ()

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head(images.flatten(1))


def test_a_model_that_is_not_invariant_leaves_no_file(tmp_path):
    with pytest.raises(CertificateError, match=r"not invariant as claimed .*group C1"):
        export(Rotating(), tmp_path / "new" / "net.pt2", channels=1, size=8)
    assert list(tmp_path.iterdir()) == []
    found = export(Rotating(), tmp_path / "net.pt2", channels=1, size=8, group="C1")
    assert found.certificate is None and max(found.changes.values()) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt2"]


def test_a_file_with_other_outputs_leaves_nothing(tmp_path, monkeypatch):
    other = tiny()
    nn.init.normal_(other.model.head.weight)

    def write_other(kind, graph, path, description):
        program = module.Program(other, "float32", has_embedding=True).eval()
        graph = module.trace(program, torch.rand(2, 1, 8, 8))
        torch.export.save(graph, path, extra_files={"turnwise.json": description.to_json()})

    monkeypatch.setattr(module, "write_file", write_other)
    with pytest.raises(CertificateError, match="differ from the model's"):
        export(tiny(), tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []


def test_not_a_number_is_not_close(tmp_path):
    with pytest.raises(CertificateError, match="differ"):
        require_close(float("nan"), "float32", tmp_path / "net.pt2")


@pytest.mark.parametrize(
    ("precision", "suffix"),
    [("float16", ".pt2"), pytest.param("int8", ".onnx", marks=pytest.mark.slow)],
)
def test_coarse_precisions_are_kept_and_not_called_exact(precision, suffix, tmp_path):
    needs_onnx(suffix)
    found = export(tiny(), tmp_path / f"net{suffix}", precision=precision)
    assert not found.is_exact and not found.certificate.holds
    assert 1e-5 < max(found.changes.values()) < 0.25
    opened = open_file(found.path)
    assert opened.description.precision == precision
    assert Predictor(opened).probabilities(torch.rand(3, 1, 8, 8)).shape == (3, 3)


def test_a_canonical_model_and_a_foreign_orbit_are_exported(tmp_path):
    torch.manual_seed(0)
    foreign = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    for model in (turnwise.orbit(foreign, "D4"), turnwise.models.canonical(foreign, "C4")):
        found = export(model.eval(), tmp_path / "net.pt2", channels=1, size=8)
        assert found.certificate.holds and found.certificate.group == model.group.name
        assert found.description.classes == ("0", "1", "2")


def test_what_cannot_be_exported_is_refused_in_one_line(written, tmp_path):
    model, exported = written
    refusals = {
        "must end in .onnx or .pt2": lambda: export(model, tmp_path / "net.bin"),
        "unknown format": lambda: export(model, tmp_path / "net.pt2", format="torchscript"),
        "must end in .onnx, as": lambda: export(model, tmp_path / "net.pt2", format="onnx"),
        "unknown precision": lambda: export(model, tmp_path / "net.pt2", precision="int4"),
        "written by onnxruntime": lambda: export(model, tmp_path / "net.pt2", precision="int8"),
        "is an exported file already": lambda: export(
            open_file(exported.path), tmp_path / "net.pt2"
        ),
        "does not state which images": lambda: export(Rotating(), tmp_path / "net.pt2"),
        "2 class names were given": lambda: export(model, tmp_path / "net.pt2", classes=("a", "b")),
    }
    for words, attempt in refusals.items():
        with pytest.raises(InputError, match=words):
            attempt()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_compiled_code_is_certified_and_never_opened_from_a_file(tmp_path):
    """It runs in a process of its own: a compiled library stays loaded."""
    script = """
import sys, torch, turnwise
torch.manual_seed(0)
model = turnwise.create_model("orbit_vit", image_size=8, patch=4, width=16, depth=1, heads=2).eval()
found = turnwise.export(model, sys.argv[1], format="aoti")
assert found.certificate.holds
try:
    turnwise.inference.exported.open_file(sys.argv[1])
except turnwise.InputError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "net.pt2")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "might run on its own" in ran.stdout
