"""Ctrl-C: answered between two batches, never inside what others wait for."""

import os
import signal
import subprocess
import sys
import time
from unittest.mock import patch

import pytest
from lightning.pytorch.callbacks import Callback

from turnwise.runs import train as training
from turnwise.training.interruption import StopBetweenBatches, interruptible
from turnwise.training.trainer import make_trainer, quiet


@pytest.fixture(autouse=True)
def heard():
    """What a shell runs in the background ignores interruptions; here they are heard."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture
def trainer(tmp_path, quick):
    with quiet():
        return make_trainer(quick(), tmp_path)


class PressCtrlC(Callback):
    """Ask in a hook, and note what still happens after it."""

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


def test_a_batch_that_has_begun_is_finished(tmp_path, quick):
    press = PressCtrlC("on_train_batch_start")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick(), tmp_path / "run")
    assert press.finished == ["the hook", "the batch"]


def test_validation_is_left_between_two_batches(tmp_path, quick):
    press = PressCtrlC("on_validation_batch_start")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick("evaluation.batch_size=50"), tmp_path / "run")
    assert press.finished.count("the hook") == 1


def test_the_second_request_is_answered_at_once(tmp_path, quick):
    press = PressCtrlC("on_train_batch_start", presses=2)
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick(), tmp_path / "run")
    assert press.finished == []


def test_a_request_after_the_last_batch_is_not_forgotten(tmp_path, quick):
    press = PressCtrlC("on_fit_end")
    with pytest.raises(KeyboardInterrupt):
        fit(press, quick("trainer.max_epochs=1"), tmp_path / "run")
    run = training.train(quick("trainer.max_epochs=1"), tmp_path / "run", resume=True)
    assert (run / "model").is_dir()


def test_an_interruption_inside_a_logger_s_lock_ends_the_run(tmp_path, quick):
    """The queue's lock is taken, then the signal comes: KeyboardInterrupt there kept it taken."""
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
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert said.split() == [b"interrupted", b"True"]


def test_of_two_processes_none_is_left(tmp_path, quick):
    """A terminal sends Ctrl-C to both; the first one answers and ends the other."""
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
            _, said = process.communicate(timeout=120)  # the pipe ends when both have let it go
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert "turnwise train: interrupted" in said


@pytest.mark.parametrize("stream", [None, "closed", "unread"])
def test_nobody_hears_that_it_will_stop(monkeypatch, tmp_path, stream):
    """What reads stderr may have ended by the same Ctrl-C; that is no error."""
    stop = StopBetweenBatches()
    ends = os.pipe()
    os.close(ends[0])
    with os.fdopen(ends[1], "w") as unread, (tmp_path / "log").open("w") as closed:
        closed.close()
        given = {"closed": closed, "unread": unread}.get(stream)
        monkeypatch.setattr(sys, "__stderr__", given)
        stop.ask()
    assert stop.asked


def test_other_exits_stay_what_they_are(trainer):
    with pytest.raises(SystemExit), interruptible(trainer):
        raise SystemExit(3)
    trainer.state.status = "interrupted"
    with pytest.raises(KeyboardInterrupt), interruptible(trainer):
        raise SystemExit(1)


def test_nothing_is_left_behind(trainer):
    before = list(trainer.callbacks)
    with interruptible(trainer):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert trainer.callbacks == before
