"""Options are described once; their values are converted and checked wherever they come from."""

import math
import re
from dataclasses import dataclass

import pytest

from turnwise.errors import InputError, require
from turnwise.models import create_model, list_models, registry
from turnwise.options import (
    Options,
    convert,
    describe,
    from_plain,
    option,
    parse_value,
    rename_aliases,
    to_plain,
)


@dataclass(frozen=True)
class Fan(Options):
    speed: float = option(1.0, "revolutions per second", above=0)
    blades: tuple[int, ...] = option((3, 3), "blades of each fan", at_least=1, aliases=("vanes",))
    mode: str = option("auto", "who decides", choices=("auto", "manual"), changes_output=False)
    limit: float | None = option(None, "largest speed", at_least=1, at_most=10)

    def validate(self) -> None:
        require(self.limit is None or self.speed <= self.limit, "speed is above the limit.")


@dataclass(frozen=True)
class Machine(Options):
    name: str = option(help="what it is called")
    fan: Fan = option(Fan, "how it is cooled")


@dataclass(frozen=True)
class QuietFan(Fan):
    noise: int = option(0, "decibels", at_least=0, below=20)


def test_values_are_converted_to_the_declared_types():
    fan = Fan(speed=2, blades=[4], limit="3e0")
    assert fan == Fan(2.0, (4,), "auto", 3.0)
    assert isinstance(fan.speed, float) and isinstance(fan.blades, tuple)


def test_numbers_that_yaml_reads_as_text_are_numbers():
    assert convert(float, parse_value("1e-3", "speed"), "speed") == 0.001


def test_none_is_allowed_only_where_the_type_has_it():
    assert Fan(limit=None).limit is None
    with pytest.raises(InputError, match="speed must be a number, got None"):
        Fan(speed=None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speed": 0}, r"speed = 0\.0 must be above 0\."),
        ({"speed": math.nan}, "speed = nan must be finite"),
        ({"speed": math.inf}, "speed = inf must be finite"),
        ({"speed": True}, "speed must be a number, got True"),
        ({"speed": 1e13}, "speed = 10000000000000.0 is too large; at most 1,000,000,000,000 is"),
        ({"blades": (3, 0)}, r"blades\[1\] = 0 must be at least 1\."),
        ({"blades": (3, 1.5)}, r"blades\[1\] must be a whole number, got 1\.5"),
        ({"blades": (2**40,)}, r"blades\[0\] = a huge number is too large; at most 1,048,576 is"),
        ({"blades": (1,) * 2000}, "blades has 2000 entries, more than 1024"),
        ({"blades": 3}, "blades must be a list, got 3"),
        ({"mode": "manul"}, "unknown mode 'manul'. Did you mean 'manual'"),
        ({"limit": 11}, r"limit = 11\.0 must be from 1 to 10\."),
        ({"speed": 5, "limit": 4}, "speed is above the limit"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_work(values, message):
    with pytest.raises(InputError, match=message):
        Fan(**values)


@pytest.mark.parametrize(
    ("bounds", "value", "message"),
    [
        ({"above": 0, "below": 1}, 1.0, r"x = 1\.0 must be between 0 and 1\."),
        ({"above": 0, "at_most": 1}, 2.0, r"x = 2\.0 must be above 0 and at most 1\."),
        ({"at_least": 0, "below": 1}, 1.0, r"x = 1\.0 must be from 0 to below 1\."),
        ({"at_most": 1}, 2.0, r"x = 2\.0 must be at most 1\."),
    ],
)
def test_every_kind_of_bound_is_stated(bounds, value, message):
    @dataclass(frozen=True)
    class Bounded(Options):
        x: float = option(0.5, "a number", **bounds)

    assert Bounded().x == 0.5
    with pytest.raises(InputError, match=message):
        Bounded(x=value)


def test_options_are_described_by_their_fields():
    speed, blades, mode, limit = describe(Fan)
    assert (speed.name, speed.default, speed.help) == ("speed", 1.0, "revolutions per second")
    assert (blades.aliases, mode.choices) == (("vanes",), ("auto", "manual"))
    assert [o.changes_output for o in (speed, mode)] == [True, False]
    assert limit.default is None and not limit.is_required
    assert [o.is_required for o in describe(Machine)] == [True, False]


def test_own_options_come_before_inherited_ones():
    assert [o.name for o in describe(QuietFan)] == ["noise", "speed", "blades", "mode", "limit"]


def test_the_defaults_of_an_instance_are_its_values():
    assert {o.name: o.default for o in describe(Fan(speed=3))}["speed"] == 3.0


def test_plain_values_become_options_and_plain_values_again():
    plain = {"name": "a", "fan": {"speed": 2.0, "blades": [4], "mode": "auto", "limit": None}}
    machine = from_plain(Machine, plain, "recipe")
    assert machine == Machine("a", Fan(2.0, (4,)))
    assert to_plain(machine) == plain
    assert from_plain(Machine, {"name": "a", "fan": None}, "recipe").fan == Fan()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "recipe needs 'name'"),
        ({"name": "a", "fna": {}}, "unknown recipe key 'fna'. Did you mean 'fan'"),
        ({"name": "a", "fan": {"sped": 1}}, "unknown fan key 'sped'. Did you mean 'speed'"),
        ({"name": "a", "fan": {"speed": "fast"}}, r"fan\.speed must be a number, got 'fast'"),
        ({"name": "a", "fan": 3}, "fan must have keys and values, got 3"),
        ([1], r"recipe must have keys and values, got \[1\]"),
    ],
)
def test_a_bad_mapping_is_refused_with_the_name_of_its_part(values, message):
    with pytest.raises(InputError, match=message):
        from_plain(Machine, values, "recipe")


def test_earlier_names_are_accepted():
    assert from_plain(Fan, {"vanes": [5]}, "fan").blades == (5,)
    with pytest.raises(InputError, match="fan has both 'vanes' and 'blades'"):
        rename_aliases(describe(Fan), {"vanes": [5], "blades": [6]}, "fan")


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("0.5", 0.5), ("true", True), ("[1, 2]", [1, 2]), ("a b", "a b")]
)
def test_the_text_of_a_setting_is_read_as_yaml(text, value):
    assert parse_value(text, "x") == value


@pytest.mark.parametrize("text", ["[", "0x_", "[" * 5000])
def test_text_that_is_not_yaml_is_refused(text):
    with pytest.raises(InputError, match="the value of 'x=' cannot be read as YAML"):
        parse_value(text, "x=")


def numeric_options():
    """Return every numeric option of every model, with the class of options that it belongs to."""
    designs = dict.fromkeys(type(registry._family(name).design) for name in list_models("[!o]*"))
    return [(d, o) for d in designs for o in describe(d) if re.search("int|float", str(o.hint))]


@pytest.mark.parametrize("extreme", [10**30, -(10**30), 1e308, -1e308, math.nan, math.inf])
def test_no_option_of_a_model_takes_an_extreme_value(extreme):
    for design, o in numeric_options():
        value = (extreme,) if "tuple" in str(o.hint) else extreme
        value = (value,) if "tuple[tuple" in str(o.hint) else value
        with pytest.raises(InputError, match=r"^[^\n]{1,300}$"):
            from_plain(design, {o.name: value}, "model")
            pytest.fail(f"{design.__name__}.{o.name} takes {extreme}")


@pytest.mark.parametrize("name", ["turnwise_vit_nano", "poolformer_s12"])
def test_a_whole_number_is_a_number(name):
    """`layer_scale=1` once left an integer parameter, which has no gradient."""
    model = create_model(name, image_size=64, layer_scale=1, drop_path=0)
    assert all(p.is_floating_point() for p in model.parameters())


def test_sizes_that_no_model_can_have_end_in_a_sentence():
    with pytest.raises(InputError, match="use fewer stages: no size works"):
        create_model("turnwise_vit_nano", depths=[1] * 200)
