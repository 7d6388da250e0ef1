"""Memory that one large tensor leaves is kept for the next.

glibc gives large blocks back to the system as soon as they are free, and the system hands them out
again page by page, each filled with zeros: a good part of a certificate's time on a CPU.
"""

import ctypes
import os
import sys
from contextlib import suppress

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
KEPT = 1 << 30  # bytes; larger blocks, and more than this at the end, are given back


def keep_memory() -> None:
    """From now on, in this process; nothing where malloc is another, or the user has tuned it."""
    if sys.platform != "linux" or any(name in os.environ for name in _tuned()):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for threshold in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            mallopt(threshold, KEPT)


def _tuned() -> tuple[str, ...]:
    return ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
