"""Ctrl-C, answered where it does no harm.

Python raises KeyboardInterrupt wherever the program happens to be: inside a lock that others wait
for, or with a thread half started.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptions_to(handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    """Ctrl-C goes to `handler` meanwhile, which may be in the midst of anything: it takes no lock.

    Where Ctrl-C is ignored, as in the background, or handled by a host, that stays; threads but
    the main one hear no signals.
    """
    usual = signal.getsignal(signal.SIGINT)
    ours = (
        usual is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    )
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)
