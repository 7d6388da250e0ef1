"""Ctrl-C ends a run between two batches, with everything closed that was open.

KeyboardInterrupt inside the lock of the queue to the thread that writes the TensorBoard file would
leave it locked: closing the file then waits for ever, and Lightning has by then told the process to
ignore any further Ctrl-C.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from turnwise.signals import interruptions_to

STOPPING = b"stopping before the next batch; Ctrl-C once more stops at once\n"


class StopBetweenBatches(Callback):
    """The first request is answered before the next batch, the second at once."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, *_: Any) -> None:
        """Handle the signal; what it may be in the midst of is why nothing is printed here."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # what reads it may have ended by the same Ctrl-C
                os.write(sys.__stderr__.fileno(), STOPPING)

    def answer(self) -> None:
        """Raise what was asked for: the caller holds no lock."""
        if self.asked:
            raise KeyboardInterrupt

    def on_train_batch_start(self, *_: Any) -> None:
        self.answer()

    def on_validation_batch_start(self, *_: Any) -> None:
        self.answer()


@contextmanager
def interruptible(trainer: lightning.Trainer) -> Iterator[None]:
    """Ctrl-C while `trainer` fits becomes one KeyboardInterrupt, raised where it does no harm.

    Of several processes the first answers, and Lightning ends the others: one that left by itself
    would break the step of the rest.
    """
    stop = StopBetweenBatches()
    trainer.callbacks.insert(0, stop)  # type: ignore[attr-defined]
    try:
        with interruptions_to(stop.ask if trainer.local_rank == 0 else signal.SIG_IGN):
            yield
        stop.answer()
    except SystemExit:  # Lightning ends the process on Ctrl-C; the caller decides that here
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        trainer.callbacks.remove(stop)  # type: ignore[attr-defined]
