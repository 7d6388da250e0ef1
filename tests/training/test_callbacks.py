"""The table that survives a resumption, the stop at nonsense, the whole checkpoints."""

import csv
import types
from unittest.mock import Mock

import lightning
import pytest
import torch

from turnwise.data import load_dataset
from turnwise.data.batches import to_unit
from turnwise.errors import InputError
from turnwise.layers.performer.block import RandomProjection
from turnwise.models import load
from turnwise.runs.train import train
from turnwise.training.callbacks import (
    AveragedWeights,
    EpochTable,
    RepeatableSteps,
    StopAtNonsense,
    WholeCheckpoints,
)
from turnwise.training.recipe import make_recipe


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
    """The callback after steps that left these weights, and its average."""
    module = lightning.LightningModule()
    module.layer = torch.nn.Linear(1, 1, bias=False)
    average = AveragedWeights(decay)
    average.setup(trainer(), module, "fit")
    for step, weight in enumerate(weights, start=1):
        module.layer.weight.data.fill_(weight)
        average.on_train_batch_end(trainer(global_step=step), module, None, None, 0)
    return average, average._average_model.module.layer.weight.item()


def test_weights_are_averaged_every_few_steps_with_the_share_of_them_all():
    """By hand: after step 4 the first weights; after step 8, near the start, (9 / 18)⁴ of them."""
    _, kept = averaged(0.9, [float(step) for step in range(1, 12)])
    assert kept == pytest.approx(4 * 0.5**4 + 8 * (1 - 0.5**4))


@pytest.mark.parametrize("decay", [0.9, 0.998])
def test_what_comes_first_is_soon_forgotten(decay):
    average, kept = averaged(decay, 8 * [100.0] + 192 * [1.0])
    assert kept == pytest.approx(1.0, abs=0.01)
    average.steps = 10**6
    assert average.kept_share() == pytest.approx(decay**4)


def test_the_average_lies_where_the_weights_will():
    """They are moved after this; every update would wait for the device to hand them over."""
    module = lightning.LightningModule()
    module.layer = torch.nn.Linear(1, 1)
    average = AveragedWeights(0.9)
    average.setup(trainer(strategy=Mock(root_device=torch.device("meta"))), module, "fit")
    assert average._average_model.module.layer.weight.device.type == "meta"
    assert average._average_model.n_averaged.device.type == "cpu"


def test_few_steps_are_validated_as_they_are_kept(tmp_path, quick):
    """Two steps in an epoch: what the table says is the accuracy of the model that is there."""
    few = ("optimisation.ema=0.9", "trainer.max_epochs=1", "optimisation.batch_size=600")
    run = train(quick(*few, "optimisation.learning_rate=0.1"), tmp_path / "run")
    (row,) = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    val = load_dataset("digits").val
    model = load(run)
    answers = model(model.preprocess(to_unit(val.images)))
    accuracy = float((answers.argmax(-1) == val.labels).double().mean())
    assert float(row["val_accuracy"]) == pytest.approx(accuracy, abs=1e-3)


def test_fewer_steps_than_an_update_takes_are_kept_all_the_same(tmp_path, quick):
    """Three steps in all: without an update the first weights would be what was trained."""
    few = ("optimisation.ema=0.9", "trainer.max_epochs=1", "optimisation.batch_size=2000")
    models = [
        load(train(quick(*few, f"optimisation.learning_rate={rate}"), tmp_path / f"{rate}"))
        for rate in (0.001, 0.1)
    ]
    one, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("decay", [0.9, 0.99, 0.998, 0.9998])
def test_tables_of_whole_numbers_are_not_averaged(decay):
    """Rounded down, an average of equal indices is another index."""
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
    """What the last checkpoint has of the projection: trained, or on average."""
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return {
        key.split(DRAWN)[1]: value for key, value in state[which].items() if DRAWN in key
    } | {"step": state["global_step"]}  # fmt: skip


def test_random_features_are_redrawn_in_every_epoch_and_kept_as_drawn(tmp_path):
    """After validations, too, which end without a word to the model; and in a run resumed there."""
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


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_nonsense_stops_the_run(loss):
    stop = StopAtNonsense()
    stop.on_train_batch_end(trainer(), None, {"loss": torch.tensor(1.0)}, None, 0)
    with pytest.raises(InputError, match=r"not a number at step 7 .* lower optimisation\.learning"):
        stop.on_train_batch_end(trainer(), None, {"loss": torch.tensor(loss)}, None, 1)


def test_a_run_without_progress_stops_and_so_does_a_resumed_one(tmp_path, quick):
    """With a rate of nearly 0 no epoch is better than the first; two more are waited for."""

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


def test_the_table_drops_what_a_resumed_run_repeats(tmp_path):
    """Epochs 0 and 1 were written, then the run resumed at epoch 1: one row for each epoch."""
    path = tmp_path / "metrics.csv"
    first = EpochTable(path)
    for epoch in (0, 1):
        first.on_train_epoch_start(trainer(current_epoch=epoch), None)
        first.on_train_epoch_end(trainer(current_epoch=epoch), None)
    resumed = EpochTable(path)
    resumed.on_train_epoch_start(trainer(current_epoch=1), None)
    resumed.on_train_epoch_end(trainer(current_epoch=1, global_step=14), None)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "7"), ("1", "14")]
    assert rows[0]["val_accuracy"] == "0.25"


def test_a_line_per_epoch_where_there_is_no_progress_bar(tmp_path, capsys):
    table = EpochTable(tmp_path / "m.csv")
    table.on_train_epoch_start(trainer(), None)
    table.on_train_epoch_end(trainer(), None)
    assert "epoch 1/9: train loss 1.5000" in capsys.readouterr().err


def test_a_checkpoint_is_written_whole(tmp_path):
    io = WholeCheckpoints()
    io.save_checkpoint({"a": torch.ones(2)}, tmp_path / "new" / "x.ckpt")
    loaded = torch.load(tmp_path / "new" / "x.ckpt", weights_only=True)
    assert torch.equal(loaded["a"], torch.ones(2))
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.ckpt"]
