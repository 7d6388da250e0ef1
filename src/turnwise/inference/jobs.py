"""Jobs: a model over many images, in parts that are complete or absent.

A part is a fixed range of the images.  It is computed from its first image with the same batches
whenever it is computed, and written as one file, so an interrupted job continues with the parts
that are missing, and its result is that of an uninterrupted job.
"""

import hashlib
import json
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from turnwise.errors import InputError, require, require_positive
from turnwise.files import ANOTHER_PATH, fill_atomic, write_json
from turnwise.inference.predictor import Predictor
from turnwise.inference.preparation import Preparation
from turnwise.inference.sources import Source

Columns = dict[str, NDArray[Any]]
BROKEN = "broken_"  # prefix of the columns that list what could not be read
PLAN = "job.json"


@dataclass(frozen=True)
class Job:
    """Which images, and how they are prepared and divided."""

    sources: tuple[Source, ...]
    prepare: Preparation
    batch_size: int = 64
    part_size: int = 4096

    def __post_init__(self) -> None:
        require_positive(batch_size=self.batch_size, part_size=self.part_size)
        require(len(self) > 0, "there are no images.")

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(source) for source in self.sources))

    def __len__(self) -> int:
        return self._ends[-1] if self.sources else 0

    def locate(self, index: int) -> tuple[Source, int]:
        """Return the source of an image, and its number there."""
        which = bisect_right(self._ends, index)
        return self.sources[which], index - (self._ends[which - 1] if which else 0)

    @property
    def parts(self) -> int:
        return -(-len(self) // self.part_size)

    def images_of(self, part: int) -> range:
        return range(part * self.part_size, min((part + 1) * self.part_size, len(self)))

    def batches_of(self, part: int) -> list[range]:
        images = self.images_of(part)
        return [images[i : i + self.batch_size] for i in range(0, len(images), self.batch_size)]

    def identity(self) -> dict[str, Any]:
        """Return what an interrupted job and its continuation must agree on."""
        return {
            "sources": [source.identity() for source in self.sources],
            "prepare": repr(self.prepare),
            "batch_size": self.batch_size,
            "part_size": self.part_size,
        }


@dataclass(frozen=True)
class Loaded:
    """A batch as the workers read it; what is broken or background is not among its images."""

    count: int
    images: Tensor | None
    columns: Columns
    broken: tuple[tuple[str, str], ...]


class _Batches(Dataset[Loaded]):
    def __init__(self, job: Job, batches: Sequence[range]) -> None:
        self.job, self.batches = job, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Loaded:
        images, rows, broken = list[Tensor](), list[Mapping[str, Any]](), list[tuple[str, str]]()
        for index in self.batches[number]:
            source, local = self.job.locate(index)
            try:
                pixels = source.read(local)
            except (InputError, OSError) as error:
                broken.append((source.name(local), str(error)))
                continue
            if pixels is not None:
                images.append(self.job.prepare(pixels))
                rows.append(source.columns(local))
        columns = {
            name: np.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())
        }
        stacked = torch.stack(images) if images else None
        return Loaded(len(self.batches[number]), stacked, columns, tuple(broken))


class PartFolder:
    """The finished parts of a job, in a folder beside its output."""

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.parts")

    def start(self, identity: Mapping[str, Any]) -> None:
        """Create the folder, or continue in it if it belongs to the same job."""
        plan, digest = self.path / PLAN, hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        if not plan.exists():
            write_json(plan, {"sha256": digest})
        require(
            json.loads(plan.read_text(encoding="utf-8"))["sha256"] == digest,
            f"{self.path} holds the parts of another job (other images, model or settings); "
            "remove it, or choose another output.",
        )

    def file(self, part: int) -> Path:
        return self.path / f"part-{part:06d}.npz"

    def missing(self, job: Job) -> list[int]:
        return [part for part in range(job.parts) if not self.file(part).exists()]

    def write(self, part: int, columns: Columns, hint: str = ANOTHER_PATH) -> None:
        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, **columns)  # type: ignore[arg-type]

        fill_atomic(self.file(part), save, hint)

    def read(self, part: int) -> tuple[Columns, dict[str, str]]:
        """Return the columns of a part, and what could not be read, with reasons."""
        with np.load(self.file(part), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        names, reasons = (arrays.pop(f"{BROKEN}{kind}").tolist() for kind in ("names", "reasons"))
        return arrays, dict(zip(names, reasons, strict=True))

    def remove(self) -> None:
        shutil.rmtree(self.path)


def run_parts(
    job: Job, parts: Sequence[int], predict: Predictor, folder: PartFolder, workers: int = 0
) -> Iterator[int]:
    """Compute parts in order; `workers` processes read ahead.  Yields how many images ended."""
    batches = [batch for part in parts for batch in job.batches_of(part)]
    loader = DataLoader(
        _Batches(job, batches), batch_size=None, num_workers=workers, prefetch_factor=None
        if workers == 0 else 4,
    )  # fmt: skip
    loaded = iter(loader)
    for part in parts:
        found, broken = list[Columns](), list[tuple[str, str]]()
        for _ in job.batches_of(part):
            batch = next(loaded)
            broken += batch.broken
            if batch.images is not None:
                found.append({**batch.columns, **predict({"image": batch.images.numpy()})})
            yield batch.count
        columns = {
            name: np.concatenate([c[name] for c in found]) for name in (found[0] if found else ())
        }
        folder.write(part, columns | {
            f"{BROKEN}names": np.asarray([name for name, _ in broken], dtype=str),
            f"{BROKEN}reasons": np.asarray([reason for _, reason in broken], dtype=str),
        })  # fmt: skip
