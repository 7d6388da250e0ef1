"""turnwise serve: it listens on this machine alone, says where, and ends when it is told to."""

import io
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, suppress
from http.client import HTTPException

import pytest
from PIL import Image

from turnwise.cli.main import parse
from turnwise.deploy.server import PATIENCE


def ended(process, patience=60):
    """What an interrupted server ends with, and what it said."""
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=patience)
    return process.returncode, said, complained


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
    assert ended(process) == (0, "ended\n", "")


def test_it_ends_at_once_whoever_is_still_connected(serving):
    process, address = serving
    port = int(address.rsplit(":")[-1].rstrip("/"))
    with ExitStack() as callers:
        for said in (b"", b"GET / HT", b"POST /answer HTTP/1.1\r\nContent-Length: 999\r\n\r\nhalf"):
            caller = callers.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(said)
        with urllib.request.urlopen(address, timeout=20) as reply:  # so the others are being heard
            reply.read()
        assert ended(process, PATIENCE / 2) == (0, "ended\n", "")


def test_it_ends_well_in_the_middle_of_answers(serving):
    process, address = serving
    drawn = io.BytesIO()
    Image.new("L", (1500, 1500)).save(drawn, "PNG")

    def ask():
        question = urllib.request.Request(f"{address}answer", drawn.getvalue(), method="POST")
        with suppress(OSError, HTTPException):  # the server may hang up, as it should
            while urllib.request.urlopen(question, timeout=20).read():
                answered.set()

    answered = threading.Event()
    callers = [threading.Thread(target=ask) for _ in range(3)]
    for caller in callers:
        caller.start()
    assert answered.wait(60)
    assert ended(process) == (0, "ended\n", "")
    for caller in callers:
        caller.join()


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
