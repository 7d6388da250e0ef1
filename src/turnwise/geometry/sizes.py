"""Image sizes that a model samples symmetrically.

A window of `kernel` pixels that slides by `stride` over n pixels with `padding` on both sides takes
(n + 2·padding − kernel) / stride + 1 positions.  If that division has a remainder, the last pixels
of one side are never read: the sampling is off-centre, and no symmetry of the square is preserved.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnwise.errors import InputError, require

LARGEST_SIZE = 4096


class InexactSizeError(InputError):
    """A model or layer cannot be exact at an image size."""


class Stage(NamedTuple):
    """A step that samples the image: a convolution, a pooling, or a division into patches."""

    kernel: int
    stride: int
    padding: int = 0


def size_after(size: int, stage: Stage) -> int:
    """Return the output size of a stage; a remainder is ignored."""
    return (size + 2 * stage.padding - stage.kernel) // stage.stride + 1


def remainder_of(size: int, stage: Stage) -> int:
    """Return how many of `size` padded pixels the stage does not read, on one side."""
    span = size + 2 * stage.padding - stage.kernel
    require(
        span >= 0,
        f"{size} pixels with {stage.padding} around them are too few for windows of "
        f"{stage.kernel}; use {stage.kernel - 2 * stage.padding} or more.",
    )
    return span % stage.stride


def extended(stage: Stage, remainder: int) -> Stage:
    """Return the stage with windows enlarged by the remainder: it samples symmetrically."""
    return stage._replace(kernel=stage.kernel + remainder)


def output_size(size: int, stages: Sequence[Stage]) -> int | None:
    """Return the size after all stages, or None if a stage is off-centre or has no output."""
    for kernel, stride, padding in stages:
        steps, remainder = divmod(size + 2 * padding - kernel, stride)
        if remainder or steps < 0:
            return None
        size = steps + 1
    return size


def nearest_sizes(size: int, is_exact: Callable[[int], bool]) -> tuple[int, ...]:
    """Return `size` if it is exact, else the nearest exact sizes below and above."""
    if is_exact(size):
        return (size,)
    below = next((n for n in range(size - 1, 0, -1) if is_exact(n)), None)
    above = next((n for n in range(size + 1, LARGEST_SIZE + 1) if is_exact(n)), None)
    return tuple(n for n in (below, above) if n is not None)


def exact_sizes(size: int, stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return `size` if every stage samples it symmetrically, else the nearest sizes that work."""
    return nearest_sizes(size, lambda n: output_size(n, stages) is not None)


def require_exact_size(size: int, stages: Sequence[Stage], what: str) -> None:
    """Raise unless every stage samples an image of `size` symmetrically."""
    nearest = exact_sizes(size, stages)
    if size not in nearest:
        raise InexactSizeError(
            f"image_size = {size} cannot be exact in {what} (a stage would sample it off-centre); "
            f"{advise_sizes(nearest)}."
        )


def advise_sizes(nearest: Sequence[int]) -> str:
    """Return which sizes to try, in half a sentence."""
    return f"try {' or '.join(map(str, nearest))}" if nearest else "use fewer stages: no size works"
