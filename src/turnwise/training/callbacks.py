"""What Lightning does not do by itself: steps that can be repeated, a table that survives a
resumption, a stop at the first nonsense, and checkpoints that are written whole."""

import csv
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, EarlyStopping, WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from turnwise.data.batches import mix
from turnwise.errors import InputError
from turnwise.files import write_atomic
from turnwise.training.recipe import Recipe

COLUMNS = ("epoch", "step", "learning_rate", "train_loss", "val_loss", "val_accuracy", "seconds")


class RepeatableSteps(Callback):
    """Make each step's randomness (dropout, drop-path) a function of the seed and the step.

    A resumed run then continues exactly as if it had not stopped, with no random state to keep.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        torch.manual_seed(mix(self.seed, trainer.global_step, trainer.global_rank))


class AveragedWeights(WeightAveraging):
    """Validate and keep a running average of the weights, each step's share fading by `decay`.

    After t steps it fades by (1 + t) / (10 + t) where that is less: else the weights of the first
    steps would count for a third of the average after 500 steps at 0.998.
    It is brought up to date every few steps, with the share that these steps have together, since
    walking over all weights takes the host as long as several layers.
    Buffers are averaged, too, and copied where an average is nonsense: tables of whole numbers
    would be rounded down, 9 · 0.992 + 9 · 0.008 to 8, and a module names others (`never_averaged`).

    Paper:    Polyak & Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
    """

    EVERY = 4  # steps

    def __init__(self, decay: float) -> None:
        super().__init__(multi_avg_fn=self._update)
        self.decay, self.steps = decay, 0

    def _update(self, kept: Sequence[Tensor], current: Sequence[Tensor], count: Any) -> None:
        number = kept[0].is_floating_point() or kept[0].is_complex()
        spoiled = self._spoiled() if number else set()
        pairs = list(zip(kept, current, strict=True))
        averaged = [pair for pair in pairs if number and pair[0].data_ptr() not in spoiled]
        if averaged:
            get_ema_multi_avg_fn(self.kept_share())(*map(list, zip(*averaged, strict=True)), count)
        for old, new in pairs:
            if not number or old.data_ptr() in spoiled:
                old.copy_(new)

    def _spoiled(self) -> set[int]:
        """Where the buffers of the average lie that an average would spoil."""
        model: Any = self._average_model
        return {
            module.get_buffer(name).data_ptr()
            for module in model.modules() for name in getattr(module, "never_averaged", ())
        }  # fmt: skip

    def setup(self, trainer: lightning.Trainer, pl_module: Any, stage: str) -> None:
        """Where the weights will be: they are moved after this, and every update would wait."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        average: Any = self._average_model
        if average is not None:
            average.n_averaged = torch.zeros((), dtype=torch.long)  # every update looks at it

    def on_validation_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Epochs of fewer steps than an update takes are validated with what they have trained."""
        average: Any = self._average_model
        if average is not None and trainer.global_step and not int(average.n_averaged):
            average.update_parameters(pl_module)
        super().on_validation_epoch_start(trainer, pl_module)

    def kept_share(self) -> float:
        """Of the average so far, in the one that the next steps are part of."""
        return min(self.decay, (1 + self.steps) / (10 + self.steps)) ** self.EVERY

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Every few steps; and after epochs with fewer in all, or untrained weights would stay."""
        if step_idx is not None:
            self.steps = step_idx + 1
            return self.steps % self.EVERY == 0
        average: Any = self._average_model
        return average is not None and not int(average.n_averaged)


class StopAtNonsense(Callback):
    """Raise as soon as the loss is not a number; on a GPU it is looked at every 50 steps.

    Looking makes the host wait for the device, so the verdict is gathered there in between.
    """

    def __init__(self) -> None:
        self.healthy: Tensor | None = None

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        finite = torch.isfinite(outputs["loss"]).all()
        self.healthy = finite if self.healthy is None else self.healthy & finite
        last = batch_idx + 1 == trainer.num_training_batches
        look = finite.device.type == "cpu" or trainer.global_step % 50 == 0 or last
        if look and not self.healthy:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            raise InputError(
                f"the loss is not a number at step {trainer.global_step} (epoch "
                f"{trainer.current_epoch}, learning rate {rate:.3g}); lower "
                "optimisation.learning_rate, set optimisation.gradient_clip, or use "
                "trainer.precision=32-true."
            )


class StopWithoutProgress(EarlyStopping):
    """Stop after `patience` epochs in which the validation accuracy was no better than before.

    The count is kept in the checkpoints: a run that is resumed stops where it would have stopped,
    and one that had stopped stays so, unless it is given more patience.
    """

    def __init__(self, patience: int) -> None:
        super().__init__(
            "val_accuracy", mode="max", patience=patience, check_on_train_epoch_end=True
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class EpochTable(Callback):
    """One row per epoch in metrics.csv, kept through a resumption; without a bar, also a line.

    (Lightning's own CSV logger deletes the table of the run that it continues.)
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, list[dict[str, Any]]()
        self.start = 0.0

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.start = time.monotonic()
        if self.path.is_file() and not self.rows:
            with self.path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [row for row in rows if int(row["epoch"]) < trainer.current_epoch]

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        figures = {key: float(value) for key, value in trainer.callback_metrics.items()}
        row: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            **{key: figures[key] for key in COLUMNS if key in figures},
            "seconds": round(time.monotonic() - self.start, 3),
        }
        self.rows.append(row)
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomic(self.path, text.getvalue().encode())
        if trainer.progress_bar_callback is None:
            print(
                f"epoch {row['epoch'] + 1}/{trainer.max_epochs}: "
                f"train loss {row['train_loss']:.4f}, validation loss {row['val_loss']:.4f}, "
                f"validation accuracy {100 * row['val_accuracy']:.2f} %, {row['seconds']:.1f} s",
                file=sys.stderr,
            )


class KeepRecipe(Callback):
    """The recipe as it is trained, with what was set anew for a run that is resumed.

    Once training begins: settings that Lightning refuses are not kept.
    """

    def __init__(self, recipe: Recipe, path: Path) -> None:
        self.recipe, self.path = recipe, path

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            write_atomic(self.path, self.recipe.yaml().encode())


class FollowMove(Callback):
    """Tell checkpoints that were moved with their run where they are now.

    Lightning forgets the best score when a folder has another name, and would overwrite it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        for state in checkpoint["callbacks"].values():
            if "dirpath" in state:
                state["dirpath"] = str(self.place.resolve())
                for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
                    state[key] = self._here(state[key])
                state["best_k_models"] = {
                    self._here(path): score for path, score in state["best_k_models"].items()
                }

    def _here(self, path: str) -> str:
        return str(self.place.resolve() / Path(path).name) if path else path


class WholeCheckpoints(TorchCheckpointIO):
    """A checkpoint is written beside its place and moved there in one step, or not at all."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomic(Path(path), content.getvalue())
