"""Training goes on after a step whose gradients are not finite: the step is skipped and counted."""

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import SGD, Optimizer

from turnwise.errors import InputError
from turnwise.training.recipe import Recipe

MOST = 5.0  # skipped steps in a row; every other step makes up for a tenth of one
RECOVERY = 0.1
EVERY = 50  # steps between two looks at the counts on a GPU, which make the CPU wait


class SkipNonFiniteSteps(Callback):
    """Skip steps whose gradients are not finite; stop with advice after several.

    A skipped step changes neither the weights, nor the state of the optimiser, nor the running
    statistics of batch norms.  On a GPU the optimiser's fused kernel reads the check, and the CPU
    does not wait for it.  With scaled gradients (16-mixed) the scaler skips steps as well; those
    belong to its calibration and are not counted unless the loss is not finite.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.loss = self.kept = torch.zeros(())
        self.statistics: list[Tensor] = []
        self._reset(torch.device("cpu"))

    def _reset(self, device: torch.device) -> None:
        """Count from zero: all skipped steps, recent ones, and the highest count of recent ones."""
        self.skipped, self.recent, self.worst = torch.zeros(3, device=device).unbind()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._reset(pl_module.device)
        self.statistics = running_statistics(pl_module)
        for optimiser in trainer.optimizers:
            prepare_momentum(optimiser)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.statistics:
            self.kept = torch.cat([x.flatten() for x in self.statistics])

    def on_before_backward(self, trainer: lightning.Trainer, pl_module: Any, loss: Tensor) -> None:
        self.loss = loss.detach()

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: Any, optimizer: Optimizer
    ) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        is_bad = ~torch.isfinite(self.loss if is_scaled else norm).to(self.skipped.device)
        self.skipped = self.skipped + is_bad
        self.recent = torch.where(is_bad, self.recent + 1, (self.recent - RECOVERY).clamp(min=0))
        self.worst = torch.maximum(self.worst, self.recent)
        self._restore_statistics(is_bad)
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]
        elif not is_scaled and bool(is_bad):
            for parameter in parameters:
                parameter.grad = None  # such parameters are left as they are

    def _restore_statistics(self, is_bad: Tensor) -> None:
        if self.statistics:
            now = torch.cat([x.flatten() for x in self.statistics])
            parts = torch.where(is_bad, self.kept, now).split([x.numel() for x in self.statistics])
            shaped = [part.view_as(x) for part, x in zip(parts, self.statistics, strict=True)]
            torch._foreach_copy_(self.statistics, shaped)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        last = batch_idx + 1 == trainer.num_training_batches
        waits = self.worst.device.type != "cpu"
        if waits and trainer.global_step % EVERY and not last:
            return
        if float(self.worst) >= MOST:
            raise InputError(self._advice(trainer))
        if last and float(self.skipped) and trainer.is_global_zero:
            print(
                f"epoch {trainer.current_epoch + 1}: {int(self.skipped)} of the steps since the "
                "start were skipped, because their gradients were not finite.",
                file=sys.stderr,
            )

    def _advice(self, trainer: lightning.Trainer) -> str:
        part = self.recipe.optimisation
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        cures = [f"lower optimisation.learning_rate ({part.learning_rate:g})"]
        if part.gradient_clip is None:
            cures.append("set optimisation.gradient_clip=1")
        if self.recipe.trainer.precision != "32-true":
            cures.append("use trainer.precision=32-true")
        if not self._normalises_queries():
            cures.insert(0, "set model.qk_norm=true, which bounds the attention scores")
        return (
            f"training diverges: the gradients of {int(self.skipped)} steps were not finite, the "
            f"last before step {trainer.global_step} (epoch {trainer.current_epoch + 1}, learning "
            f"rate {rate:.3g}); {', or '.join(cures)}."
        )

    def _normalises_queries(self) -> bool:
        """Return whether queries and keys are normalised, or the model has no such option."""
        return bool(self.recipe.plain()["model"].get("qk_norm", True))


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances of all batch norms in `module`."""
    norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    found = [x for norm in norms for x in (norm.running_mean, norm.running_var)]
    return [x for x in found if x is not None]


def prepare_momentum(optimiser: Optimizer) -> None:
    """Start momentum at zero; fused SGD would leave it undefined if the first step is skipped."""
    if (
        isinstance(optimiser, SGD)
        and optimiser.defaults["fused"]
        and optimiser.defaults["momentum"]
    ):
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                state = optimiser.state[parameter]
                state.setdefault("momentum_buffer", torch.zeros_like(parameter))
