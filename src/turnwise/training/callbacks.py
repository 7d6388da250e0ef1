"""Lightning callbacks: repeatable steps, averaged weights, stopping rules, a metrics table that
survives resuming, and a clean end on Ctrl-C."""

import csv
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from turnwise.data.batches import mix
from turnwise.data.targets import TargetKind
from turnwise.errors import require
from turnwise.files import write_atomic
from turnwise.signals import handle_interrupts
from turnwise.training.recipe import Recipe

FIRST, LAST = ("epoch", "step", "learning_rate", "train_loss", "val_loss"), ("seconds",)
STOPPING = b"stopping before the next batch; press Ctrl-C again to stop immediately\n"


class RepeatableSteps(Callback):
    """Make each step's randomness (dropout, drop path) a function of the seed and the step.

    A resumed run then continues as if it had not stopped, without any stored random state.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        torch.manual_seed(mix(self.seed, trainer.global_step, trainer.global_rank))


class AveragedWeights(WeightAveraging):
    """Validate and store an exponential moving average (EMA) of the weights.

    After t steps the decay is at most (1 + t) / (10 + t), or the first weights would dominate: at
    0.998 they would be a third of the average after 500 steps.  The average is updated every few
    steps with their joint weight, because an update costs as much host time as several layers.
    Buffers are averaged too, except integer tables and those that a module lists in
    `never_averaged`, which are copied.

    Paper:    Polyak & Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
    """

    EVERY = 4  # steps

    def __init__(self, decay: float) -> None:
        super().__init__(multi_avg_fn=self._update)
        self.decay, self.steps = decay, 0

    def _update(self, averages: Sequence[Tensor], current: Sequence[Tensor], count: Any) -> None:
        floating = averages[0].is_floating_point() or averages[0].is_complex()
        excluded = self._excluded_buffers() if floating else set()
        pairs = list(zip(averages, current, strict=True))
        averaged = [pair for pair in pairs if floating and pair[0].data_ptr() not in excluded]
        if averaged:
            get_ema_multi_avg_fn(self.decay_now())(*map(list, zip(*averaged, strict=True)), count)
        for old, new in pairs:
            if not floating or old.data_ptr() in excluded:
                old.copy_(new)

    def _excluded_buffers(self) -> set[int]:
        """Return the addresses of the buffers that must be copied, not averaged."""
        model: Any = self._average_model
        return {
            module.get_buffer(name).data_ptr()
            for module in model.modules() for name in getattr(module, "never_averaged", ())
        }  # fmt: skip

    def setup(self, trainer: lightning.Trainer, pl_module: Any, stage: str) -> None:
        """Put the average on the training device; the counter stays on the CPU."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        average: Any = self._average_model
        if average is not None:
            average.n_averaged = torch.zeros((), dtype=torch.long)  # every update reads it

    def on_validation_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Update before validation if an epoch had fewer steps than an update takes."""
        average: Any = self._average_model
        if average is not None and trainer.global_step and not int(average.n_averaged):
            average.update_parameters(pl_module)
        super().on_validation_epoch_start(trainer, pl_module)

    def decay_now(self) -> float:
        """Return the weight of the old average in the next one."""
        return min(self.decay, (1 + self.steps) / (10 + self.steps)) ** self.EVERY

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to update: every few steps, and at least once in a short epoch."""
        if step_idx is not None:
            self.steps = step_idx + 1
            return self.steps % self.EVERY == 0
        average: Any = self._average_model
        return average is not None and not int(average.n_averaged)


class StopWithoutProgress(EarlyStopping):
    """Stop after `patience` epochs without a better validation score, `monitor`.

    Checkpoints hold the count: a run that stopped does not continue unless `patience` is increased.
    """

    def __init__(self, patience: int, monitor: str = "val_accuracy", mode: str = "max") -> None:
        super().__init__(monitor, mode=mode, patience=patience, check_on_train_epoch_end=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class EpochTable(Callback):
    """Write one row per epoch as CSV; without a progress bar, also print a line.

    Lightning's own CSV logger would delete the table of a resumed run.
    """

    def __init__(self, path: Path, kind: TargetKind, select: str = "accuracy") -> None:
        self.path, self.rows = path, list[dict[str, Any]]()
        self.kind, self.select = kind, select
        self.start = 0.0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.start = time.monotonic()  # of an epoch that is resumed, only the rest counts
        if self.path.is_file():
            self.rows = [row for row in self._read() if int(row["epoch"]) < trainer.current_epoch]

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.start = time.monotonic()

    def _read(self) -> list[dict[str, Any]]:
        """Return the rows of the epochs before the run was resumed."""
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file, strict=True))
            known = all(
                all(map(_is_column, row))
                and row.keys() >= {*FIRST, *LAST}
                and int(row["epoch"]) >= 0
                for row in rows
            )
        except (OSError, ValueError, KeyError, TypeError, csv.Error):
            known = False
        require(
            known,
            f"{self.path} is no table of epochs; restore it, or remove it to continue without "
            "the rows of earlier epochs.",
        )
        return rows

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        figures = {key: float(value) for key, value in trainer.callback_metrics.items()}
        row: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            **{key: figures[key] for key in ("train_loss", "val_loss") if key in figures},
            **{key: figures[key] for key in figures if key.startswith("val_")},
            "seconds": round(time.monotonic() - self.start, 3),
        }
        self.rows.append(row)
        text = io.StringIO()
        scores = [key for row in self.rows for key in row if key not in (*FIRST, *LAST)]
        writer = csv.DictWriter(text, [*FIRST, *dict.fromkeys(scores), *LAST], restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomic(self.path, text.getvalue().encode())
        if trainer.progress_bar_callback is None:
            print(
                f"epoch {row['epoch'] + 1}/{trainer.max_epochs}: "
                f"train loss {row['train_loss']:.4f}, validation loss {row['val_loss']:.4f}, "
                f"validation {self._selected(row)}, {row['seconds']:.1f} s",
                file=sys.stderr,
            )

    def _selected(self, row: dict[str, Any]) -> str:
        """Return the score that selects the best epoch, in words."""
        name = self.kind.selection if self.select == "loss" else self.select
        shown = self.kind.show_score(name, row[f"val_{name}"])
        return f"{name.replace('_', ' ')} {shown}"


def _is_column(name: str | None) -> bool:
    """Return whether a table of epochs may have this column; csv calls surplus cells None."""
    return name in (*FIRST, *LAST) or str(name).startswith("val_")


class StoreRecipe(Callback):
    """Store the recipe, with changes to a resumed run, once Lightning has accepted it."""

    def __init__(self, recipe: Recipe, write: Callable[[Recipe], None]) -> None:
        self.recipe, self.write = recipe, write

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.write(self.recipe)


class StopBetweenBatches(Callback):
    """Stop before the next batch at the first signal (Ctrl-C, SIGTERM), at once at the second.

    A KeyboardInterrupt could leave the queue to the TensorBoard writer locked.  Closing the writer
    would then hang, and by that time Lightning ignores further Ctrl-C.
    """

    def __init__(self) -> None:
        self.requested, self.has_started = set[int](), False
        self.install: Callable[[], None] = lambda: None

    def request(self, number: int = signal.SIGINT, *_: Any) -> None:
        """Handle the signal; `print` is not safe here.

        A closing terminal sends SIGHUP and SIGTERM at once, which is one request.
        """
        if number in self.requested:
            raise KeyboardInterrupt
        self.requested.add(number)
        if sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # the same Ctrl-C may have ended the reader
                os.write(sys.__stderr__.fileno(), STOPPING)

    def stop_if_requested(self) -> None:
        if self.requested:
            raise KeyboardInterrupt

    def on_train_start(self, *_: Any) -> None:
        self.has_started = True
        self.install()  # Lightning has its own handler of SIGTERM

    def on_train_batch_start(self, *_: Any) -> None:
        self.stop_if_requested()

    def on_validation_batch_start(self, *_: Any) -> None:
        self.stop_if_requested()


@contextmanager
def interruptible(trainer: lightning.Trainer) -> Iterator[StopBetweenBatches]:
    """Raise one KeyboardInterrupt between batches if Ctrl-C is pressed while `trainer` fits.

    Of several processes the first reacts, and Lightning ends the others.
    """
    stop = StopBetweenBatches()
    trainer.callbacks.insert(0, stop)  # type: ignore[attr-defined]
    try:
        handler = stop.request if trainer.local_rank == 0 else signal.SIG_IGN
        with handle_interrupts(handler) as stop.install:
            yield stop
        stop.stop_if_requested()
    except SystemExit:  # Lightning exits on Ctrl-C; here the caller decides
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        trainer.callbacks.remove(stop)  # type: ignore[attr-defined]
