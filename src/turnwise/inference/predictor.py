"""`Predictor`: the one loop from images to outputs.

Commands, evaluations, certificates, reports and the service all predict through this class.  It is
a plain callable that takes and returns a dictionary of arrays, so that a parallel engine can run it
as it is: `dataset.map_batches(Predictor(model))`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from tqdm import tqdm

from turnwise.data.batches import to_unit
from turnwise.data.targets import kind_of
from turnwise.errors import InputError, require, require_known, require_positive
from turnwise.geometry.warps import keep_disc
from turnwise.inference.exported import FileModel
from turnwise.inference.graphs import RecordedPass
from turnwise.models.contract import Model, logits_of
from turnwise.models.embedding import is_embedding

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
OUTPUTS = ("logits", "predictions", "probabilities", "embedding")

Images = Shaped[Tensor, "image channel row col"]
Transform = Callable[[Tensor], Tensor]


class Predictor:
    """Run a model on images, in batches, on its device, in eval mode.

    Args:
        model: any model; its `preprocess` is applied if it has one.
        outputs: of "logits", "predictions" (what the model's kind of target makes of them:
            probabilities, or numbers in their unit), "probabilities" (the same, for kinds that have
            them) and "embedding" (the pooled features before the classifier, which needs a model
            with `forward_features` and `forward_head`).
        batch_size: images per forward pass, which bounds the memory.
        precision: run the model in this precision: a copy, unless it has this precision itself.
            In "bfloat16" a GPU reads weights of half the size; an exact model is then exact to
            three digits.
        cuda_graphs: on a GPU, record the forward pass of whole batches and replay it.  A small
            model then does not wait for its launches; a batch of fewer images runs as usual.

    Call it with a dictionary of columns: it replaces the column "image" by the outputs, as NumPy
    arrays.  Images are uint8, or floating-point numbers in [0, 1], of shape (image, channel, row,
    col).  On GPUs float32 means float32: TF32 is off while a predictor runs.

    >>> import turnwise
    >>> predict = Predictor(turnwise.create_model("vit"), outputs=("probabilities", "embedding"))
    >>> found = predict({"image": np.zeros((2, 1, 28, 28), dtype=np.uint8), "name": ["a", "b"]})
    >>> found["name"], found["probabilities"].shape, found["embedding"].shape
    (['a', 'b'], (2, 10), (2, 128))
    """

    def __init__(
        self,
        model: nn.Module,
        outputs: Sequence[str] = ("probabilities",),
        *,
        batch_size: int = 256,
        precision: str | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        require_positive(batch_size=batch_size)
        for output in outputs:
            require_known(output, OUTPUTS, "output")
        fixed = model.precision if isinstance(model, FileModel) else None
        if precision is not None and fixed is None:
            require_known(precision, PRECISIONS, "precision")
            model = in_precision(model, PRECISIONS[precision])
        require(
            precision is None or fixed in (None, precision),
            f"the model computes in {fixed}, not in {precision}.",
        )
        self.model, self.outputs, self.batch_size = model, tuple(outputs), batch_size
        self.kind = kind_of(model)
        self._keeps_disc = keeps_disc(model)
        self._precision = fixed or precision
        self._fixed_batch = model.batch if isinstance(model, FileModel) else None
        self._recorded = RecordedPass() if cuda_graphs else None

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    @property
    def precision(self) -> torch.dtype:
        """The type of the images that the model takes: as requested, or that of its parameters."""
        if self._precision is not None:
            return PRECISIONS[self._precision]
        kinds = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(kinds, torch.float32)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of `batch`, with outputs instead of "image"."""
        require("image" in batch, f"a batch needs a column image; it has {', '.join(batch)}.")
        images = np.require(batch["image"], requirements=("C", "W"))  # engines share read-only ones
        found = self.run(torch.from_numpy(images))
        rest = {name: column for name, column in batch.items() if name != "image"}
        return rest | {name: output.numpy() for name, output in found.items()}

    def logits(self, images: Images, transform: Transform | None = None) -> Tensor:
        """Return the logits in float64."""
        return self.run(images, transform, outputs=("logits",))["logits"].double()

    def probabilities(self, images: Images, transform: Transform | None = None) -> Tensor:
        """Return the probabilities of all classes or labels in float32."""
        return self.run(images, transform, outputs=("probabilities",))["probabilities"]

    def predictions(self, images: Images, transform: Transform | None = None) -> Tensor:
        """Return probabilities or numbers, whatever the model predicts, in float32."""
        return self.run(images, transform, outputs=("predictions",))["predictions"]

    @torch.no_grad()
    def run(
        self,
        images: Images,
        transform: Transform | None = None,
        *,
        outputs: Sequence[str] | None = None,
        progress: str = "",
    ) -> dict[str, Tensor]:
        """Return the outputs for all images, on the CPU.

        Args:
            images: uint8 or in [0, 1].
            transform: applied to each batch of images in [0, 1] before preprocessing.
            outputs: instead of the predictor's own.
            progress: the title of a progress bar; empty shows none.
        """
        wanted = tuple(outputs or self.outputs)
        found: dict[str, list[Tensor]] = {name: [] for name in wanted}
        with full_precision(), _eval_mode(self.model):
            for batch in self._batches(images, progress):
                prepared, count = self._prepare(batch, transform)
                for name, output in self._run_batch(prepared, wanted, count).items():
                    found[name].append(output[: len(batch)].cpu())
        outputs_found = {name: torch.cat(parts) for name, parts in found.items()}
        for name, values in outputs_found.items():
            if name != "logits":  # certificates and training report those themselves
                _require_finite(values, name)
        return outputs_found

    def preprocess(self, images: Tensor) -> Tensor:
        """Apply the model's own preprocessing, if it has any."""
        inner = getattr(self.model, "preprocess", None)
        return images if inner is None else inner(images)

    def _batches(self, images: Images, progress: str) -> Iterator[Tensor]:
        """Yield batches; a file that was exported for a fixed number of images sets their size."""
        size = self._fixed_batch or self.batch_size
        yield from tqdm(images.split(size), desc=progress, disable=not progress, leave=False)

    def _prepare(self, batch: Tensor, transform: Transform | None) -> tuple[Tensor, int]:
        """Return preprocessed images, filled up to a fixed batch size, and their number."""
        # transformed in float32 or finer: bfloat16 cannot tell neighbouring pixels apart
        fine = torch.promote_types(self.precision, torch.float32)
        images = to_unit(batch.to(self.device), fine)
        images = images if transform is None else transform(images)
        images = (keep_disc(images) if self._keeps_disc else images).to(self.precision, copy=True)
        missing = (self._fixed_batch or 0) - len(images)
        if missing > 0:
            images = torch.cat([images, images[-1:].expand(missing, *images.shape[1:])])
        return self.preprocess(images), len(images)

    def _run_batch(self, images: Tensor, wanted: tuple[str, ...], count: int) -> dict[str, Tensor]:
        """Return the outputs of a batch, from a recording if there is one for whole batches."""
        if self._recorded is None or not images.is_cuda or len(images) < self.batch_size:
            return self._outputs(images, wanted, count)
        tensors = (*self.model.parameters(), *self.model.buffers())
        state = (images.shape, images.dtype, wanted, *(x.data_ptr() for x in tensors))
        return self._recorded(lambda batch: self._outputs(batch, wanted, count), images, state)

    def _outputs(self, images: Tensor, wanted: Sequence[str], count: int) -> dict[str, Tensor]:
        model, found = self.model, dict[str, Tensor]()
        if set(wanted) == {"embedding"} and is_embedding(model):
            return {"embedding": logits_of(model(images))}
        if "embedding" in wanted:
            if isinstance(model, FileModel) and model.has_embedding:
                found |= model.outputs(images)
                logits = found["logits"]
            elif isinstance(model, Model):
                features = model.forward_features(images)
                found["embedding"] = model.forward_head(features, pre_logits=True)
                if set(wanted) == {"embedding"}:
                    return found
                logits = model.forward_head(features)
            else:
                raise InputError(
                    f"a {type(model).__name__} has no embedding; that takes a model with "
                    "forward_features and forward_head."
                )
        else:
            logits = logits_of(model(images))
        require(
            logits.ndim > 1 and len(logits) == count,
            f"the model returns shape {tuple(logits.shape)} for {count} images; it must return "
            "one row of logits for each image, (image, class).",
        )
        found["logits"] = logits
        require(
            "probabilities" not in wanted or self.kind.has_probabilities,
            f"a model of the kind {self.kind.kind!r} predicts numbers, which have no "
            "probabilities; ask for predictions.",
        )
        if {"predictions", "probabilities"} & set(wanted):
            wide = torch.promote_types(logits.dtype, torch.float32)
            predicted = self.kind.predict(logits.to(wide))
            found |= {"predictions": predicted, "probabilities": predicted}
        return {name: found[name] for name in wanted}


def keeps_disc(model: nn.Module) -> bool:
    """Return whether the model was trained on the inscribed discs of images, and must see those."""
    return getattr(model, "fill", "") == "disc"


def _require_finite(values: Tensor, name: str) -> None:
    """Raise for an output that is not a number; it would be written as class 0."""
    finite = torch.isfinite(values.flatten(1)).all(dim=1)
    require(
        bool(finite.all()),
        f"the {name} of {int((~finite).sum())} of {len(values)} images, first of image "
        f"{int(finite.long().argmin())}, are not finite; the weights may be damaged.",
    )


def in_precision(model: nn.Module, precision: torch.dtype) -> nn.Module:
    """Return the model itself if all its numbers have this precision, otherwise a copy."""
    tensors = [*model.parameters(), *model.buffers()]
    kinds = {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}
    return model if kinds == {precision} else copy.deepcopy(model).to(precision)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 off, as a block or around a function.

    By default cuDNN rounds the factors of a float32 convolution on a GPU to ten bits (TF32).  That
    is fine for training; but then the outputs for an image and for the rotated image differ by
    1e-3, and an exact model would be called inexact.
    """
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed
