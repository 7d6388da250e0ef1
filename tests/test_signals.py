"""Ctrl-C, SIGTERM and SIGHUP reach the given handler, unless the host handles them already."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from turnwise.signals import TERMINATION, handle_interrupts, interrupt_on_termination


@pytest.fixture(autouse=True)
def default_handler():
    """Restore Python's own handler, which a process in the background of a shell does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_handler_is_called_and_removed_afterwards():
    calls = []
    with handle_interrupts(lambda *_: calls.append("Ctrl-C")):
        signal.raise_signal(signal.SIGINT)
    assert calls == ["Ctrl-C"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_restores_the_handler():
    with pytest.raises(ZeroDivisionError), handle_interrupts(signal.SIG_IGN):
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_host_stays():
    """A program in the background ignores Ctrl-C; a notebook handles it in its own way."""
    for theirs in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGINT, theirs)
        with handle_interrupts(signal.default_int_handler):
            assert signal.getsignal(signal.SIGINT) is theirs
        assert signal.getsignal(signal.SIGINT) is theirs


def test_in_another_thread_nothing_changes():
    seen = []

    def look():
        with handle_interrupts(signal.SIG_IGN):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("number", TERMINATION)
def test_termination_interrupts_where_it_would_end_python(number):
    calls = []
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with interrupt_on_termination():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            with handle_interrupts(lambda *_: calls.append(number)) as install:
                signal.signal(number, signal.SIG_IGN)  # as a library might
                install()
                signal.raise_signal(number)
        assert calls == [number] and signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # nohup
        with interrupt_on_termination(), handle_interrupts(lambda *_: calls.append("wrong")):
            signal.raise_signal(number)
        assert calls == [number]
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(os.name == "nt", reason="processes have no parents that change")
def test_a_process_ends_with_its_parent():
    """A rank once waited half an hour for a first process that was killed while it started."""
    child = "from turnwise.signals import end_with_parent as e; import time; e(); time.sleep(600)"
    parent = (
        f"import subprocess as s, sys; child = s.Popen([sys.executable, '-c', {child!r}]); "
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", parent], **pipes) as process:
        number = int(process.stdout.readline())
        time.sleep(2)
        os.kill(number, 0)
        process.kill()
    deadline = time.monotonic() + 60
    while is_running(number) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(number)


def is_running(number):
    """Return whether a process runs; a dead one that nobody waits for does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True)
    return found.stdout.strip() not in ("", "Z", "Zs")
