"""Batches made where the model is: pictures stay uint8 in memory, and are turned on the device.

Which pictures form batch b of epoch e, and how they are moved, is a function of (seed, e, b) alone.
So an interrupted run repeats its epoch exactly, and the processes of a distributed run, each taking
every n-th picture of the same global batch, see together what a single process would see.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from turnwise.data.augment import Augmentation, augment
from turnwise.data.dataset import Examples
from turnwise.errors import require, require_divisible

Batch = tuple[Float[Tensor, "batch channel row col"], Int64[Tensor, " batch"]]
ROOM = 0.5  # of the device's free memory that a data set may take


def to_unit(images: Tensor) -> Tensor:
    """uint8 pictures as numbers from 0 to 1."""
    return images.to(torch.float32) / 255


def place(pictures: Examples, device: torch.device) -> Examples:
    """The pictures on the device if they fit there comfortably, else in pinned memory."""
    if device.type != "cuda":
        return Examples(pictures.images.to(device), pictures.labels.to(device))
    free, _ = torch.cuda.mem_get_info(device)
    if pictures.images.nbytes <= ROOM * free:
        return Examples(pictures.images.to(device), pictures.labels.to(device))
    return Examples(pictures.images.pin_memory(), pictures.labels.pin_memory())


class TrainingBatches:
    """Shuffled, augmented batches of equal size; what is left over waits for the next epoch.

    rank, world: this process and the number of all; `batch_size` is that of all together.
    """

    def __init__(
        self,
        pictures: Examples,
        batch_size: int,
        *,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        require_divisible(batch_size, world, "batch_size", f"it is split over {world} processes")
        require(
            len(pictures) >= batch_size,
            f"batch_size = {batch_size} is more than the {len(pictures)} training pictures; "
            f"try {len(pictures) // world * world or world}.",
        )
        self.pictures, self.device = place(pictures, device), device
        self.batch_size, self.augmentation, self.seed = batch_size, augmentation, seed
        self.rank, self.world, self.epoch = rank, world, 0

    @property
    def sampler(self) -> "TrainingBatches":
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.pictures) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self.pictures), generator=self._generator(0, "cpu"))
        for batch in range(len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self._assemble(chosen, self._generator(batch + 1, self.device))

    def _assemble(self, chosen: Int64[Tensor, " chosen"], generator: torch.Generator) -> Batch:
        chosen = chosen.to(self.pictures.images.device)
        images = self.pictures.images[chosen].to(self.device, non_blocking=True)
        labels = self.pictures.labels[chosen].to(self.device, non_blocking=True)
        moved = augment(to_unit(images), self.augmentation, generator)
        return moved[self.rank :: self.world], labels[self.rank :: self.world]

    def _generator(self, draw: int, device: torch.device | str) -> torch.Generator:
        """A stream of its own for every (seed, epoch, draw); the mix keeps them apart."""
        state = mix(self.seed, self.epoch, draw)
        return torch.Generator(device=device).manual_seed(state)


class EvaluationBatches:
    """Every picture once, in order, unmoved; process `rank` of `world` takes every n-th."""

    def __init__(
        self,
        pictures: Examples,
        batch_size: int,
        *,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        own = Examples(pictures.images[rank::world], pictures.labels[rank::world])
        self.pictures, self.batch_size, self.device = place(own, device), batch_size, device

    def __len__(self) -> int:
        return -(-len(self.pictures) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.pictures), self.batch_size):
            images = self.pictures.images[start : start + self.batch_size]
            labels = self.pictures.labels[start : start + self.batch_size]
            yield to_unit(images.to(self.device)), labels.to(self.device)


def mix(*numbers: int) -> int:
    """One 63-bit seed from several numbers, different for different numbers (splitmix64 steps)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
