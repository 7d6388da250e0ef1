"""The Lightning module: a model, and the loss and the scores of its kind of target."""

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torchmetrics import MeanMetric, Metric
from torchmetrics.utilities import dim_zero_cat

from turnwise.data.batches import Batch
from turnwise.data.mixing import mix_images
from turnwise.data.targets import TargetKind
from turnwise.errors import require
from turnwise.training.graphs import RecordedModel
from turnwise.training.optim import make_optimiser, make_schedule
from turnwise.training.recipe import Recipe


class GatheredScores(Metric):
    """All scores of a kind of target, of the images of all batches and processes."""

    full_state_update = False

    def __init__(self, kind: TargetKind) -> None:
        super().__init__()
        self.kind = kind
        for name in kind.measured_names:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        for name, rows in self.kind.measure(predictions, targets).items():
            getattr(self, name).append(rows)

    def compute(self) -> dict[str, float]:
        rows = {name: dim_zero_cat(getattr(self, name)).cpu() for name in self.kind.measured_names}
        return self.kind.point_scores(rows)


class SupervisedModule(lightning.LightningModule):
    """Training of a model on images in [0, 1], for any kind of target.

    `weights` are those of classes or labels in the training loss; the validation loss has none.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        kind: TargetKind,
        weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        part = recipe.optimisation
        require(
            kind.can_mix or (part.mixup == 0 and part.cutmix == 0),
            f"mixup and cutmix do not combine targets of the kind {kind.kind!r}; set "
            "optimisation.mixup and optimisation.cutmix to 0.",
        )
        self.model, self.recipe, self.kind = model, recipe, kind
        records = recipe.trainer.cuda_graphs and not recipe.trainer.compile  # which records itself
        self._recorded = RecordedModel(model) if records else None
        self.loss = kind.make_loss(part.label_smoothing, weights)
        self.plain_loss = kind.make_loss()
        self.train_loss = MeanMetric(nan_strategy="ignore")  # SkipNonFiniteSteps counts those
        self.val_loss = MeanMetric(nan_strategy="ignore")
        self.val_scores = GatheredScores(kind)

    def forward(self, images: Tensor) -> Tensor:
        if self._recorded is not None:
            return self._recorded(images)
        return self.model(self.model.preprocess(images))  # type: ignore[operator]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        part = self.recipe.optimisation
        mixing = part.mixup > 0 or part.cutmix > 0
        loss = self._mixed_loss(images, labels) if mixing else self.loss(self(images), labels)
        self.train_loss.update(loss.detach(), len(labels))
        self.log("train_loss", self.train_loss, on_step=False, on_epoch=True)
        return loss

    def _mixed_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images mixed in pairs, weighted by both labels.

        The draws are a function of seed and step, so that a resumed run repeats them.
        """
        part = self.recipe.optimisation
        draws = np.random.default_rng((self.recipe.seed, self.global_step))
        mixed, share = mix_images(images, part.mixup, part.cutmix, draws)
        logits = self(mixed)
        first, second = (self.loss(logits, these) for these in (labels, labels.flip(0)))
        return share * first + (1 - share) * second

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Validate without torch.compile, which would compile a second graph for few images."""
        images, targets = batch
        outputs = self.model.forward(self.model.preprocess(images))  # type: ignore[operator]
        self.val_loss.update(self.plain_loss(outputs, targets), len(targets))
        wide = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        self.val_scores.update(self.kind.predict(wide), targets)
        self.log("val_loss", self.val_loss, prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        for name, value in self.val_scores.compute().items():
            self.log(f"val_{name}", value, prog_bar=name == self.kind.selection)
        self.val_scores.reset()

    @property
    def fused(self) -> bool:
        """Whether the optimiser step is fused: on GPUs, unless gradients are scaled (16-mixed)."""
        return self.device.type == "cuda" and self.recipe.trainer.precision != "16-mixed"

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm of all gradients; Lightning refuses to do it for a fused step."""
        if not self.fused:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val is not None:
            clip_grad_norm_(self.parameters(), gradient_clip_val)

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        optimiser = make_optimiser(self.model, self.recipe.optimisation, fused=self.fused)
        total, epochs = int(self.trainer.estimated_stepping_batches), self.recipe.trainer.max_epochs
        schedule = make_schedule(optimiser, self.recipe.optimisation, total, epochs)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
