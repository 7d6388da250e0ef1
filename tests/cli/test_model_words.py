"""MODEL DATASET and options, in the words of a recipe: every spelling, and what is refused."""

import pytest

from turnwise.cli.model_words import PUBLISHED, RECIPE_WORDS, spelled_out
from turnwise.errors import InputError
from turnwise.models import create_model, list_models, model_options
from turnwise.training.recipe import make_recipe

START = ["model.name=performer", "data.name=mnist"]


def recipe(*words):
    settings = [word for word in spelled_out(words) if not word.startswith("--")]
    return make_recipe({}, settings)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-h"],
        ["a.yaml", "seed=1"],
        ["folder/a"],
        ["seed=1"],
        ["--resume", "run"],
        ["--log-path", "logs", "a.yaml"],
        ["--log-path", "vit"],
        ["--log-path"],
        ["--help"],
        ["--output", "vit", "a.yaml", "seed=1"],
        ["--data-dir", "a", "--resume", "run", "vit"],
    ],
)
def test_what_is_no_model_stays_as_it_is(words):
    assert spelled_out(words) == words


def test_a_recipe_may_be_a_file_of_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "performer").write_text("")
    assert spelled_out(["performer", "seed=1"]) == ["performer", "seed=1"]


@pytest.mark.parametrize(
    "words",
    [
        ["--width", "64"], ["--width=64"], ["width=64"], ["--dim", "64"], ["--dim=64"],
        ["dim=64"], ["model.width=64"],
    ],
)  # fmt: skip
def test_every_spelling_says_the_same(words):
    assert spelled_out(["performer", "mnist", *words]) == [*START, "model.width=64"]


@pytest.mark.parametrize("flag", ["--attn_dropout", "--attn-dropout", "--attention_dropout"])
def test_hyphens_and_underscores(flag):
    assert recipe("performer", "mnist", flag, "0.5").model.options == {"attention_dropout": 0.5}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Performer", "performer"), ("NoposPerformer", "nopos_performer"),
        ("NoPosPerformer", "nopos_performer"), ("RelativePerformer", "relative_performer"),
        ("ClippedRelativePerformer", "clipped_relative_performer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("data", ["MNIST", "FashionMNIST", "CIFAR10"])
def test_the_published_names(said, name, data):
    made = recipe(said, data)
    assert (made.model.name, made.data.name) == (name, data.lower())


@pytest.mark.parametrize("model", list_models())
def test_every_model_can_be_named(model):
    spelled = spelled_out([model, "digits", "--output", "runs/first"])
    assert spelled == [f"model.name={model}", "data.name=digits", "--output=runs/first"]


def test_an_option_that_is_called_as_one_of_the_run_has_no_dashes(capsys):
    """--output is the run's folder, output=map what an orbit gives."""
    words = ["orbit_vit", "digits", "output=map", "--output", "runs/first"]
    assert spelled_out(words)[2:] == ["model.output=map", "--output=runs/first"]
    with pytest.raises(SystemExit):
        spelled_out(["orbit_vit", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "mean the run's: output=VALUE (default: class)" in shown


@pytest.mark.parametrize("name", ["folder:shapes #2", "folder:a=b", "folder:Größen: alle"])
def test_a_folder_may_be_called_anything(name):
    assert recipe("vit", name).data.name == name


def test_the_published_command_line():
    """All options of the original on one line."""
    made = recipe(
        "RelativePerformer", "FashionMNIST", "--batch_size", "16", "--embedding_type", "MLP",
        "--learning_rate", "1e-4", "--warmup", "4000", "--schedule", "noam", "--dim", "64",
        "--depth", "2", "--heads", "2", "--attn_dropout", "0.2", "--ff_dropout", "0.3",
        "--feature_redraw_interval", "100", "--no_projection", "--pos_scales", "8",
    )  # fmt: skip
    assert made.model.options == {
        "width": 64, "depth": 2, "heads": 2, "embedding": "MLP", "kernel": "softmax",
        "attention_dropout": 0.2, "ff_dropout": 0.3, "redraw_interval": 100, "pos_scales": 8,
    }  # fmt: skip
    how = made.optimisation
    assert (how.batch_size, how.learning_rate, how.warmup_steps) == (16, 1e-4, 4000)
    assert how.schedule == "noam"


@pytest.mark.parametrize("said", ["--no_projection", "no_projection=true", "no-projection=True"])
def test_the_published_switch(said):
    assert recipe("performer", "mnist", said).model.options == {"kernel": "softmax"}
    assert recipe("performer", "mnist", "no_projection=false").model.options == {}


def test_the_softmax_of_the_relative_model_is_the_published_one(capsys):
    words = ["RelativePerformer", "MNIST", "--no_projection", "--width=16", "--heads=2"]
    small = {"image_size": 8, "depth": 1}
    with pytest.raises(InputError, match="set variant='tep-2021' for it"):
        create_model("relative_performer", **recipe(*words).model.options, **small)
    published = recipe(*words, "--variant", "tep-2021").model.options
    create_model("relative_performer", **published, **small)
    with pytest.raises(SystemExit):
        spelled_out(["RelativePerformer", "-h"])
    assert "takes it with --variant tep-2021" in " ".join(capsys.readouterr().out.split())


def test_every_word_reaches_the_recipe():
    values = {"group": "D4", "schedule": "constant"}
    words = [f"{word}={values.get(word, 2)}" for word in RECIPE_WORDS]
    made = recipe("vit", "digits", *words)
    assert made.model.group == "D4"
    assert made.data.image_size == 2
    assert (made.trainer.max_epochs, made.trainer.patience, made.seed) == (2, 2, 2)
    assert (made.optimisation.batch_size, made.optimisation.learning_rate) == (2, 2.0)


def test_settings_of_a_recipe_and_flags_of_the_run_stand_anywhere():
    words = ["--log_path", "logs", "mnist", "seed=1", "--exp-name=e", "trainer.devices=1"]
    found = spelled_out(["performer", *words])
    assert found == [*START, "seed=1", "trainer.devices=1", "--log-path=logs", "--exp-name=e"]


@pytest.mark.parametrize(
    "words",
    [
        ["--log-path", "logs", "performer", "mnist", "--no-projection"],
        ["--log_path=logs", "--no_projection", "Performer", "mnist"],
        ["--no_projection", "--log_path", "logs", "Performer", "mnist"],
    ],
)
def test_flags_may_stand_before_the_model(words):
    assert spelled_out(words) == [*START, "model.kernel=softmax", "--log-path=logs"]


def test_the_same_value_may_be_given_twice():
    words = ["--width", "64", "dim=64", "model.width=64"]
    assert recipe("performer", "mnist", *words).model.options == {"width": 64}


def test_lists_are_read_as_yaml():
    made = recipe("group_performer", "digits", "--kernels", "[3, 3]")
    assert made.model.options["kernels"] == [3, 3]


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["mnist", "--help"], ["mnist", "seed=1", "-h"]]
)
def test_help_shows_the_options_of_the_model(capsys, words):
    with pytest.raises(SystemExit) as end:
        spelled_out(["RelativePerformer", *words])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for option, default in model_options("relative_performer").items():
        assert f"--{option.replace('_', '-')} VALUE" in said
        assert f"(default: {default})" in said
    assert "clipping" not in said
    assert "--warmup VALUE" in said and "--log-path LOG" in said and "--no-projection" in said
    assert "--dim is --width" in said


@pytest.mark.parametrize("model", list_models())
def test_help_fits_a_terminal_of_80_columns(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        spelled_out([model, "-h"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_help_says_what_may_be_chosen(capsys):
    with pytest.raises(SystemExit):
        spelled_out(["performer", "-h"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--variant VALUE exact or tep-2021 (as published) (default: exact)" in said
    assert '--kernel VALUE "favor" (random features), "elu"' in said


def test_help_of_other_models_speaks_of_their_own_options(capsys):
    for name in ("clipped_relative_performer", "vit"):
        with pytest.raises(SystemExit):
            spelled_out([name, "-h"])
    clipped, plain = capsys.readouterr().out.split("usage: turnwise train vit")
    assert "--clipping-distance" in clipped and "--no-projection" not in clipped
    assert "--patch" in plain and "published program" not in plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performr", "mnist"], "unknown model or recipe 'performr'. Did you mean 'performer'?"),
        (["performer"], "give a data set after performer"),
        (["performer", "width=8"], "give a data set after performer"),
        (["performer", "mnist", "widht=8"], "unknown option of performer 'widht'. Did you mean"),
        (["performer", "mnist", "--widht", "8"], "unknown to performer: --widht"),
        (["performer", "mnist", "--clipping-dist", "8"], "unknown to performer: --clipping-dist"),
        (["performer", "mnist", "--clipping_dist=3"], "unknown to performer: --clipping_dist=3;"),
        (["performer", "--clipping_dist", "3"], "unknown to performer: --clipping_dist;"),
        (["vit", "mnist", "--dim_x", "3"], "unknown to vit: --dim_x 3;"),
        (["vit", "mnist", "--no-projection"], "unknown to vit: --no-projection"),
        (
            ["performer", "mnist", "width=16", "--width", "32"],
            "model.width is given twice, as 32 and as 16; leave one out.",
        ),
        (["performer", "mnist", "--dim=32", "model.width=16"], "model.width is given twice"),
        (["performer", "mnist", "--kernel=elu", "no_projection=true"], "model.kernel is given"),
        (["performer", "mnist", "data.name=digits"], "data.name is given twice, as mnist and as"),
        (["vit", "mnist", "no_projection=true"], "unknown option of vit 'no_projection'"),
        (["performer", "mnist", "no_projection=1"], "no_projection=1 must be true or false"),
        (
            ["RelativePerformer", "MNIST", "--content_rel_attn"],
            "--content_rel_attn is not there: "
            "the published program took it and ignored it; leave it out.",
        ),
        (["performer", "mnist", "content_rel_attn=true"], "content_rel_attn=true is not there"),
    ],
)
def test_refusals(words, message):
    with pytest.raises(InputError) as error:
        spelled_out(words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_published_names_are_no_option_of_ours():
    """Else one word would mean two things."""
    for name in ("performer", "relative_performer", "clipped_relative_performer"):
        assert not set(PUBLISHED) & set(model_options(name))
        assert not set(RECIPE_WORDS) & set(model_options(name))
