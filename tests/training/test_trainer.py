"""What the Trainer is told, and which splits it is given."""

import pytest
import torch

from turnwise.data import load_dataset
from turnwise.errors import InputError
from turnwise.training.trainer import SplitBatches, make_trainer, quick_products, quiet


def build(recipe, folder):
    with quiet():
        return make_trainer(recipe, folder)


def test_selection_is_by_validation_accuracy(tmp_path, quick):
    best, last = build(quick(), tmp_path).checkpoint_callbacks
    assert (best.monitor, best.mode, best.filename) == ("val_accuracy", "max", "best")
    assert (last.monitor, last.filename) == (None, "last")


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


def test_weights_are_averaged_only_where_asked(tmp_path, quick):
    def names(*overrides):
        return [type(c).__name__ for c in build(quick(*overrides), tmp_path).callbacks]

    assert "AveragedWeights" not in names()
    assert "AveragedWeights" in names("optimisation.ema=0.9")


def test_it_stops_early_only_where_asked(tmp_path, quick):
    def stops(*overrides):
        return build(quick(*overrides), tmp_path).early_stopping_callbacks

    assert stops() == []
    (stop,) = stops("trainer.patience=3")
    assert (stop.monitor, stop.mode, stop.patience) == ("val_accuracy", "max", 3)


def test_settings_that_cannot_be_used_are_one_line(tmp_path, quick):
    with pytest.raises(InputError, match=r"^these trainer settings cannot be used here: .*gpu"):
        build(quick("trainer.accelerator=gpu"), tmp_path)


def test_half_precision_without_a_gpu_is_refused(tmp_path, quick):
    """Lightning would train in another precision than the recipe says."""
    with pytest.raises(InputError, match="precision = 16-mixed needs a GPU; use bf16-mixed"):
        build(quick("trainer.precision=16-mixed"), tmp_path)


@pytest.mark.parametrize(
    ("precision", "quick"), [("bf16-mixed", True), ("16-mixed", True), ("32-true", False)]
)
def test_float32_products_are_rounded_only_where_half_precision_is_asked_for(precision, quick):
    before = torch.backends.cuda.matmul.allow_tf32
    with quick_products(precision):
        assert torch.backends.cuda.matmul.allow_tf32 == quick
    assert torch.backends.cuda.matmul.allow_tf32 == before
