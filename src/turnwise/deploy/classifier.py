"""From the bytes of image files to predictions, for many clients at once.

Images that arrive while the model is busy wait, and are predicted together in the next batch.  So
nobody waits for a batch to fill, and under load batches are large.
"""

import base64
import io
import tempfile
import threading
import warnings
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from turnwise.data import read_image
from turnwise.data.batches import to_unit
from turnwise.data.readers.image_files import FORMATS, KINDS
from turnwise.errors import InputError, require
from turnwise.geometry.warps import rotate_image
from turnwise.groups import PlanarGroup
from turnwise.inference.loading import image_shape
from turnwise.inference.predictor import Predictor
from turnwise.reports.pages import encode_png

MAX_PIXELS = 16_000_000  # decoded and resampled in double precision, 400 MB
MAX_CLASSES = 10  # in a reply, the most probable ones
BATCH = 64  # images per forward pass
MAX_WAITING = 1024  # images, and
MAX_WAITING_BYTES = 200_000_000  # of theirs


class BusyError(Exception):
    """Too many images are waiting."""


@dataclass(frozen=True, eq=False)
class ImageClassifier:
    """The model behind the service."""

    name: str
    model: nn.Module
    classes: tuple[str, ...]
    fill: str = "zeros"  # of the corners of rotated images
    predictor: Predictor = field(init=False)
    channels: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        channels, size = image_shape(self.model)
        if channels is None or size is None:
            raise InputError("the model does not say which images it takes.")
        predictor = Predictor(self.model, ("predictions",), batch_size=BATCH)
        for name, value in {"predictor": predictor, "channels": channels, "size": size}.items():
            object.__setattr__(self, name, value)
        # a whole batch: the memory that it needs is taken now, and not under load
        found = self.outputs(torch.zeros(BATCH, channels, size, size))
        require(
            found.ndim == 2, f"{self.name} returns maps; the service takes a model of whole images."
        )

    def outputs(self, images: Float[Tensor, "image channel row col"]) -> Tensor:
        """Return one row of predictions for each image."""
        return self.predictor.run(images)["predictions"]

    def read(self, content: bytes) -> UInt8[Tensor, "channel row col"]:
        """Decode the image in a file and resample it to the model's size; raise if it is none."""
        return open_image(content, self.size, self.channels)

    def rotate(
        self, image: UInt8[Tensor, "channel row col"], degrees: float
    ) -> Float[Tensor, "channel row col"]:
        return rotate_image(to_unit(image[None]), degrees, self.fill)[0]

    def describe(self, row: Float[Tensor, " output"]) -> dict[str, Any]:
        """Return the prediction for one image as plain values.

        label                   the prediction in words
        classes, probabilities  the most probable classes, at most `MAX_CLASSES`, in the model's
                                order; `names` and `values` of a model that predicts numbers
        """
        values = row.tolist()
        names = self.classes or tuple(map(str, range(len(values))))
        kind = self.predictor.kind.named(names)
        if not kind.has_probabilities:
            return {"label": kind.describe(row), "names": list(names), "values": values}
        ranked = sorted(range(len(values)), key=values.__getitem__)
        shown = sorted(ranked[-MAX_CLASSES:])
        return {
            "label": kind.describe(row),
            "classes": [names[c] for c in shown],
            "probabilities": [values[c] for c in shown],
        }

    def about(self) -> dict[str, Any]:
        """Return what clients may want to know of the model, as plain values."""
        group = getattr(self.model, "group", None)
        description = getattr(self.model, "description", None)
        return {
            "name": self.name,
            "target": self.predictor.kind.kind,
            "classes": list(self.classes),
            "group": group.name if isinstance(group, PlanarGroup) else "C1",
            "channels": self.channels,
            "image_size": self.size,
            "licence": getattr(description, "licence", ""),
        }


@dataclass(eq=False)
class _Job:
    images: Float[Tensor, "image channel row col"]
    done: Future[Tensor]


class Batcher:
    """A thread that predicts for all waiting images together.  `close` ends it."""

    def __init__(self, classifier: ImageClassifier) -> None:
        self.classifier = classifier
        self.jobs: deque[_Job] = deque()
        self.waiting, self.closed = 0, False
        bytes_each = 4 * classifier.channels * classifier.size**2
        self.limit = max(BATCH, min(MAX_WAITING, MAX_WAITING_BYTES // bytes_each))
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="turnwise-batches")
        self.thread.start()

    def submit(self, images: Float[Tensor, "image channel row col"]) -> Future[Tensor]:
        """Return the future predictions for some images; raise if too many wait already."""
        job = _Job(images, Future())
        with self.changed:
            if self.closed or self.waiting + len(images) > self.limit:
                raise BusyError
            self.jobs.append(job)
            self.waiting += len(images)
            self.changed.notify()
        return job.done

    def close(self) -> None:
        """Predict for what waits, then end the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _take(self) -> list[_Job]:
        """Return the jobs of the next batch: all that wait, up to `BATCH` images."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.jobs) or self.closed)
            taken, count = list[_Job](), 0
            while self.jobs and (not taken or count + len(self.jobs[0].images) <= BATCH):
                taken.append(self.jobs.popleft())
                count += len(taken[-1].images)
            self.waiting -= count
            return taken

    def _run(self) -> None:
        while jobs := self._take():
            try:
                found = self.classifier.outputs(torch.cat([job.images for job in jobs]))
            except Exception as error:  # reported to the clients
                for job in jobs:
                    job.done.set_exception(error)
                continue
            parts = found.split([len(job.images) for job in jobs])
            for job, part in zip(jobs, parts, strict=True):
                job.done.set_result(part)


def open_image(
    content: bytes, image_size: int, channels: int
) -> UInt8[Tensor, "channels image_size image_size"]:
    """Decode an image for the model; raise if it is none, or too large."""
    require(bool(content), f"the file is empty; choose a {KINDS}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                pixels = image.size[0] * image.size[1]  # from the header: nothing is decoded
    except Exception as error:  # a parser may raise anything on such input
        raise InputError(f"the file is not a picture; choose a {KINDS}.") from error
    require(
        pixels <= MAX_PIXELS,
        f"the picture has {pixels:,} pixels, and {MAX_PIXELS:,} is the limit; shrink it.",
    )
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        path = Path(folder) / "image"
        path.write_bytes(content)
        try:
            return read_image(path, image_size, channels)
        except InputError as error:
            raise InputError(str(error).replace(str(path), "the file")) from error
        except Exception as error:
            raise InputError("the picture cannot be read; save it again as PNG.") from error


def base64_png(image: Tensor) -> str:
    """Return an image, uint8 or in [0, 1], as a PNG file in base64."""
    pixels = image if image.dtype == torch.uint8 else (255 * image).round().to(torch.uint8)
    return base64.b64encode(encode_png(pixels)).decode()
