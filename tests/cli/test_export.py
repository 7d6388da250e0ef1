"""turnwise export, and what reads its files."""

import csv
import io

import pytest
from PIL import Image

from turnwise.cli.main import main
from turnwise.data import load_dataset

TINY = ["vit", "width=16", "depth=1", "heads=2", "patch=7"]


@pytest.fixture
def digit(tmp_path):
    path = tmp_path / "digits" / "five.png"
    path.parent.mkdir()
    Image.fromarray(load_dataset("digits").val.images[261, 0].numpy()).save(path)
    return path


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_an_exported_file_classifies_a_folder(suffix, digit, tmp_path, capsys):
    if suffix == "onnx":
        for package in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(package)
    output = tmp_path / f"net.{suffix}"
    assert main(["export", *TINY, "--output", str(output)]) == 0
    assert "no symmetry is claimed" in capsys.readouterr().out
    assert main(["predict", str(output), str(digit.parent)]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["image", "label", *map(str, range(10))] and len(rows) == 2


def test_what_is_not_invariant_has_exit_status_1_and_no_file(tmp_path, capsys):
    words = ["export", *TINY, "--group", "C4", "--output", str(tmp_path / "net.pt2")]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "is not invariant as claimed" in printed.err and not printed.out
    assert not list(tmp_path.glob("*net*"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["vit", "--output", "net.exe"], "must end in .onnx or .pt2"),
     (["nothing", "--output", "net.pt2"], "unknown model"),
     (["vit", "--size", "-1", "--output", "net.pt2"], "must be positive")],
)  # fmt: skip
def test_bad_input_has_exit_status_2(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.glob("*net*"))


def test_a_file_of_another_program_is_refused_by_predict(digit, tmp_path, capsys):
    import torch

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3)).eval()
    torch.export.save(torch.export.export(net, (torch.rand(2, 1, 28, 28),)), tmp_path / "net.pt2")
    assert main(["predict", str(tmp_path / "net.pt2"), str(digit)]) == 2
    assert "does not state its classes" in capsys.readouterr().err
