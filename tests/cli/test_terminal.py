"""What commands share: the device, notes on stderr, and malloc's settings."""

import io
import os
import platform
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from turnwise.cli import terminal
from turnwise.cli.terminal import chosen_device, note
from turnwise.errors import InputError

BLOCK = 64 << 20  # bytes, more than glibc keeps by default
COUNT_PAGE_FAULTS = f"""
import ctypes, resource, sys
if sys.argv[1] == "kept":
    from turnwise.cli.terminal import keep_memory
    keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = bytearray({BLOCK})  # the system fills a new page with zeros
    block[::4096] = bytes([1]) * len(range(0, {BLOCK}, 4096))
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="malloc is not that of glibc"
)


def page_faults(mode, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in terminal.TUNING} | environment
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS, mode]
    ended = subprocess.run(command, capture_output=True, text=True, env=clean, check=True)
    return int(ended.stdout)


def test_a_device_is_chosen_by_name():
    assert chosen_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("available", "kind"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_if_there_is_one(available, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert chosen_device("auto").type == kind


@pytest.mark.parametrize("name", ["abacus", "", "cpu:x", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused(name):
    with pytest.raises(InputError, match=rf"device '{name}' cannot be used here; try auto or cpu"):
        chosen_device(name)


def test_a_note_is_printed_on_stderr(capsys):
    note("testing a")
    assert capsys.readouterr() == ("", "testing a\n")


def test_a_note_to_a_closed_stream_is_no_error(monkeypatch):
    closed = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stderr", closed)
    note("testing a")
    assert closed.write.called


@needs_glibc
def test_freed_memory_is_kept():
    pages = BLOCK // 4096
    assert page_faults("kept") < 3 * pages
    assert page_faults("returned") > 10 * pages, "control: by default each block is returned"


@needs_glibc
def test_settings_of_the_user_are_respected():
    assert page_faults("kept", MALLOC_MMAP_THRESHOLD_="1000000") > 10 * BLOCK // 4096


@pytest.fixture
def loaded_libraries(monkeypatch):
    """Return the libraries that are loaded, in a process whose malloc is not tuned."""
    for name in terminal.TUNING:
        monkeypatch.delenv(name, raising=False)
    libraries = []
    monkeypatch.setattr(terminal.ctypes, "CDLL", lambda name: libraries.append(name) or object())
    return libraries


def test_another_malloc_is_no_error(loaded_libraries, monkeypatch):
    monkeypatch.setattr(terminal.sys, "platform", "linux")
    terminal.keep_memory()
    assert loaded_libraries == [None], "it has no mallopt"


def test_other_systems_are_left_alone(loaded_libraries, monkeypatch):
    monkeypatch.setattr(terminal.sys, "platform", "darwin")
    terminal.keep_memory()
    assert loaded_libraries == []
