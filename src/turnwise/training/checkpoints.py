"""Checkpoints: atomic, in run folders that may move, and within epochs."""

import io
import math
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint

from turnwise.files import write_atomic


class RelocateCheckpoints(Callback):
    """Correct the paths in the checkpoint of a run folder that was renamed.

    Otherwise Lightning would drop the best score and overwrite the best checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        for state in checkpoint["callbacks"].values():
            if "dirpath" in state:
                state["dirpath"] = str(self.folder.resolve())
                for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
                    state[key] = self._here(state[key])
                state["best_k_models"] = {
                    self._here(path): score for path, score in state["best_k_models"].items()
                }

    def _here(self, path: str) -> str:
        return str(self.folder.resolve() / Path(path).name) if path else path


class AtomicCheckpoints(TorchCheckpointIO):
    """Write a checkpoint to a temporary file and rename it, so that it is complete or absent."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomic(Path(path), content.getvalue())


class CheckpointsWithinEpochs(Checkpoint):
    """Store the training every few minutes in one file, which is removed at the end of the epoch.

    A `Checkpoint` is called after the callbacks that train, and this one after those that store
    the epoch.  The file also holds the next batch, and the training loss so far, one row for each
    process.
    """

    def __init__(self, path: Path, minutes: float | None) -> None:
        self.path, self.seconds = path, math.inf if minutes is None else 60 * minutes
        self.due, self.next, self.is_saving = math.inf, 0, False

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.due = time.monotonic() + self.seconds
        if self.next:  # Lightning restores its loops, but not what they loop over
            batches: Any = trainer.train_dataloader
            batches.start_at(self.next)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_last = batch_idx + 1 == trainer.num_training_batches
        if math.isinf(self.seconds) or is_last:
            return
        if trainer.strategy.broadcast(time.monotonic() >= self.due):  # of the first process
            self.next, self.is_saving = batch_idx + 1, True
            trainer.save_checkpoint(self.path)
            self.due, self.is_saving = time.monotonic() + self.seconds, False

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.path.unlink(missing_ok=True)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        if self.is_saving:
            loss = pl_module.train_loss
            rows = trainer.strategy.all_gather(torch.stack([loss.mean_value, loss.weight]))
            checkpoint["within_epoch"] = {"next_batch": self.next, "train_loss": rows.view(-1, 2)}

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Restore both, also if the number of processes has changed."""
        state = checkpoint.get("within_epoch")
        if state is not None:
            self.next, loss = int(state["next_batch"]), pl_module.train_loss
            rows = state["train_loss"][trainer.global_rank :: trainer.world_size]
            loss.mean_value, loss.weight = rows.sum(0).to(loss.device).unbind()
