"""The command lines of published programs: their names mean our options."""

import pytest

from turnwise.cli.main import parse
from turnwise.cli.model_flags import SHORTCUTS
from turnwise.cli.published import PROGRAMS, published_names, published_switches
from turnwise.errors import InputError
from turnwise.models import create_model, model_options
from turnwise.training.recipe import make_recipe

MODELS = [(program, model) for program in PROGRAMS for model in program.models]


def recipe(*words):
    return make_recipe(parse(["train", *words]).values)


def test_the_published_command_line():
    """All options of the program on one line."""
    found = recipe(
        "RelativePerformer", "FashionMNIST", "--batch_size", "16", "--embedding_type", "MLP",
        "--learning_rate", "1e-4", "--warmup", "4000", "--schedule", "noam", "--dim", "64",
        "--depth", "2", "--heads", "2", "--attn_dropout", "0.2", "--ff_dropout", "0.3",
        "--feature_redraw_interval", "100", "--no_projection", "--pos_scales", "8",
    )  # fmt: skip
    assert found.model.options == {
        "width": 64, "depth": 2, "heads": 2, "embedding": "MLP", "kernel": "softmax",
        "attention_dropout": 0.2, "ff_dropout": 0.3, "redraw_interval": 100, "pos_scales": 8,
    }  # fmt: skip
    optimisation = found.optimisation
    assert (optimisation.batch_size, optimisation.learning_rate) == (16, 1e-4)
    assert (optimisation.warmup_steps, optimisation.schedule) == (4000, "noam")


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("Performer", "performer"),
        ("NoposPerformer", "nopos_performer"),
        ("NoPosPerformer", "nopos_performer"),
        ("RelativePerformer", "relative_performer"),
        ("ClippedRelativePerformer", "clipped_relative_performer"),
    ],
)
@pytest.mark.parametrize("data", ["MNIST", "FashionMNIST", "CIFAR10"])
def test_the_published_models_and_data_sets(published, name, data):
    found = recipe(published, data)
    assert (found.model.name, found.data.name) == (name, data.lower())


@pytest.mark.parametrize("words", [["--dim", "64"], ["--dim=64"], ["dim=64"]])
def test_every_spelling_of_a_published_name_means_our_option(words):
    assert recipe("performer", "mnist", *words).model.options == {"width": 64}


@pytest.mark.parametrize("flag", ["--attn_dropout", "--attn-dropout"])
def test_published_flags_may_have_hyphens_and_underscores(flag):
    assert recipe("performer", "mnist", flag, "0.5").model.options == {"attention_dropout": 0.5}


@pytest.mark.parametrize("word", ["--no_projection", "no_projection=true", "no-projection=True"])
def test_the_published_switch_sets_the_kernel(word):
    assert recipe("performer", "mnist", word).model.options == {"kernel": "softmax"}
    assert recipe("performer", "mnist", "no_projection=false").model.options == {}


def test_the_switch_of_the_relative_model_needs_the_published_variant(capsys):
    words = ["RelativePerformer", "MNIST", "--no_projection", "--width=16", "--heads=2"]
    small = {"image_size": 8, "depth": 1}
    with pytest.raises(InputError, match="tep-2021"):
        create_model("relative_performer", **recipe(*words).model.options, **small)
    published = recipe(*words, "--variant", "tep-2021").model.options
    create_model("relative_performer", **published, **small)
    with pytest.raises(SystemExit):
        recipe("RelativePerformer", "-h")
    assert "takes it with --variant tep-2021" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "mnist", "--kernel=elu", "no_projection=true"], "model.kernel is given"),
        (["performer", "mnist", "--kernel=elu", "--no_projection"], "model.kernel is given"),
        (["vit", "mnist", "no_projection=true"], "unknown option of vit 'no_projection'"),
        (["performer", "mnist", "no_projection=1"], "no_projection=1 must be true or false"),
        (
            ["RelativePerformer", "MNIST", "--content_rel_attn"],
            "--content_rel_attn does not exist: "
            "the published program accepts and ignores it; leave it out.",
        ),
        (["performer", "mnist", "content_rel_attn=true"], "content_rel_attn=true does not exist"),
    ],
)
def test_a_wrong_command_is_refused(words, message):
    with pytest.raises(InputError) as error:
        recipe(*words)
    assert message in str(error.value)


@pytest.mark.parametrize(("program", "model"), MODELS, ids=[model for _, model in MODELS])
def test_published_names_are_no_options_of_ours(program, model):
    """Otherwise one word would mean two things."""
    ours = {*model_options(model), *SHORTCUTS}
    assert not {*program.names, *program.switches, *program.ignored} & ours
    assert set(published_names(model)) <= set(program.names)
    assert all(switch.option in ours for switch in published_switches(model).values())


GSA_COMMAND = (
    "--config.dataset rotMNIST --config.model p4sa --config.norm_type BatchNorm "
    "--config.activation_function ReLU --config.patch_size 9 --config.dropout_att 0.2 "
    "--config.dropout_values=0.3 --config.epochs 300 --config.lr 0.001 --config.batch_size 8"
)


def test_the_command_line_of_gsa_nets():
    found = recipe(*GSA_COMMAND.split())
    assert (found.model.name, found.model.group, found.data.name) == ("gsa_net", "p4", "rotmnist")
    assert found.model.options == {
        "norm": "batch", "activation": "relu", "window": 9,
        "attention_dropout": 0.2, "value_dropout": 0.3,
    }  # fmt: skip
    assert found.trainer.max_epochs == 300
    assert (found.optimisation.learning_rate, found.optimisation.batch_size) == (0.001, 8)
    short = recipe("mz2sa", "CIFAR10", "--patch_size", "5")
    assert (short.model.name, short.model.group, short.data.name) == ("gsa_net", "mz2", "cifar10")


def test_the_command_line_of_roto_metaformer():
    found = recipe("--model", "metaformer_s12_pppa", "--name", "dermamnist", "--roto", "0")
    assert (found.model.name, found.data.name) == ("metaformer_s12_pppa", "dermamnist")
    assert found.model.options == {"roto": False}
    assert recipe("metaformer_s12_pppa", "dermamnist", "--roto=1").model.options == {"roto": True}
    with pytest.raises(InputError, match="roto must be true or false, got 2"):
        recipe("metaformer_s12_pppa", "dermamnist", "--roto", "2")
    with pytest.raises(InputError, match="use turnwise test RUN"):
        recipe("--model", "metaformer_s12_pppa", "--name", "dermamnist", "--validate", "1")


def test_a_flag_without_a_counterpart_is_refused():
    with pytest.raises(InputError, match="unknown to gsa_net: --whitening_scale"):
        recipe(*GSA_COMMAND.split(), "--config.whitening_scale", "1.4")
    with pytest.raises(InputError, match="--pretrained does not exist"):
        recipe(*GSA_COMMAND.split(), "--config.pretrained=True")
