"""`turnwise train MODEL DATASET`: every spelling of an option, the help, and what is refused."""

import pytest

from turnwise.cli.main import parse
from turnwise.cli.model_flags import RUN_FLAGS, SHORTCUTS
from turnwise.errors import InputError
from turnwise.models import describe_options, list_models, model_options
from turnwise.training.recipe import make_recipe


def train(*words):
    return parse(["train", *words])


def recipe(*words):
    return make_recipe(train(*words).values)


def help_of(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        train(*words)
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], []),
        (["a.yaml", "seed=1"], ["a.yaml", "seed=1"]),
        (["folder/a"], ["folder/a"]),
        (["seed=1"], ["seed=1"]),
        (["--resume", "run"], []),
        (["--log-path", "logs", "a.yaml"], ["a.yaml"]),
        (["--log-path", "vit"], []),
        (["--output", "vit", "a.yaml", "seed=1"], ["a.yaml", "seed=1"]),
        (["--data-dir", "a", "--resume", "run", "vit"], ["vit"]),
    ],
)
def test_recipes_and_settings_are_no_model(words, settings):
    args = train(*words)
    assert args.values is None
    assert args.settings == settings


def test_a_recipe_may_be_called_like_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "performer").write_text("")
    args = train("performer", "seed=1")
    assert (args.values, args.settings) == (None, ["performer", "seed=1"])


@pytest.mark.parametrize(
    "words", [["--width", "64"], ["--width=64"], ["width=64"], ["model.width=64"]]
)
def test_every_spelling_of_an_option_means_the_same(words):
    values = train("performer", "mnist", *words).values
    assert values == {"model": {"name": "performer", "width": 64}, "data": {"name": "mnist"}}


@pytest.mark.parametrize("flag", ["--attention_dropout", "--attention-dropout"])
def test_flags_may_have_hyphens_and_underscores(flag):
    assert recipe("performer", "mnist", flag, "0.5").model.options == {"attention_dropout": 0.5}


@pytest.mark.parametrize("model", list_models())
def test_every_model_can_be_named(model):
    args = train(model, "digits", "--output", "runs/first")
    assert args.values == {"model": {"name": model}, "data": {"name": "digits"}}
    assert args.output == "runs/first"


def test_an_option_named_like_a_flag_of_the_run_has_no_dashes(capsys):
    """--output is the run folder, and output=map is what an orbit returns."""
    args = train("orbit_vit", "digits", "output=map", "--output", "runs/first")
    assert args.values["model"]["output"] == "map"
    assert args.output == "runs/first"
    text = " ".join(help_of(capsys, "orbit_vit", "--help").split())
    assert "Only as output=VALUE, without dashes: " in text
    assert "(default: auto)" in text


@pytest.mark.parametrize(
    "name", ["folder:shapes #2", "folder:a=b", "folder:Größen: alle", "x/A=b.csv"]
)
def test_a_source_of_images_may_have_any_name(name):
    assert recipe("vit", name).data.name == name


def test_every_shortcut_sets_a_key_of_the_recipe():
    values = {"group": "D4", "schedule": "constant", "group_by": "patient"}
    values |= {"layout": "group/class", "target": "ordinal", "on_error": "skip", "fit": "crop"}
    found = recipe("vit", "digits", *[f"{key}={values.get(key, 2)}" for key in SHORTCUTS])
    assert found.model.group == "D4"
    assert found.data.image_size == 2
    assert (found.data.group_by, found.data.layout) == ("patient", "group/class")
    assert (found.data.target, found.data.on_error, found.data.fit) == ("ordinal", "skip", "crop")
    assert (found.trainer.max_epochs, found.trainer.patience, found.seed) == (2, 2, 2)
    assert (found.optimisation.batch_size, found.optimisation.learning_rate) == (2, 2.0)


def test_settings_and_flags_may_come_in_any_order():
    words = ["--log_path", "logs", "mnist", "seed=1", "--exp-name=e", "trainer.devices=1"]
    args = train("performer", *words)
    assert args.values == {
        "model": {"name": "performer"}, "data": {"name": "mnist"}, "seed": 1,
        "trainer": {"devices": 1},
    }  # fmt: skip
    assert (args.log_path, args.exp_name) == ("logs", "e")


@pytest.mark.parametrize(
    "words",
    [
        ["--log-path", "logs", "performer", "mnist", "--no-projection"],
        ["--log_path=logs", "--no_projection", "Performer", "mnist"],
        ["--no_projection", "--log_path", "logs", "Performer", "mnist"],
    ],
)
def test_flags_may_come_before_the_model(words):
    args = train(*words)
    assert args.values["model"] == {"name": "performer", "kernel": "softmax"}
    assert args.log_path == "logs"


def test_a_value_may_be_given_twice_if_it_is_the_same():
    words = ["--width", "64", "dim=64", "model.width=64"]
    assert recipe("performer", "mnist", *words).model.options == {"width": 64}


def test_lists_are_read_as_yaml():
    found = recipe("group_performer", "digits", "--kernels", "[3, 3]")
    assert list(found.model.options["kernels"]) == [3, 3]


def test_a_model_is_found_by_the_name_of_its_class():
    assert recipe("RelativePerformer", "CIFAR10").model.name == "relative_performer"
    assert recipe("vit", "FashionMNIST").data.name == "fashionmnist"


@pytest.mark.parametrize("model", list_models())
def test_every_option_is_explained(model):
    assert [option.name for option in describe_options(model) if not option.help] == []


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["mnist", "--help"], ["mnist", "seed=1", "-h"]]
)
def test_help_shows_the_options_of_the_model(capsys, words):
    text = help_of(capsys, "RelativePerformer", *words)
    for option, default in model_options("relative_performer").items():
        assert f"--{option.replace('_', '-')} VALUE" in text
        assert f"(default: {default})" in " ".join(text.split())
    assert "clipping" not in text
    assert "--warmup VALUE" in text and "--log-path LOG" in text and "--no-projection" in text


@pytest.mark.parametrize("model", list_models())
def test_help_fits_a_terminal_of_80_columns(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, help_of(capsys, model, "-h").splitlines())) <= 80


def test_help_shows_the_choices(capsys):
    text = " ".join(help_of(capsys, "performer", "-h").split())
    assert "--variant VALUE exact, or tep-2021, the published program (default: exact)" in text
    assert "--kernel VALUE feature map: favor (random features), elu," in text
    assert (
        "--schedule VALUE" in text and "cosine, constant, noam, multistep (default: cosine)" in text
    )


def test_help_shows_only_the_options_of_the_model(capsys):
    clipped = help_of(capsys, "clipped_relative_performer", "-h")
    plain = help_of(capsys, "vit", "-h")
    assert "--clipping-distance" in clipped and "--no-projection" not in clipped
    assert "--patch" in plain and "--dim " not in plain


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
        (["vit", "mnist", "--dim_x", "3"], "unknown to vit: --dim_x"),
        (["vit", "mnist", "word"], "unknown to vit: word; write key=value"),
        (["vit", "mnist", "--no-projection"], "unknown to vit: --no-projection"),
        (
            ["performer", "mnist", "width=16", "--width", "32"],
            "model.width is given twice, as 32 and as 16; leave one out.",
        ),
        (["performer", "mnist", "--dim=32", "model.width=16"], "model.width is given twice"),
        (["performer", "mnist", "width=32", "width=16"], "model.width is given twice"),
        (["performer", "mnist", "data.name=digits"], "data.name is given twice, as mnist and as"),
        (["vit", "mnist", "data=3"], "unknown option of vit 'data'"),
        (["vit", "mnist", "seed=1", "seed.x=3"], "'seed' has no parts, so 'seed.x' cannot be set"),
        (["vit", "mnist", "seed.x=3", "seed=1"], "'seed' has parts, and is no value itself"),
        (["performer", "mnist", "--width", "32", "--width=16"], "model.width is given twice"),
        (["performer", "mnist", "--dim", "32", "--width=16"], "model.width is given twice"),
    ],
)
def test_a_wrong_command_is_refused(words, message):
    with pytest.raises(InputError) as error:
        train(*words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_word_means_two_things():
    for model in list_models():
        assert not {*SHORTCUTS, *RUN_FLAGS} & set(model_options(model)) - {"output", "group"}
