"""The Lightning module: a model, an objective and two metrics."""

import lightning
import numpy as np
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torchmetrics import MeanMetric

from turnwise.data.batches import Batch
from turnwise.data.dataset import Target
from turnwise.data.mixing import mix_images
from turnwise.training.objectives import make_objective
from turnwise.training.optim import make_optimiser, make_schedule
from turnwise.training.recipe import Recipe


class Classifier(lightning.LightningModule):
    """Training of a model on images in [0, 1], by the objective of its kind of target."""

    def __init__(self, model: nn.Module, recipe: Recipe, target: Target) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe
        self.objective = make_objective(target, recipe.optimisation)
        self.train_loss = MeanMetric(nan_strategy="ignore")  # SkipNonFiniteSteps counts those
        self.val_loss = MeanMetric(nan_strategy="ignore")
        self.val_score = self.objective.make_score()

    def forward(self, images: Tensor) -> Tensor:
        return self.model(self.model.preprocess(images))  # type: ignore[operator]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        part = self.recipe.optimisation
        mixing = part.mixup > 0 or part.cutmix > 0
        loss = self._mixed_loss(images, labels) if mixing else self._loss(self(images), labels)
        self.train_loss.update(loss.detach(), len(labels))
        self.log("train_loss", self.train_loss, on_step=False, on_epoch=True)
        return loss

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.objective.loss(logits, labels, self.recipe.optimisation.label_smoothing)

    def _mixed_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images mixed in pairs, weighted by both labels.

        The draws are a function of seed and step, so that a resumed run repeats them.
        """
        part = self.recipe.optimisation
        draws = np.random.default_rng((self.recipe.seed, self.global_step))
        mixed, share = mix_images(images, part.mixup, part.cutmix, draws)
        logits = self(mixed)
        first, second = (self._loss(logits, these) for these in (labels, labels.flip(0)))
        return share * first + (1 - share) * second

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Validate without torch.compile, which would compile a second graph for few images."""
        images, labels = batch
        logits = self.model.forward(self.model.preprocess(images))  # type: ignore[operator]
        self.val_loss.update(self.objective.loss(logits, labels), len(labels))
        self.objective.update_score(self.val_score, logits, labels)
        self.log("val_loss", self.val_loss, prog_bar=True)
        self.log(f"val_{self.objective.score}", self.val_score, prog_bar=True)

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
