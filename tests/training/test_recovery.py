"""Steps that are not finite are skipped without a trace; several of them stop with advice."""

from unittest.mock import Mock

import lightning
import pytest
import torch
from torch import nn

from turnwise.errors import InputError
from turnwise.layers.transformer.plain import SelfAttention
from turnwise.layers.transformer.rotary import GroupRotaryAttention
from turnwise.runs.train import train
from turnwise.training.module import SupervisedModule
from turnwise.training.recipe import make_recipe
from turnwise.training.recovery import MOST, SkipNonFiniteSteps, running_statistics

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}
every_optimiser = pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)


def recipe(*settings, name="turnwise_vit_nano"):
    return make_recipe({"model": {"name": name}, "data": {"name": "digits"}}, settings)


class Steps:
    """The hooks of the callback around the steps of a small network, as the trainer calls them."""

    def __init__(self, make, skip=True, scaler=None):
        torch.manual_seed(0)
        self.module = lightning.LightningModule()
        self.module.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimiser = make(self.module.net.parameters())
        plugin = Mock(scaler=scaler)
        self.trainer = Mock(
            spec=lightning.Trainer, is_global_zero=True,
            optimizers=[self.optimiser], precision_plugin=plugin, num_training_batches=10**9,
            global_step=7, current_epoch=0,
        )  # fmt: skip
        self.callback = SkipNonFiniteSteps(recipe()) if skip else Mock()
        self.callback.on_train_start(self.trainer, self.module)

    def step(self, is_bad=False, number=1.0):
        """Take a step; a bad one has an image that is not a number."""
        images = torch.tensor([[number, 2.0], [0.5, -number], [0.0, 1.0]])
        images[0, 0] = float("nan") if is_bad else number
        self.callback.on_train_batch_start(self.trainer, self.module, None, 0)
        loss = self.module.net(images).square().sum()
        self.optimiser.zero_grad()
        self.callback.on_before_backward(self.trainer, self.module, loss)
        loss.backward()
        self.callback.on_before_optimizer_step(self.trainer, self.module, self.optimiser)
        self.optimiser.step()
        self.callback.on_train_batch_end(self.trainer, self.module, None, None, 0)

    def state(self):
        weights = dict(self.module.net.named_parameters()) | dict(self.module.net.named_buffers())
        found = {k: v.clone() for k, v in weights.items() if v.is_floating_point()}
        for number, state in enumerate(self.optimiser.state.values()):
            found |= {f"{number} {k}": torch.as_tensor(v).clone() for k, v in state.items()}
        return found


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@every_optimiser
@pytest.mark.parametrize("before", [0, 2])
def test_a_bad_step_leaves_no_trace(make, before):
    """Weights, the optimiser's state and the running statistics go on as if it had not been."""
    skipping, without = Steps(make), Steps(make)
    for number in range(before):
        skipping.step(number=number)
        without.step(number=number)
    skipping.step(is_bad=True)
    for number in (3.0, 4.0):
        skipping.step(number=number)
        without.step(number=number)
    assert equal(skipping.state(), without.state())
    assert float(skipping.callback.skipped) == 1


@every_optimiser
def test_control_without_the_callback_everything_is_lost(make):
    steps = Steps(make, skip=False)
    steps.step(is_bad=True)
    assert not any(v.isfinite().all() for v in steps.state().values() if v.ndim)


@every_optimiser
def test_good_steps_are_taken_as_without_the_callback(make):
    skipping, plain = Steps(make), Steps(make, skip=False)
    for number in range(3):
        skipping.step(number=number)
        plain.step(number=number)
    assert equal(skipping.state(), plain.state())


def test_scaled_gradients_are_left_to_the_scaler():
    """Those that overflow calibrate it; only a loss that is not finite counts."""
    steps = Steps(OPTIMISERS["adamw"], scaler=Mock())
    for parameter in steps.module.net.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    steps.callback.on_before_backward(steps.trainer, steps.module, torch.tensor(1.0))
    steps.callback.on_before_optimizer_step(steps.trainer, steps.module, steps.optimiser)
    assert float(steps.callback.skipped) == 0
    steps.callback.on_before_backward(steps.trainer, steps.module, torch.tensor(float("nan")))
    steps.callback.on_before_optimizer_step(steps.trainer, steps.module, steps.optimiser)
    assert float(steps.callback.skipped) == 1
    assert all(p.grad is not None for p in steps.module.net.parameters())


def test_several_bad_steps_in_a_row_stop():
    steps = Steps(OPTIMISERS["adamw"])
    for _ in range(int(MOST) - 1):
        steps.step(is_bad=True)
    with pytest.raises(InputError, match=r"training diverges: the gradients of 5 steps .* step 7"):
        steps.step(is_bad=True)


def test_rare_bad_steps_are_forgiven_and_frequent_ones_are_not():
    rare, frequent = Steps(OPTIMISERS["adamw"]), Steps(OPTIMISERS["adamw"])
    for number in range(200):
        rare.step(is_bad=number % 12 == 0)
    assert float(rare.callback.skipped) == 17
    with pytest.raises(InputError, match="training diverges"):
        for number in range(200):
            frequent.step(is_bad=number % 4 == 0)


@pytest.mark.parametrize(
    ("settings", "words", "unwanted"),
    [
        (["model.qk_norm=false"], r"; set model\.qk_norm=true, .*or lower .*learning_rate", "clip"),
        (["model.qk_norm=true"], r"; lower optimisation\.learning_rate \(0\.001\)\.", "qk_norm"),
        (["optimisation.gradient_clip=null"], r"or set optimisation\.gradient_clip=1\.", "32-true"),
        (["trainer.precision=bf16-mixed"], r"or use trainer\.precision=32-true\.", "qk_norm"),
    ],
)
def test_the_advice_names_what_can_be_changed(settings, words, unwanted):
    steps = Steps(OPTIMISERS["adamw"])
    steps.callback.recipe = recipe(*settings)
    with pytest.raises(InputError, match=words) as error:
        for _ in range(9):
            steps.step(is_bad=True)
    assert unwanted not in str(error.value)


def test_the_statistics_of_all_batch_norms_are_found():
    net = nn.Sequential(nn.BatchNorm2d(2), nn.LayerNorm(2), nn.Sequential(nn.BatchNorm1d(3)))
    assert [len(x) for x in running_statistics(net)] == [2, 2, 3, 3]
    assert running_statistics(nn.BatchNorm2d(2, track_running_stats=False)) == []


def test_a_run_goes_on_and_reports_the_skipped_steps(tmp_path, quick, monkeypatch, capsys):
    """The loss of the third step is not a number."""
    forward = SupervisedModule.training_step
    bad = torch.tensor(float("nan"))

    def step(self, batch, number):
        loss = forward(self, batch, number)
        return loss * bad if self.global_step == 2 else loss

    monkeypatch.setattr(SupervisedModule, "training_step", step)
    few = ("data.fraction=0.1", "optimisation.batch_size=50", "optimisation.ema=0.9")
    run = train(quick(*few), tmp_path / "run")
    assert len(run.metrics) == 2 and run.metrics[-1]["val_accuracy"] > 0
    weights = run.read_checkpoint("last")["state_dict"].values()
    assert all(w.isfinite().all() for w in weights if w.is_floating_point())
    assert "epoch 1: 1 of the steps since the start were skipped" in capsys.readouterr().err


# The divergence that QK norm prevents, at small scale: as training sharpens attention, queries and
# keys grow, until bfloat16 cannot tell the largest scores apart.

ATTENTIONS = {
    "flagship": lambda **options: GroupRotaryAttention("C4", 16, 2, **options),
    "plain": lambda **options: SelfAttention(32, 4, **options),
}
every_attention = pytest.mark.parametrize("name", ATTENTIONS)


def gradient_error(name, growth, **options):
    """The relative error of the gradients in bfloat16, with queries and keys that much larger."""
    torch.manual_seed(0)
    layer = ATTENTIONS[name](**options)
    weight = layer.to_query_key_value.weight
    outputs = weight.shape[-2]
    with torch.no_grad():
        weight[..., : 2 * outputs // 3, :] *= growth
    x = torch.randn(4, 16, 4, 5, 5) if name == "flagship" else torch.randn(4, 25, 32)
    direction, found = torch.randn(x.shape), []
    for dtype in (torch.float64, torch.float32):
        layer, x, direction = layer.to(dtype), x.to(dtype), direction.to(dtype)
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            output = layer(x)
        (output.to(dtype) * direction).sum().backward()
        found.append(layer.to_query_key_value.weight.grad.double().clone())
    return float((found[1] - found[0]).norm() / found[0].norm())


@every_attention
def test_without_norm_growing_scores_destroy_the_gradients_in_bfloat16(name):
    """At first the error is that of rounding; with growing queries it reaches half the gradient; at
    last nothing is finite, and training ends."""
    assert gradient_error(name, 1.0, qk_norm=False) < 0.02
    assert max(gradient_error(name, growth, qk_norm=False) for growth in (32.0, 64.0, 128.0)) > 0.5
    assert not gradient_error(name, 1e12, qk_norm=False) < 0.3


@every_attention
@pytest.mark.parametrize("growth", [1.0, 32.0, 1e6, 1e12])
def test_with_norm_the_gradients_keep_their_precision_however_large_queries_grow(name, growth):
    assert gradient_error(name, growth, qk_norm=True) < 0.02


@pytest.mark.parametrize("name", ["turnwise_vit_nano", "vit", "metaformer_s12_ppaa"])
def test_new_models_normalise_queries_and_keys(name):
    assert recipe(name=name).plain()["model"]["qk_norm"] is True
