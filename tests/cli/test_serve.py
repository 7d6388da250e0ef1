"""turnwise serve: it listens on this machine alone, says where, and ends when it is told to."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from turnwise.cli.main import parse


@pytest.fixture
def serving(run):
    """The command as a process of its own, and the address that it names."""
    command = [sys.executable, "-m", "turnwise", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # what a shell runs in the background ignores interruptions, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    line = process.stdout.readline()
    yield process, re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
    process.kill()
    process.communicate()


def test_it_serves_until_it_is_interrupted(serving):
    process, address = serving
    with urllib.request.urlopen(address, timeout=20) as reply:
        assert b"Turn your picture" in reply.read()
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=20)
    assert process.returncode == 0 and "ended" in said and complained == ""


def test_loopback_is_the_default():
    args = parse(["serve", "run"])
    assert (args.host, args.port) == ("127.0.0.1", 8765)


def test_a_port_in_use(refused, run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "try another --port" in refused("serve", run, "--port", port)


def test_what_cannot_be_served(refused, run, empty_place):
    assert "is not a model or run folder" in refused("serve", empty_place)
    assert "--port 70000 must be from 0 to 65535" in refused("serve", run, "--port", 70000)
    assert "cannot listen on 203.0.113.1" in refused("serve", run, "--host", "203.0.113.1")
    assert "name the one that others are to use" in refused("serve", run, "--host", "0.0.0.0")
