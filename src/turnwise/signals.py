"""Handling of Ctrl-C, SIGTERM and SIGHUP where they do no harm.

Python raises KeyboardInterrupt wherever the program happens to be: while it holds a lock that other
threads wait for, or while it starts a thread.  A scheduler that ends a job (SIGTERM) and a terminal
that closes (SIGHUP) mean the same as Ctrl-C.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TERMINATION = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]


@contextmanager
def handle_interrupts(
    handler: Callable[..., Any] | signal.Handlers,
) -> Iterator[Callable[[], None]]:
    """Send Ctrl-C to `handler` inside this context, and the signals that mean the same.

    The handler may interrupt any code, so it must not take a lock.  A signal that is ignored (in
    the background, under nohup) or already handled by the host stays so.  Threads other than the
    main thread receive no signals.  Yields a function that sets the handlers again, in case a
    library has replaced them.
    """
    replaced = _signals_with(signal.default_int_handler, [signal.SIGINT, *TERMINATION])

    def install(what: Any = handler) -> None:
        for number in replaced:
            signal.signal(number, what)

    install()
    try:
        yield install
    finally:
        install(signal.default_int_handler)


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, instead of ending Python."""
    replaced = _signals_with(signal.SIG_DFL, TERMINATION)
    for number in replaced:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """End this process when its parent has ended, however it ended.

    A process that waits for others to connect would wait for half an hour.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _signals_with(handler: Any, numbers: list[signal.Signals]) -> list[signal.Signals]:
    in_main = threading.current_thread() is threading.main_thread()
    return [number for number in numbers if in_main and signal.getsignal(number) is handler]
