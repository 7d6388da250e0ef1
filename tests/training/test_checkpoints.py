"""Atomic checkpoints, and those within epochs; tests/runs/test_resume.py continues from them."""

from unittest.mock import Mock

import lightning
import pytest
import torch
from torchmetrics import MeanMetric

from turnwise.training.checkpoints import AtomicCheckpoints, CheckpointsWithinEpochs


def test_a_checkpoint_is_written_atomically(tmp_path):
    io = AtomicCheckpoints()
    io.save_checkpoint({"a": torch.ones(2)}, tmp_path / "new" / "x.ckpt")
    loaded = torch.load(tmp_path / "new" / "x.ckpt", weights_only=True)
    assert torch.equal(loaded["a"], torch.ones(2))
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.ckpt"]


@pytest.mark.parametrize(
    ("rank", "world", "sums"),
    [(0, 1, [4.0, 6.0]), (1, 2, [3.0, 4.0]), (0, 2, [1.0, 2.0]), (2, 3, [0.0, 0.0])],
)
def test_the_loss_of_all_processes_is_restored_by_any_number_of_them(tmp_path, rank, world, sums):
    module = Mock(train_loss=MeanMetric())
    trainer = Mock(spec=lightning.Trainer, global_rank=rank, world_size=world)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    callback = CheckpointsWithinEpochs(tmp_path / "x.ckpt", None)
    state = {"next_batch": 5, "train_loss": rows}
    callback.on_load_checkpoint(trainer, module, {"within_epoch": state})
    callback.on_train_start(trainer, module)
    trainer.train_dataloader.start_at.assert_called_once_with(5)
    assert [float(module.train_loss.mean_value), float(module.train_loss.weight)] == sums


@pytest.mark.parametrize(
    ("minutes", "batch", "saved"),
    [(1e-9, 0, True), (1e-9, 8, True), (1e-9, 9, False), (10.0, 0, False), (None, 0, False)],
)
def test_a_checkpoint_follows_when_it_is_due_but_not_the_last_batch(
    tmp_path, minutes, batch, saved
):
    trainer = Mock(spec=lightning.Trainer, num_training_batches=10, strategy=Mock(broadcast=bool))
    callback = CheckpointsWithinEpochs(tmp_path / "x.ckpt", minutes)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, batch)
    assert trainer.save_checkpoint.call_count == saved
