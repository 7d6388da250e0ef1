"""Batches of images: stored as uint8, scaled and augmented on the device of the model.

The images of batch b in epoch e, and their augmentation, depend on (seed, e, b) alone.  So an
interrupted run repeats its epoch exactly, and the processes of a distributed run, each of which
takes every n-th image of the same global batch, together use the images that one process would use.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from turnwise.data.augment import Augmentation, augment, augment_pairs
from turnwise.data.dataset import Examples
from turnwise.data.masks import ignore_corners, is_mask
from turnwise.errors import require, require_divisible
from turnwise.geometry.warps import keep_disc

Batch = tuple[Float[Tensor, "batch channel row col"], Shaped[Tensor, "batch *target"]]
MEMORY_SHARE = 0.5  # of the device's free memory that a data set may take


def to_unit(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uint8 images as numbers from 0 to 1; floating-point images are only cast."""
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)


def to_device(examples: Examples, device: torch.device) -> Examples:
    """Copy the examples to the device, or to pinned memory if the device lacks memory for them."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if examples.images.nbytes > MEMORY_SHARE * free:
            return examples.move(lambda tensor: tensor.pin_memory())
    return examples.move(lambda tensor: tensor.to(device))


class TrainingBatches:
    """Shuffled, augmented batches of equal size; an incomplete last batch is dropped.

    Args:
        batch_size: the images per batch of all processes together.
        fill: the fill mode of warps.
        repeat: how often an epoch uses each image.
        strata: the class of each image; then every class is drawn equally often, with images of
            small classes repeated and a new choice of those of large ones in every epoch.
        rank, world: the index of this process and the number of processes.
    """

    def __init__(  # noqa: PLR0913 - what decides a batch
        self,
        examples: Examples,
        batch_size: int,
        *,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        fill: str = "zeros",
        repeat: int = 1,
        strata: Int64[Tensor, " image"] | None = None,
    ) -> None:
        require_divisible(batch_size, world, "batch_size", f"it is split over {world} processes")
        require(
            len(examples) * repeat >= batch_size,
            f"batch_size = {batch_size} is more than the {len(examples)} training images; "
            f"try {len(examples) // world * world or world}.",
        )
        self.examples, self.device = to_device(examples, device), device
        self.batch_size, self.augmentation, self.seed = batch_size, augmentation, seed
        self.rank, self.world, self.epoch, self.fill = rank, world, 0, fill
        self.repeat = repeat
        self.strata = strata
        self.first = 0

    @property
    def sampler(self) -> "TrainingBatches":
        """The object on which Lightning calls `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.examples) * self.repeat // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        generator = self._generator(0, "cpu")
        order = torch.cat([self._order(generator) for _ in range(self.repeat)])
        first, self.first = self.first, 0
        for batch in range(first, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self._assemble(chosen, self._generator(batch + 1, self.device))

    def start_at(self, batch: int) -> None:
        """Begin the next epoch, and only this one, at a later batch."""
        self.first = batch

    def _order(self, generator: torch.Generator) -> Int64[Tensor, " image"]:
        if self.strata is None:
            return torch.randperm(len(self.examples), generator=generator)
        return balanced_order(self.strata, generator)

    def _assemble(self, chosen: Int64[Tensor, " chosen"], generator: torch.Generator) -> Batch:
        chosen = chosen.to(self.examples.images.device)
        images = self.examples.images[chosen].to(self.device, non_blocking=True)
        targets = self.examples.targets[chosen].to(self.device, non_blocking=True)
        draws = (self.augmentation, generator, self.fill)
        if is_mask(targets):
            augmented, targets = augment_pairs(to_unit(images), targets, *draws)
        else:
            augmented = augment(to_unit(images), *draws)
        return augmented[self.rank :: self.world], targets[self.rank :: self.world]

    def _generator(self, draw: int, device: torch.device | str) -> torch.Generator:
        """Return an independent generator for every (seed, epoch, draw)."""
        return torch.Generator(device=device).manual_seed(mix(self.seed, self.epoch, draw))


def balanced_order(
    strata: Int64[Tensor, " image"], generator: torch.Generator
) -> Int64[Tensor, " image"]:
    """Return as many positions as there are images, with every class equally often, shuffled.

    The images of a class are used in a random order, again and again if there are too few; where
    the classes do not divide the images, the counts differ by one.
    """
    classes = strata.unique().tolist()
    share = -(-len(strata) // len(classes))
    drawn = []
    for label in classes:
        members = (strata == label).nonzero()[:, 0]
        rounds = [
            members[torch.randperm(len(members), generator=generator)]
            for _ in range(-(-share // len(members)))
        ]
        drawn.append(torch.cat(rounds)[:share])
    positions = torch.stack(drawn, dim=1).flatten()[: len(strata)]
    return positions[torch.randperm(len(strata), generator=generator)]


class EvaluationBatches:
    """Every image once, in order, without augmentation; process `rank` of `world` takes every n-th.

    The last batch may be smaller.  With the fill mode "disc" each image is its inscribed disc.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        *,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        fill: str = "zeros",
    ) -> None:
        own = examples if world == 1 else examples.take(torch.arange(rank, len(examples), world))
        self.examples, self.batch_size, self.device = to_device(own, device), batch_size, device
        self.fill = fill

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.examples), self.batch_size):
            images = self.examples.images[start : start + self.batch_size]
            targets = self.examples.targets[start : start + self.batch_size]
            upright = to_unit(images.to(self.device))
            if self.fill == "disc":
                upright = keep_disc(upright)
                targets = ignore_corners(targets) if is_mask(targets) else targets
            yield upright, targets.to(self.device)


def mix(*numbers: int) -> int:
    """Hash several numbers into one 63-bit seed, by steps of splitmix64."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
