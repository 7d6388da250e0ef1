"""Recipes are read, completed, overridden and checked; errors suggest what would work."""

import pytest
import yaml

from turnwise.errors import InputError
from turnwise.models import create_model, model_options
from turnwise.training.recipe import OptimisationPart, make_recipe, read_recipe

SMALL = {"model": {"name": "vit", "width": 16}, "data": {"name": "digits"}}


def test_defaults_are_filled_in():
    recipe = make_recipe(SMALL)
    assert recipe.model.options == {"width": 16}
    assert recipe.optimisation.optimiser == "adamw"
    assert recipe.data.augment.rotation == 0
    assert recipe.seed == 0


def test_a_written_recipe_is_read_back(tmp_path):
    recipe = make_recipe(SMALL, ["data.augment.shift=2", "optimisation.ema=0.99", "seed=3"])
    (tmp_path / "r.yaml").write_text(recipe.yaml())
    again = read_recipe(tmp_path / "r.yaml")
    assert again.plain() == recipe.plain()
    assert again.yaml() == recipe.yaml()


@pytest.mark.parametrize("name", ["vit", "performer", "group_performer", "orbit_gsa_net"])
def test_a_written_recipe_holds_the_defaults_of_the_model(tmp_path, name):
    """It builds the same model when it is read, though tuples are lists there."""
    recipe = make_recipe({"model": {"name": name}, "data": {"name": "digits"}})
    written = yaml.safe_load(recipe.yaml())["model"]
    assert set(written) == {"name", "group", *model_options(name)}
    (tmp_path / "r.yaml").write_text(recipe.yaml())
    options = read_recipe(tmp_path / "r.yaml").model.options
    made = [create_model(name, **given).state_dict() for given in ({}, options)]
    assert [t.shape for t in made[0].values()] == [t.shape for t in made[1].values()]


def test_overrides_reach_every_level():
    recipe = make_recipe(SMALL, ["seed=7", "trainer.max_epochs=5", "data.augment.mirror=true"])
    assert (recipe.seed, recipe.trainer.max_epochs, recipe.data.augment.mirror) == (7, 5, True)
    assert "trainer" not in SMALL


@pytest.mark.parametrize("text", ["1e-3", "0.001"])
def test_numbers_that_yaml_reads_as_text_are_converted(text):
    """YAML 1.1 reads 1e-3 as text."""
    recipe = make_recipe(SMALL, [f"optimisation.learning_rate={text}"])
    assert recipe.optimisation.learning_rate == 0.001


def test_options_of_a_model_are_converted_too():
    values = SMALL | {"model": {"name": "performer"}}
    recipe = make_recipe(values, ["model.attention_dropout=1e-1"])
    assert recipe.model.options["attention_dropout"] == 0.1
    with pytest.raises(InputError, match=r"attention_dropout must be a number, got 'much'"):
        make_recipe(values, ["model.attention_dropout=much"])


def test_null_switches_an_option_off():
    assert (
        make_recipe(SMALL, ["optimisation.gradient_clip=null"]).optimisation.gradient_clip is None
    )


def test_graphs_of_several_processes_need_a_compiled_model():
    part = make_recipe(SMALL, ["trainer.cuda_graphs=true"]).trainer
    assert part.cuda_graphs
    with pytest.raises(InputError, match=r"with 2 processes needs trainer.compile; set both"):
        make_recipe(SMALL, ["trainer.cuda_graphs=true", "trainer.devices=2"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimisation.learning_rte=1", r"unknown optimisation key 'learning_rte'\. Did you mean"),
        ("optimization.ema=1", r"unknown recipe key 'optimization'\. Did you mean 'optimisation'"),
        ("model.widht=8", r"unknown option of vit 'widht'\. Did you mean 'width'"),
        ("model.name=vti", r"unknown model 'vti'\. Did you mean 'vit'"),
        ("data.augment.rotate=8", "unknown data.augment key 'rotate'. Did you mean 'rotation'"),
        ("optimisation.learning_rate=fast", "learning_rate must be a number, got 'fast'"),
        ("trainer.max_epochs=2.5", r"trainer\.max_epochs must be a whole number, got 2\.5"),
        ("trainer.max_epochs=true", r"trainer\.max_epochs must be a whole number, got True"),
        ("trainer.max_epochs=0", "max_epochs = 0 must be at least 1"),
        ("data.augment.mirror=2", r"data\.augment\.mirror must be true or false, got 2"),
        ("data.augment.rotation=200", "rotation = 200.0 must be 0 to 180 degrees"),
        ("optimisation.ema=1.5", r"ema = 1\.5 must be between 0 and 1"),
        ("optimisation.optimiser=adam", r"unknown optimiser 'adam'\. Did you mean 'adamw'"),
        ("trainer.precision=bf16", "unknown precision 'bf16'.* Known: 16-mixed, 32-true"),
        ("data=digits", "data must have keys and values, got 'digits'"),
        ("seed.x=1", "'seed' has no parts"),
        ("seed", "an override is written key=value"),
        ("seed=[", r"the value of 'seed=\[' cannot be read as YAML"),
        ("seed=-1", "seed = -1 must be from 0"),
        ("optimisation.warmup_epochs=.nan", "warmup_epochs = nan must be finite"),
        ("optimisation.warmup_epochs=-3", "warmup_epochs = -3.0 must be at least 0"),
        ("optimisation.weight_decay=-1", "weight_decay = -1.0 must be at least 0"),
        ("optimisation.learning_rate=.inf", "learning_rate = inf must be finite"),
        ("data.augment.shift=.inf", "shift = inf must be finite and not negative"),
        ("optimisation.schedule=noam", "set warmup_steps, e.g. 4000"),
        ("optimisation.warmup_steps=-1", "warmup_steps = -1 must be at least 0"),
        ("trainer.patience=0", "patience = 0 must be at least 1"),
        ("evaluation.batch_size=0", "batch_size = 0 must be at least 1"),
        ("optimisation.gradient_clip=-1", "gradient_clip = -1.0 must be above 0"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_with_what_would_work(override, words):
    with pytest.raises(InputError, match=words):
        make_recipe({**SMALL, "seed": 1}, [override])


def test_a_missing_part_is_named():
    with pytest.raises(InputError, match="recipe needs 'data'"):
        make_recipe({"model": {"name": "vit"}})
    with pytest.raises(InputError, match="model needs a name"):
        make_recipe({"model": {}, "data": {"name": "digits"}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("model: [", "expected the node content"),
        ("- a\n- b", "a recipe has the parts model, data"),
        (yaml.safe_dump({**SMALL, "sed": 1}), r"bad\.yaml: unknown recipe key 'sed'"),
        ("seed: 1\ndata: {name: digits}\nseed: 2", r"bad\.yaml: 'seed' stands twice in one part"),
        ("model: {name: vit, width: 8, width: 9}", r"'width' stands twice in one part; leave one"),
        (None, r"cannot read the recipe .*: no such file or directory\."),
    ],
)
def test_the_error_for_a_bad_file_names_it(tmp_path, content, words):
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_recipe(path)


def test_a_recipe_cannot_run_code(tmp_path):
    """YAML tags that build Python objects are refused."""
    (tmp_path / "evil.yaml").write_text("model: !!python/object/apply:os.getcwd []")
    with pytest.raises(InputError, match=r"a tag .* is not read here"):
        read_recipe(tmp_path / "evil.yaml")


def test_the_warm_up_is_given_in_epochs_or_steps():
    with pytest.raises(InputError, match="give warmup_epochs or warmup_steps, not both"):
        OptimisationPart(warmup_epochs=1.0, warmup_steps=5)


def test_averaged_weights_in_float64_are_refused():
    with pytest.raises(InputError, match=r"ema cannot average in trainer\.precision = 64-true"):
        make_recipe(SMALL, ["optimisation.ema=0.9", "trainer.precision=64-true"])


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(InputError, match="unknown option of vit '5'"):
        make_recipe({"model": {"name": "vit", 5: 3}, "data": {"name": "digits"}})


def test_a_policy_sets_what_is_left_out(tmp_path):
    """A written recipe holds the values, so that it means the same when a policy has changed."""
    recipe = make_recipe(SMALL, ["data.augment.policy=standard", "data.augment.hue=0"])
    augment = recipe.data.augment
    assert augment.hue == 0 and augment.brightness > 0 and augment.rotation is None
    (tmp_path / "r.yaml").write_text(recipe.yaml().replace("brightness: 0.2", "brightness: 0.3"))
    assert read_recipe(tmp_path / "r.yaml").data.augment.brightness == 0.3
    with pytest.raises(InputError, match=r"data\.augment\.policy 'standart'.*standard"):
        make_recipe(SMALL, ["data.augment.policy=standart"])
