"""The graph that is exported: images in; logits, predictions and the embedding out.

Preprocessing is inside, so that whoever runs the file needs nothing of turnwise.
"""

import torch
from jaxtyping import Shaped, config
from torch import Tensor, nn

from turnwise.data.batches import to_unit
from turnwise.data.targets import kind_of
from turnwise.errors import InputError
from turnwise.geometry.warps import keep_disc
from turnwise.inference.predictor import PRECISIONS, Predictor, keeps_disc
from turnwise.models.contract import Model, logits_of

Images = Shaped[Tensor, "batch channel row col"]


class Program(nn.Module):
    """A model with its preprocessing, from images in [0, 1] or uint8 to a tuple of `outputs`.

    Args:
        model: on the CPU, in the precision in which to compute.
        precision: its name; images are converted to it, and outputs to float32.
        has_embedding: return the pooled features, too.
    """

    def __init__(self, model: nn.Module, precision: str, *, has_embedding: bool) -> None:
        super().__init__()
        self.model, self.precision, self.has_embedding = model, precision, has_embedding
        self.kind, self.keeps_disc = kind_of(model), keeps_disc(model)
        predicted = "probabilities" if self.kind.has_probabilities else "predictions"
        self.outputs = ("logits", predicted, *(("embedding",) if has_embedding else ()))

    def forward(self, images: Images) -> tuple[Tensor, ...]:
        images = to_unit(images)
        images = (keep_disc(images) if self.keeps_disc else images).to(PRECISIONS[self.precision])
        preprocess = getattr(self.model, "preprocess", None)
        prepared = images if preprocess is None else preprocess(images)
        if not self.has_embedding or not isinstance(self.model, Model):
            logits = logits_of(self.model(prepared)).float()
            return logits, self.kind.predict(logits)
        features = self.model.forward_features(prepared)
        logits = self.model.forward_head(features).float()
        embedding = self.model.forward_head(features, pre_logits=True)
        return logits, self.kind.predict(logits), embedding.float()


def has_embedding(model: nn.Module, images: Images) -> bool:
    """Return whether the model gives one vector of features for each image."""
    try:
        found = Predictor(model, outputs=("embedding",)).run(images)["embedding"]
    except InputError:
        return False
    return found.ndim == 2 and len(found) == len(images)


def trace(program: Program, example: Images) -> torch.export.ExportedProgram:
    """Return the graph for any number of images like `example`."""
    batch = torch.export.Dim("batch", min=1)
    checked = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)  # a check of shapes would fix the batch size
    try:
        return torch.export.export(
            program, (example,), dynamic_shapes=({0: batch},),
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
    except Exception as error:  # a tracer may raise anything
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise InputError(
            f"torch.export cannot trace this {type(program.model).__name__} ({reason[:200]}); "
            "its forward pass must not depend on the values of its tensors."
        ) from error
    finally:
        config.update("jaxtyping_disable", checked)
