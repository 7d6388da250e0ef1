"""turnwise serve runs until it is interrupted, alone or with several workers."""

import io
import itertools
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

from turnwise.cli import serve
from turnwise.cli.main import parse
from turnwise.deploy.server import TIMEOUT
from turnwise.errors import InputError


def interrupt(process, timeout=60):
    """Send Ctrl-C; return the exit status, and the rest of the output."""
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=timeout)
    return process.returncode, output, error


@pytest.fixture
def serving(run):
    """Run the command in another process; return the process and the address that it prints."""
    command = [sys.executable, "-m", "turnwise", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a process in the background of a shell ignores Ctrl-C, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    line = process.stdout.readline()
    yield process, re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
    process.kill()
    process.communicate()


def test_the_server_runs_until_it_is_interrupted(serving):
    process, address = serving
    with urllib.request.urlopen(address, timeout=20) as reply:
        assert b"Rotate your picture" in reply.read()
    assert interrupt(process) == (0, "stopped\n", "")


def test_the_server_stops_at_once_while_clients_are_connected(serving):
    process, address = serving
    port = int(address.rsplit(":")[-1].rstrip("/"))
    with ExitStack() as clients:
        for sent in (
            b"",
            b"GET / HT",
            b"POST /predict HTTP/1.1\r\nContent-Length: 999\r\n\r\nhalf",
        ):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(sent)
        with urllib.request.urlopen(address, timeout=20) as reply:  # then the others are accepted
            reply.read()
        assert interrupt(process, TIMEOUT / 2) == (0, "stopped\n", "")


def test_the_server_stops_while_it_predicts(serving):
    process, address = serving
    file = io.BytesIO()
    Image.new("L", (1500, 1500)).save(file, "PNG")

    def send_requests():
        request = urllib.request.Request(f"{address}predict", file.getvalue(), method="POST")
        with suppress(OSError, HTTPException):  # the server may close the connection
            while urllib.request.urlopen(request, timeout=20).read():
                replied.set()

    replied = threading.Event()
    clients = [threading.Thread(target=send_requests) for _ in range(3)]
    for client in clients:
        client.start()
    assert replied.wait(60)
    assert interrupt(process) == (0, "stopped\n", "")
    for client in clients:
        client.join()


@pytest.mark.slow
def test_several_workers_share_a_port(run):
    command = [sys.executable, "-m", "turnwise", "serve", str(run), "--port", "0", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    for _ in range(4):
        with urllib.request.urlopen(f"{address}health", timeout=20) as reply:
            assert b"ok" in reply.read()
    assert interrupt(process) == (0, "stopped\n", "")
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}health", timeout=5)


class FakeWorker(subprocess.Popen):
    """A process that runs for some looks of its parent, then ends with a status."""

    def __init__(self, looks, status=-9):
        self.looks, self.status, self.returncode = looks, status, None

    def poll(self):
        self.looks -= 1
        self.returncode = self.status if self.looks < 0 else None
        return self.returncode

    def communicate(self):
        return "", ""


def test_a_worker_that_ended_is_started_again(monkeypatch, capsys):
    later = iter([FakeWorker(3), FakeWorker(0)])
    workers = [FakeWorker(1), FakeWorker(99)]
    clock = itertools.count(0, 4.0)  # seconds, at every look at the clock
    monkeypatch.setattr(serve, "_start", lambda command: next(later))
    monkeypatch.setattr(serve, "_require_started", lambda worker, command: None)
    monkeypatch.setattr(serve.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(serve.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(serve, "MIN_LIFE", 3.0)
    with pytest.raises(StopIteration):  # the third worker to start, after two that ended
        serve._keep_running(workers, ["turnwise"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "turnwise serve: worker 1 ended with exit status -9; starting it again"
    assert len(lines) == 3 and workers[1].looks > 90


def test_a_worker_that_ends_at_once_ends_the_service(monkeypatch):
    monkeypatch.setattr(serve, "POLL", 0.0)
    with pytest.raises(InputError, match=r"worker 2 ended with exit status -9 within 10 seconds"):
        serve._keep_running([FakeWorker(9), FakeWorker(1)], ["turnwise"])


def test_loopback_is_the_default():
    args = parse(["serve", "run"])
    assert (args.host, args.port) == ("127.0.0.1", 8765)


def test_a_port_in_use_is_refused(refused, run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "try another port" in refused("serve", run, "--port", port)


def test_a_wrong_address_is_refused(refused, run, empty_folder):
    assert "is not a model or run folder" in refused("serve", empty_folder)
    assert "--port 70000 must be from 0 to 65535" in refused("serve", run, "--port", 70000)
    assert "cannot listen on 203.0.113.1" in refused("serve", run, "--host", "203.0.113.1")
    assert "give the one that others should use" in refused("serve", run, "--host", "0")
    assert "--workers 0 must be from 1 to 64" in refused("serve", run, "--workers", 0)
