"""Handling of Ctrl-C where it does no harm.

Python raises KeyboardInterrupt wherever the program happens to be: while it holds a lock that other
threads wait for, or while it starts a thread.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handle_interrupts(handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Send Ctrl-C to `handler` inside this context.

    The handler may interrupt any code, so it must not take a lock.  Nothing changes if Ctrl-C is
    ignored (in the background) or already handled by the host, or in threads other than the main
    thread, which receive no signals.
    """
    previous = signal.getsignal(signal.SIGINT)
    replace = (
        previous is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    )
    if replace:
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if replace:
            signal.signal(signal.SIGINT, previous)
