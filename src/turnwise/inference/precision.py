"""What is measured in float32 is measured in all its bits.

By default cuDNN rounds the factors of a float32 convolution on a GPU to ten bits (TF32).  Fine for
training; but then a picture and the same picture turned round apart by 1e-3, and an exact model
would be called inexact.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Without TF32 in here, as a block or around a function; outside all is as it was."""
    parts: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [part.allow_tf32 for part in parts]
    try:
        for part in parts:
            part.allow_tf32 = False
        yield
    finally:
        for part, allowed in zip(parts, before, strict=True):
            part.allow_tf32 = allowed
