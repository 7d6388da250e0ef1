"""Ctrl-C reaches the given handler, unless the host handles it already."""

import signal
import threading

import pytest

from turnwise.signals import handle_interrupts


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
