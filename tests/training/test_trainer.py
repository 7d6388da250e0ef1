"""The settings of the Trainer, and the splits that it gets."""

import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.targets import make_kind
from turnwise.errors import InputError
from turnwise.runs.run import Run
from turnwise.training.trainer import SplitBatches, allow_tf32, make_trainer, quiet


def build(recipe, folder, kind="class"):
    with quiet():
        return make_trainer(recipe, Run(folder).training_files(), make_kind(kind))


def test_selection_is_by_validation_accuracy(tmp_path, quick):
    best, last, _ = build(quick(), tmp_path).checkpoint_callbacks
    assert (best.monitor, best.mode, best.filename) == ("val_accuracy", "max", "best")
    assert (last.monitor, last.filename) == (None, "last")


@pytest.mark.parametrize(
    ("kind", "select", "monitor", "mode"),
    [
        ("class", "balanced_accuracy", "val_balanced_accuracy", "max"),
        ("class", "auc", "val_auc", "max"),
        ("class", "loss", "val_loss", "min"),
        ("multilabel", "auto", "val_map", "max"),
        ("ordinal", "auto", "val_mae", "min"),
        ("number", "r2", "val_r2", "max"),
    ],
)
def test_any_score_can_select(tmp_path, quick, kind, select, monitor, mode):
    trainer = build(quick(f"trainer.select={select}", "trainer.patience=2"), tmp_path, kind)
    best, *_ = trainer.checkpoint_callbacks
    (stop,) = trainer.early_stopping_callbacks
    assert (best.monitor, best.mode) == (stop.monitor, stop.mode) == (monitor, mode)


def test_a_score_that_the_kind_does_not_have_is_refused(tmp_path, quick):
    with pytest.raises(InputError, match=r"unknown score of the kind 'number' 'auc'"):
        build(quick("trainer.select=auc"), tmp_path, "number")


def test_the_trainer_never_holds_a_test_split(quick):
    dataset = load_dataset("digits")
    held = vars(SplitBatches(dataset, quick())).values()
    assert any(part is dataset.val for part in held)
    assert not any(part is dataset.test or part is dataset for part in held)


def test_settings_reach_the_trainer(tmp_path, quick):
    trainer = build(quick("trainer.max_epochs=7", "optimisation.gradient_clip=0.5"), tmp_path)
    assert (trainer.max_epochs, trainer.gradient_clip_val) == (7, 0.5)


def test_several_devices_train_with_ddp(tmp_path, quick):
    assert type(build(quick("trainer.devices=2"), tmp_path).strategy).__name__ == "DDPStrategy"


def test_weights_are_averaged_only_on_request(tmp_path, quick):
    def names(*overrides):
        return [type(c).__name__ for c in build(quick(*overrides), tmp_path).callbacks]

    assert "AveragedWeights" not in names()
    assert "AveragedWeights" in names("optimisation.ema=0.9")


def test_it_stops_early_only_on_request(tmp_path, quick):
    def stops(*overrides):
        return build(quick(*overrides), tmp_path).early_stopping_callbacks

    assert stops() == []
    (stop,) = stops("trainer.patience=3")
    assert (stop.monitor, stop.mode, stop.patience) == ("val_accuracy", "max", 3)


def test_unusable_settings_are_refused_in_one_line(tmp_path, quick):
    with pytest.raises(InputError, match=r"^these trainer settings cannot be used here: .*gpu"):
        build(quick("trainer.accelerator=gpu"), tmp_path)


def test_half_precision_without_a_gpu_is_refused(tmp_path, quick):
    """Lightning would silently train in another precision."""
    with pytest.raises(InputError, match="precision = 16-mixed needs a GPU; use bf16-mixed"):
        build(quick("trainer.precision=16-mixed"), tmp_path)


@pytest.mark.parametrize(
    ("precision", "quick"), [("bf16-mixed", True), ("16-mixed", True), ("32-true", False)]
)
def test_float32_products_use_tf32_only_under_mixed_precision(precision, quick):
    before = torch.backends.cuda.matmul.allow_tf32
    with allow_tf32(precision):
        assert torch.backends.cuda.matmul.allow_tf32 == quick
    assert torch.backends.cuda.matmul.allow_tf32 == before
