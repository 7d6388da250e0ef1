"""Who hears Ctrl-C: the handler that was given, unless somebody else has a say in it."""

import signal
import threading

import pytest

from turnwise.signals import interruptions_to


@pytest.fixture(autouse=True)
def heard():
    """What a shell runs in the background ignores interruptions; here they are heard."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def test_the_handler_hears_and_is_forgotten():
    heard = []
    with interruptions_to(lambda *_: heard.append("Ctrl-C")):
        signal.raise_signal(signal.SIGINT)
    assert heard == ["Ctrl-C"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_inside_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), interruptions_to(signal.SIG_IGN):
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_not_python_s_own_stays():
    """A program that runs in the background ignores Ctrl-C, and a host may have its own way."""
    for theirs in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGINT, theirs)
        with interruptions_to(signal.default_int_handler):
            assert signal.getsignal(signal.SIGINT) is theirs
        assert signal.getsignal(signal.SIGINT) is theirs


def test_in_another_thread_nothing_happens():
    seen = []

    def look():
        with interruptions_to(signal.SIG_IGN):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
