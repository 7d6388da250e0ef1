"""Randomness, averaged weights, stopping rules, the metrics table, Ctrl-C."""

import csv
import os
import signal
import subprocess
import sys
import time
import types
from unittest.mock import Mock, patch

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.data.targets import make_kind
from turnwise.layers.performer.block import RandomProjection
from turnwise.models import load
from turnwise.runs import train as training
from turnwise.runs.run import Run
from turnwise.runs.train import train
from turnwise.training.callbacks import (
    AveragedWeights,
    EpochTable,
    RepeatableSteps,
    StopBetweenBatches,
    interruptible,
)
from turnwise.training.recipe import make_recipe
from turnwise.training.trainer import make_trainer, quiet


def trainer(**facts):
    optimiser = types.SimpleNamespace(param_groups=[{"lr": 0.1}])
    defaults = {
        "global_step": 7, "current_epoch": 0, "global_rank": 0, "is_global_zero": True,
        "num_training_batches": 100, "max_epochs": 9, "progress_bar_callback": None,
        "optimizers": [optimiser], "strategy": Mock(root_device=torch.device("cpu")),
        "callback_metrics": {"train_loss": torch.tensor(1.5), "val_loss": torch.tensor(2.0),
                             "val_accuracy": torch.tensor(0.25)},
    }  # fmt: skip
    return Mock(spec=lightning.Trainer, **{**defaults, **facts})


def test_randomness_is_a_function_of_seed_step_and_rank():
    def draw(seed, **facts):
        RepeatableSteps(seed).on_train_batch_start(trainer(**facts), None, None, 0)
        return torch.rand(1).item()

    assert draw(0) == draw(0)
    assert len({draw(0), draw(1), draw(0, global_step=8), draw(0, global_rank=1)}) == 4


def averaged(decay, weights):
    """Return the callback after steps with these weights, and its average."""
    module = lightning.LightningModule()
    module.layer = torch.nn.Linear(1, 1, bias=False)
    average = AveragedWeights(decay)
    average.setup(trainer(), module, "fit")
    for step, weight in enumerate(weights, start=1):
        module.layer.weight.data.fill_(weight)
        average.on_train_batch_end(trainer(global_step=step), module, None, None, 0)
    return average, average._average_model.module.layer.weight.item()


def test_weights_are_averaged_every_few_steps_with_their_joint_weight():
    """By hand: after step 4 the first weights; after step 8, still early, (9 / 18)⁴ of them."""
    _, kept = averaged(0.9, [float(step) for step in range(1, 12)])
    assert kept == pytest.approx(4 * 0.5**4 + 8 * (1 - 0.5**4))


@pytest.mark.parametrize("decay", [0.9, 0.998])
def test_the_first_weights_soon_lose_their_influence(decay):
    average, kept = averaged(decay, 8 * [100.0] + 192 * [1.0])
    assert kept == pytest.approx(1.0, abs=0.01)
    average.steps = 10**6
    assert average.decay_now() == pytest.approx(decay**4)


def test_the_average_is_on_the_training_device():
    """Otherwise every update would copy the weights from the device."""
    module = lightning.LightningModule()
    module.layer = torch.nn.Linear(1, 1)
    average = AveragedWeights(0.9)
    average.setup(trainer(strategy=Mock(root_device=torch.device("meta"))), module, "fit")
    assert average._average_model.module.layer.weight.device.type == "meta"
    assert average._average_model.n_averaged.device.type == "cpu"


def test_the_averaged_weights_are_the_validated_ones(tmp_path, quick):
    """Two steps per epoch: the metrics table has the accuracy of the stored model."""
    few = ("optimisation.ema=0.9", "trainer.max_epochs=1", "optimisation.batch_size=600")
    run = train(quick(*few, "optimisation.learning_rate=0.1"), tmp_path / "run")
    (row,) = csv.DictReader((run.path / "metrics.csv").read_text().splitlines())
    val = load_dataset("digits").val
    model = load(run)
    logits = model(model.preprocess(to_unit(val.images)))
    accuracy = float((logits.argmax(-1) == val.labels).double().mean())
    assert float(row["val_accuracy"]) == pytest.approx(accuracy, abs=1e-3)


def test_a_run_of_fewer_steps_than_an_update_takes_is_averaged(tmp_path, quick):
    """Three steps in all: without an update the stored weights would be the initial ones."""
    few = ("optimisation.ema=0.9", "trainer.max_epochs=1", "optimisation.batch_size=500")
    models = [
        load(train(quick(*few, f"optimisation.learning_rate={rate}"), tmp_path / f"{rate}"))
        for rate in (0.001, 0.1)
    ]
    one, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("decay", [0.9, 0.99, 0.998, 0.9998])
def test_integer_buffers_are_not_averaged(decay):
    """Rounding could change the average of equal indices."""
    module = lightning.LightningModule()
    module.layer = torch.nn.Linear(1, 1)
    module.register_buffer("table", torch.arange(1000), persistent=False)
    module.register_buffer("mask", torch.arange(9) % 2 == 0)
    average = AveragedWeights(decay)
    average.setup(trainer(), module, "fit")
    for step in range(1, 9):
        average.on_train_batch_end(trainer(global_step=step), module, None, None, 0)
    kept = average._average_model.module
    assert torch.equal(kept.table, torch.arange(1000))
    assert torch.equal(kept.mask, module.mask)


DRAWN = "blocks.0.attention.kernel.projection."


def performer_recipe(epochs):
    options = {"width": 8, "depth": 1, "heads": 2, "redraw_interval": 2}
    values = {
        "model": {"name": "performer", "group": "C1", **options},
        "data": {"name": "digits"},
        "optimisation": {"batch_size": 400, "ema": 0.9},
        "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
    }
    return make_recipe(values, [])


def last_state(run, which):
    """Return the random projection in the last checkpoint: as trained, or of the average."""
    state = torch.load(run.path / "checkpoints" / "last.ckpt", weights_only=True)
    return {
        key.split(DRAWN)[1]: value for key, value in state[which].items() if DRAWN in key
    } | {"step": state["global_step"]}  # fmt: skip


def test_random_features_are_redrawn_in_every_epoch_and_never_averaged(tmp_path):
    """Also after validation, and in a resumed run."""
    whole = train(performer_recipe(2), tmp_path / "whole")
    train(performer_recipe(1), tmp_path / "cut")
    resumed = train(performer_recipe(2), tmp_path / "cut", resume=True)
    for which in ("current_model_state", "state_dict"):
        one, other = last_state(whole, which), last_state(resumed, which)
        assert all(bool((one[key] == other[key]).all()) for key in ("rows", "seed", "draws"))
        again = RandomProjection(one["rows"].shape[1])
        again.seed.copy_(one["seed"])
        again.draws.copy_(one["draws"] - 1)
        again.draw()
        assert torch.equal(again.rows, one["rows"])
    trained = last_state(whole, "current_model_state")
    assert int(trained["draws"]) == 1 + (trained["step"] - 1) // 2


def test_a_run_without_progress_stops_also_when_resumed(tmp_path, quick):
    """With a learning rate near 0 no epoch is better than the first."""

    def epochs(folder, *overrides, resume=False):
        still = ("optimisation.learning_rate=1e-12", "data.augment.rotation=0", *overrides)
        train(quick(*still), folder, resume=resume)
        table = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
        return [int(row["epoch"]) for row in table]

    patient = ("trainer.max_epochs=6", "trainer.patience=2")
    assert epochs(tmp_path / "whole", *patient) == [0, 1, 2]
    assert epochs(tmp_path / "whole", *patient, resume=True) == [0, 1, 2]
    more = ("trainer.max_epochs=6", "trainer.patience=3")
    assert epochs(tmp_path / "whole", *more, resume=True) == [0, 1, 2, 3]
    assert epochs(tmp_path / "cut", "trainer.max_epochs=2", "trainer.patience=2") == [0, 1]
    assert epochs(tmp_path / "cut", *patient, resume=True) == [0, 1, 2]


def test_the_table_drops_rows_that_a_resumed_run_repeats(tmp_path):
    """Epochs 0 and 1 were written, then the run resumed at epoch 1: one row for each epoch."""
    path = tmp_path / "metrics.csv"
    first = EpochTable(path, make_kind("class"))
    for epoch in (0, 1):
        first.on_train_epoch_start(trainer(current_epoch=epoch), None)
        first.on_train_epoch_end(trainer(current_epoch=epoch), None)
    resumed = EpochTable(path, make_kind("class"))
    resumed.on_train_start(trainer(current_epoch=1), None)
    resumed.on_train_epoch_end(trainer(current_epoch=1, global_step=14), None)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "7"), ("1", "14")]
    assert rows[0]["val_accuracy"] == "0.25"


def test_a_line_per_epoch_is_printed_without_a_progress_bar(tmp_path, capsys):
    table = EpochTable(tmp_path / "m.csv", make_kind("class"))
    table.on_train_epoch_start(trainer(), None)
    table.on_train_epoch_end(trainer(), None)
    assert "epoch 1/9: train loss 1.5000" in capsys.readouterr().err


def test_scores_of_every_kind_of_target_have_columns(tmp_path, capsys):
    """A resumed run of an earlier version had fewer columns; its rows stay."""
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,learning_rate,train_loss,val_loss,seconds\n0,3,0.1,2,2.5,1.5\n")
    table = EpochTable(path, make_kind("number", ("size",), "mm"), "mae")
    figures = {"train_loss": 1.5, "val_loss": 2.0, "val_mae": 0.75, "val_r2": 0.5}
    now = trainer(
        current_epoch=1, callback_metrics={k: torch.tensor(v) for k, v in figures.items()}
    )
    table.on_train_start(now, None)
    table.on_train_epoch_end(now, None)
    before, after = csv.DictReader(path.read_text().splitlines())
    assert (before["val_mae"], before["seconds"]) == ("", "1.5")
    assert (after["val_mae"], after["val_r2"]) == ("0.75", "0.5")
    assert "validation mae 0.75 mm" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def with_interrupts():
    """Handle Ctrl-C, which a shell switches off for programs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def real_trainer(tmp_path, quick):
    with quiet():
        return make_trainer(quick(), Run(tmp_path).training_files(), make_kind("class"))


class PressCtrlC(Callback):
    """Interrupts in a hook, and records what is still finished after that."""

    def __init__(self, hook, presses=1):
        self.finished = []
        setattr(self, hook, lambda *_: self._press(presses))

    def _press(self, presses):
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        self.finished.append("the hook")

    def on_train_batch_end(self, *_):
        self.finished.append("the batch")


def fit(press, recipe, folder):
    """Train with `press` among the callbacks."""

    def with_press(*args):
        trainer = make_trainer(*args)
        trainer.callbacks.append(press)
        return trainer

    with patch.object(training, "make_trainer", with_press):
        return training.train(recipe, folder)


def test_a_started_batch_is_finished(tmp_path, quick):
    press = PressCtrlC("on_train_batch_start")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick(), tmp_path / "run")
    assert press.finished == ["the hook", "the batch"]


def test_validation_stops_between_two_batches(tmp_path, quick):
    press = PressCtrlC("on_validation_batch_start")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick("evaluation.batch_size=50"), tmp_path / "run")
    assert press.finished.count("the hook") == 1


def test_the_second_interrupt_stops_immediately(tmp_path, quick):
    press = PressCtrlC("on_train_batch_start", presses=2)
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick(), tmp_path / "run")
    assert press.finished == []


def test_an_interrupt_after_the_last_batch_is_not_lost(tmp_path, quick):
    press = PressCtrlC("on_fit_end")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick("trainer.max_epochs=1"), tmp_path / "run")
    run = training.train(quick("trainer.max_epochs=1"), tmp_path / "run", resume=True)
    assert run.model_folder.is_dir()


def test_an_interrupt_inside_the_lock_of_a_logger_ends_the_run(tmp_path, quick):
    """A KeyboardInterrupt raised there would leave the queue locked."""
    program = f"""
import signal, sys, threading
from turnwise.training.recipe import read_recipe
from turnwise.runs.train import train

enter, pressed = threading.Condition.__enter__, []

def enter_and_press(self):
    taken = enter(self)
    caller = sys._getframe(1).f_code
    if caller.co_name == "put" and "multiprocessing" in caller.co_filename and not pressed:
        pressed.append(True)
        signal.raise_signal(signal.SIGINT)
    return taken

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Condition.__enter__ = enter_and_press
try:
    train(read_recipe({str(tmp_path / "recipe.yaml")!r}), {str(tmp_path / "run")!r})
except KeyboardInterrupt:
    print("interrupted", bool(pressed))
"""
    (tmp_path / "recipe.yaml").write_text(quick("trainer.max_epochs=1").yaml())
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            printed, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert printed.split() == [b"interrupted", b"True"]


def test_an_interrupt_ends_both_of_two_processes(tmp_path, quick):
    """A terminal sends Ctrl-C to both; the first one reacts and ends the other."""
    recipe = quick("trainer.max_epochs=400", "trainer.devices=2", "optimisation.batch_size=20")
    path, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    path.write_text(recipe.yaml())
    process = subprocess.Popen(
        [sys.executable, "-m", "turnwise", "train", path, "--output", folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with process:
        try:
            while not (folder / "checkpoints" / "last.ckpt").is_file() and process.poll() is None:
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
            _, printed = process.communicate(timeout=120)  # ends when both have closed the pipe
        finally:
            process.kill()
    assert process.returncode == 130, printed
    assert "turnwise train: interrupted" in printed


@pytest.mark.parametrize("stream", [None, "closed", "unread"])
def test_a_closed_stderr_is_no_error(monkeypatch, tmp_path, stream):
    """The program that reads stderr may have ended by the same Ctrl-C."""
    stop = StopBetweenBatches()
    ends = os.pipe()
    os.close(ends[0])
    with os.fdopen(ends[1], "w") as unread, (tmp_path / "log").open("w") as closed:
        closed.close()
        given = {"closed": closed, "unread": unread}.get(stream)
        monkeypatch.setattr(sys, "__stderr__", given)
        stop.request()
    assert stop.requested


def test_other_exits_are_passed_on(real_trainer):
    with pytest.raises(SystemExit), interruptible(real_trainer):
        raise SystemExit(3)
    real_trainer.state.status = "interrupted"
    with pytest.raises(KeyboardInterrupt), interruptible(real_trainer):
        raise SystemExit(1)


def test_the_handler_and_the_callback_are_removed(real_trainer):
    before = list(real_trainer.callbacks)
    with interruptible(real_trainer):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert real_trainer.callbacks == before
