"""Which picture sizes are exact.

A window of `kernel` pixels that moves by `stride` over n pixels with `padding` on both sides visits
(n + 2·padding − kernel) / stride + 1 places.  If that division leaves a remainder, the last pixels
on one side are never seen: the sampling is off-centre and no symmetry of the square survives it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnwise.errors import require

LARGEST_SIZE = 4096


class Stage(NamedTuple):
    """One step that samples the picture: a convolution, a pooling, or a cut into patches."""

    kernel: int
    stride: int
    padding: int = 0


def size_after(size: int, stage: Stage) -> int:
    """Pixels that a stage leaves of `size`, the rest unseen."""
    return (size + 2 * stage.padding - stage.kernel) // stage.stride + 1


def remainder_of(size: int, stage: Stage) -> int:
    """How many of `size` pixels, padded, the stage leaves unseen on one side."""
    room = size + 2 * stage.padding - stage.kernel
    require(
        room >= 0,
        f"{size} pixels with {stage.padding} around them are too few for windows of "
        f"{stage.kernel}; use {stage.kernel - 2 * stage.padding} or more.",
    )
    return room % stage.stride


def extended(stage: Stage, remainder: int) -> Stage:
    """The stage with windows that see the remainder, too: it samples symmetrically."""
    return stage._replace(kernel=stage.kernel + remainder)


def output_size(size: int, stages: Sequence[Stage]) -> int | None:
    """The size after all stages, or None if some stage is off-centre or runs empty."""
    for kernel, stride, padding in stages:
        steps, remainder = divmod(size + 2 * padding - kernel, stride)
        if remainder or steps < 0:
            return None
        size = steps + 1
    return size


def nearest_sizes(size: int, is_exact: Callable[[int], bool]) -> tuple[int, ...]:
    """`size` itself if it is exact, else the nearest exact sizes below and above."""
    if is_exact(size):
        return (size,)
    below = next((n for n in range(size - 1, 0, -1) if is_exact(n)), None)
    above = next((n for n in range(size + 1, LARGEST_SIZE + 1) if is_exact(n)), None)
    return tuple(n for n in (below, above) if n is not None)


def exact_sizes(size: int, stages: Sequence[Stage]) -> tuple[int, ...]:
    """`size` itself if every stage samples it symmetrically, else the nearest sizes that work."""
    return nearest_sizes(size, lambda n: output_size(n, stages) is not None)


def require_exact_size(size: int, stages: Sequence[Stage], what: str) -> None:
    """Raise unless every stage samples a picture of `size` symmetrically."""
    nearest = exact_sizes(size, stages)
    require(
        size in nearest,
        f"image_size = {size} cannot be exact in {what} (a stage would sample it off-centre); "
        f"try {' or '.join(map(str, nearest))}.",
    )
