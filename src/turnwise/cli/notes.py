"""Lines beside the answer, on stderr, which nobody need be there to read."""

import sys
from contextlib import suppress


def tell(line: str) -> None:
    """Say it; what was asked for goes on where the reader has left."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
