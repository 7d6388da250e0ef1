"""A file is written completely or not at all."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.files import fill_atomic, require_writable, write_atomic, write_json


def everything_in(folder):
    return sorted(path.name for path in folder.rglob("*"))


def fail_with(monkeypatch, error):
    def replace(self, target):
        raise error

    monkeypatch.setattr(Path, "replace", replace)


def test_missing_folders_are_created(tmp_path):
    path = tmp_path / "new" / "deep" / "file"
    write_atomic(path, b"text")
    assert path.read_bytes() == b"text"
    assert everything_in(path.parent) == ["file"]


def test_an_existing_file_is_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"a longer text")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """Nor is /dev/null, which root could replace."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert everything_in(tmp_path) == ["pipe"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no /dev/fd")
def test_a_link_to_an_anonymous_pipe_is_written_to(tmp_path):
    """As with `turnwise predict … --output /dev/stdout | wc`."""
    reader, writer = os.pipe()
    (tmp_path / "out").symlink_to(f"/dev/fd/{writer}")
    write_atomic(tmp_path / "out", b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_atomic(tmp_path / "out", b"text")
    os.close(writer)
    assert everything_in(tmp_path) == ["out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_an_input_error():
    with pytest.raises(InputError, match=r"^cannot write /dev/full: no space left on device"):
        write_atomic(Path("/dev/full"), b"text")


def test_a_full_disk_is_an_input_error_and_leaves_no_files(tmp_path, monkeypatch):
    fail_with(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    path = tmp_path / "new" / "page.html"
    message = rf"^cannot write {path}: no space left on device; choose another path\.$"
    with pytest.raises(InputError, match=message):
        write_atomic(path, b"text")
    assert everything_in(tmp_path) == []


def test_the_existing_file_survives_a_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    fail_with(monkeypatch, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(InputError):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert everything_in(tmp_path) == ["file"]


def test_an_interruption_leaves_no_files(tmp_path, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", b"new")
    assert everything_in(tmp_path) == []


def test_a_folder_is_not_overwritten(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        write_atomic(tmp_path / "taken", b"text")
    assert everything_in(tmp_path) == ["taken"]


def test_a_file_as_parent_folder_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(InputError, match=r"cannot write .*file/page\.html"):
        write_atomic(tmp_path / "file" / "page.html", b"text")
    assert everything_in(tmp_path) == ["file"]


def test_a_failed_fill_leaves_no_files_and_its_error_ends_with_the_hint(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"x\.npz: no space left on device; buy a disk\."):
        fill_atomic(tmp_path / "deep" / "x.npz", fail, "buy a disk")
    assert everything_in(tmp_path) == []


def test_the_temporary_file_has_the_suffix_of_the_path(tmp_path):
    """Some writers, such as numpy's, add a suffix that is missing."""
    seen = []

    def fill(path):
        seen.append(path.suffix)
        path.touch()

    fill_atomic(tmp_path / "x.npz", fill)
    assert seen == [".npz"]
    assert everything_in(tmp_path) == ["x.npz"]


@pytest.mark.parametrize("path", ["file/x.csv", "folder", "file/deep/x.csv", "/proc/x.csv"])
def test_a_path_that_cannot_be_written_is_refused_in_advance(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*; move\."):
        require_writable(tmp_path / path, "move")
    assert everything_in(tmp_path) == ["file", "folder"]


def test_checking_a_path_leaves_no_files(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    for path in ("old", "pipe", "new/deep/x.csv", "x.csv"):
        require_writable(tmp_path / path)
    assert everything_in(tmp_path) == ["old", "pipe"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_json_holds_no_nan_or_infinity(tmp_path):
    write_json(tmp_path / "x.json", {"a": [math.nan, 1.0], "b": (math.inf,)})

    def refuse(token):
        raise AssertionError(token)

    stored = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert stored == {"a": ["nan", 1.0], "b": ["inf"]}
