"""The published schema fits what is written, and nothing that is damaged."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from turnwise.evaluation import Scope, certify
from turnwise.evaluation.certificate.schema import certificate_schema, find_misfit
from turnwise.files import to_json_value
from turnwise.models import create_model

SCHEMA = certificate_schema()


@pytest.fixture(scope="module")
def certificate():
    model = create_model("vit", width=16, depth=1, heads=2, image_size=8)
    images = torch.rand(3, 1, 8, 8)
    return certify(
        model, "C4", images, angles=2, scope=Scope(sizes=(8, 10)), original=("twin", model)
    )


@pytest.fixture
def plain(certificate):
    return json.loads(json.dumps(to_json_value(certificate.plain())))


def misfit(value):
    return find_misfit(value, SCHEMA, SCHEMA)


def test_what_is_written_fits(plain):
    assert misfit(plain) is None
    assert plain["likeness"] is not None
    assert plain["sizes"][1]["refusal"]
    assert all(plain[part] for part in ("elements", "angles", "moves", "worst", "layers"))


def test_infinite_figures_fit(certificate):
    element = replace(certificate.elements[1], float64=float("inf"), margin=float("nan"))
    infinite = replace(certificate, elements=(element,), likeness=None)
    assert misfit(json.loads(json.dumps(to_json_value(infinite.plain())))) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.pop("holds"), ": lacks holds"),
        (lambda p: p.update(format=1), ".format: must be 2, is 1"),
        (lambda p: p.update(holds="yes"), ".holds: must be boolean, is 'yes'"),
        (lambda p: p.update(more=1), ": has more, which is unknown"),
        (lambda p: p.update(group="Q4"), ".group: must match"),
        (lambda p: p.update(weights_sha256="0"), ".weights_sha256: must match"),
        (lambda p: p["elements"][1].pop("float64"), ".elements[1]: lacks float64"),
        (
            lambda p: p["elements"][0].update(float32="small"),
            ".elements[0].float32: must be number",
        ),
        (lambda p: p["elements"][0].update(element=-1), ".elements[0].element: must be at least 0"),
        (lambda p: p["elements"][0].update(element=True), ".elements[0].element: must be integer"),
        (lambda p: p["angles"].append("45"), ".angles[2]: must be object, is '45'"),
        (lambda p: p["moves"][0].update(kind="jump"), ".moves[0].kind: must be one of"),
        (lambda p: p["versions"].update(torch=2), ".versions.torch: must be string, is 2"),
    ],
)
def test_damage_is_found_and_located(plain, change, said):
    damaged = copy.deepcopy(plain)
    change(damaged)
    assert misfit(damaged).startswith(said)


def test_the_schema_is_json_schema_and_both_checks_agree(plain):
    """Where the package jsonschema is installed, it must judge as our small check does."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = jsonschema.Draft202012Validator(SCHEMA).is_valid
    assert check(plain)
    assert not check({**plain, "group": "Q4"})
    assert not check({k: v for k, v in plain.items() if k != "layers"})


def test_a_word_that_the_check_does_not_know_is_not_passed_over():
    with pytest.raises(AssertionError, match="maximum"):
        find_misfit(3, {"maximum": 2}, SCHEMA)
