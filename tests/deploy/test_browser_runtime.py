"""onnxruntime-web: found in the cache, checked, and read without being unpacked."""

import hashlib
import io
import tarfile
from dataclasses import replace

import pytest

from turnwise.deploy import browser_runtime
from turnwise.deploy.browser_runtime import PACKAGE, PROGRAM, SCRIPT, BrowserRuntime, find_runtime
from turnwise.errors import InputError


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Write an archive with these members into an empty cache, as if it were the package."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))

    def write(members):
        path = tmp_path / PACKAGE.file
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setattr(browser_runtime, "PACKAGE", replace(PACKAGE, sha256=sha256))
        return path

    return write


def test_nothing_is_found_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    assert find_runtime() is None


def test_two_files_are_read_from_the_archive(store):
    store({"package/../../evil": b"x", SCRIPT: b"export", PROGRAM: b"\0asm"})
    assert find_runtime() == BrowserRuntime(b"export", b"\0asm")


def test_a_changed_archive_is_refused(store):
    path = store({SCRIPT: b"export", PROGRAM: b"\0asm"})
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InputError, match=r"\.tgz is damaged; delete it and download it again"):
        find_runtime()


def test_an_archive_without_the_files_is_refused(store):
    store({SCRIPT: b"export"})
    with pytest.raises(InputError, match=r"\.tgz cannot be read .*; delete it"):
        find_runtime()
