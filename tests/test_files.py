"""All of a file or nothing of it."""

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


def test_a_file_is_written_and_its_folders_made(tmp_path):
    path = tmp_path / "new" / "deep" / "file"
    write_atomic(path, b"text")
    assert path.read_bytes() == b"text"
    assert everything_in(path.parent) == ["file"]


def test_an_old_file_is_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"a longer text")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    """As /dev/null, which a user with all rights could replace."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert everything_in(tmp_path) == ["pipe"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no /dev/fd")
def test_a_link_to_a_pipe_without_a_name(tmp_path):
    """As /dev/stdout in `turnwise predict … --output /dev/stdout | wc`."""
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
def test_a_device_that_takes_nothing_is_one_line():
    with pytest.raises(InputError, match=r"^cannot write /dev/full: no space left on device"):
        write_atomic(Path("/dev/full"), b"text")


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch):
    fail_with(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    path = tmp_path / "new" / "page.html"
    message = rf"^cannot write {path}: no space left on device; choose another place with --output"
    with pytest.raises(InputError, match=message):
        write_atomic(path, b"text")
    assert everything_in(tmp_path) == []


def test_the_old_file_survives_a_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    fail_with(monkeypatch, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(InputError):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert everything_in(tmp_path) == ["file"]


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", b"new")
    assert everything_in(tmp_path) == []


def test_a_folder_is_not_overwritten(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        write_atomic(tmp_path / "taken", b"text")
    assert everything_in(tmp_path) == ["taken"]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(InputError, match=r"cannot write .*file/page\.html"):
        write_atomic(tmp_path / "file" / "page.html", b"text")
    assert everything_in(tmp_path) == ["file"]


def test_a_failed_filler_leaves_nothing_and_tells_its_own_cure(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"x\.npz: no space left on device; buy a disk\."):
        fill_atomic(tmp_path / "deep" / "x.npz", fail, "buy a disk")
    assert everything_in(tmp_path) == []


def test_the_filler_s_file_keeps_the_suffix(tmp_path):
    """Some writers, numpy's among them, add a suffix that they miss."""
    seen = []

    def fill(path):
        seen.append(path.suffix)
        path.touch()

    fill_atomic(tmp_path / "x.npz", fill)
    assert seen == [".npz"]
    assert everything_in(tmp_path) == ["x.npz"]


@pytest.mark.parametrize("path", ["file/x.csv", "folder", "file/deep/x.csv", "/proc/x.csv"])
def test_a_place_that_cannot_be_written_is_known_before(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*; move\."):
        require_writable(tmp_path / path, "move")
    assert everything_in(tmp_path) == ["file", "folder"]


def test_of_the_attempt_to_write_nothing_is_left(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    for path in ("old", "pipe", "new/deep/x.csv", "x.csv"):
        require_writable(tmp_path / path)
    assert everything_in(tmp_path) == ["old", "pipe"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_json_holds_no_token_that_other_readers_refuse(tmp_path):
    write_json(tmp_path / "x.json", {"a": [math.nan, 1.0], "b": (math.inf,)})

    def refuse(token):
        raise AssertionError(token)

    kept = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert kept == {"a": ["nan", 1.0], "b": ["inf"]}
