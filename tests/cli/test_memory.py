"""Large blocks that are freed stay with the process, unless the user has said what malloc does."""

import os
import platform
import subprocess
import sys

import pytest

from turnwise.cli import memory

BLOCK = 64 << 20  # bytes, above what glibc would keep by itself
COUNTED = f"""
import ctypes, resource, sys
if sys.argv[1] == "kept":
    from turnwise.cli.memory import keep_memory
    keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = bytearray({BLOCK})  # written with zeros, page by page where it is new
    block[::4096] = bytes([1]) * len(range(0, {BLOCK}, 4096))
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in memory._tuned()} | environment
    command = [sys.executable, "-c", COUNTED, how]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is another here")
def test_pages_are_asked_for_once():
    pages = BLOCK // 4096
    assert faults("kept") < 3 * pages
    assert faults("given back") > 10 * pages, "control: without it, each time"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is another here")
def test_what_the_user_has_tuned_stays():
    assert faults("kept", MALLOC_MMAP_THRESHOLD_="1000000") > 10 * BLOCK // 4096


@pytest.fixture
def asked(monkeypatch):
    """The libraries that were asked for, in a process that nobody has tuned."""
    for name in memory._tuned():
        monkeypatch.delenv(name, raising=False)
    libraries = []
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: libraries.append(name) or object())
    return libraries


def test_where_malloc_is_another_it_goes_on(asked, monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    memory.keep_memory()
    assert asked == [None], "it looked, and found no mallopt"


def test_elsewhere_it_does_not_even_look(asked, monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.keep_memory()
    assert asked == []
