"""Formats follow from suffixes; what cannot be written here is refused before any work."""

import shutil
from pathlib import Path

import pytest

from turnwise.deploy import formats
from turnwise.errors import InputError


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [("", "net.pt2", "pt2"), ("pt2", "net.pt2", "pt2"), ("aoti", "net.pt2", "aoti")],
)
def test_the_format_follows_from_the_suffix(name, path, found, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: program)
    assert formats.require_format(name, Path(path)) == found


def test_compiling_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(InputError, match="needs a C\\+\\+ compiler"):
        formats.require_format("aoti", Path("net.pt2"))


def test_onnx_needs_its_packages(monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda package: None)
    with pytest.raises(InputError, match=r"pip install turnwise\[onnx\]"):
        formats.require_format("", Path("net.onnx"))


def test_every_format_has_a_writer():
    assert set(formats.WRITERS) == {"onnx", "pt2", "aoti"}
