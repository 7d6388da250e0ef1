"""The verdict of a certificate, its JSON and schema, and files of the earlier format."""

import copy
import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import torch

import turnwise
from turnwise.errors import InputError
from turnwise.evaluation import Scope, certify
from turnwise.evaluation.certificate.certificate import (
    Control,
    ElementCheck,
    from_plain,
    read_certificate,
    schema_error,
)
from turnwise.files import to_json_value, write_json
from turnwise.models import create_model

SMALL = {"width": 16, "depth": 1, "heads": 2, "image_size": 8}
OLD = Path(__file__).parents[2] / "regression" / "version_0_1_0" / "flagship" / "certificate.json"


@pytest.fixture(scope="module")
def certificate():
    model = create_model("orbit_vit", group="D4", **SMALL)
    images, scope = torch.rand(3, 1, 8, 8), Scope(sizes=(8, 10))
    return certify(
        model, "D4", images, target="mine", images_from="noise", angles=3, scope=scope,
        original=("copy", model),
    )  # fmt: skip


@pytest.fixture(scope="module")
def failed():
    """A certificate of a plain model, which has every optional part."""
    model, images = create_model("vit", **SMALL), torch.rand(3, 1, 8, 8)
    scope = Scope(sizes=(8, 10))
    return certify(model, "C4", images, angles=2, scope=scope, original=("copy", model))


def as_json(certificate):
    return json.loads(json.dumps(to_json_value(certificate.plain()), allow_nan=False))


@pytest.mark.parametrize(
    ("double", "single", "holds"),
    [
        (1e-10, 1e-4, True),
        (2e-10, 0.0, False),
        (0.0, 2e-4, False),
        (math.nan, 0.0, False),
        (0.0, math.nan, False),
        (math.inf, 0.0, False),
        (None, 1e-4, True),
        (None, None, False),
    ],
)
def test_an_element_holds_within_its_tolerances(double, single, holds):
    assert ElementCheck(1, "rotate by 90°", float64=double, float32=single).holds is holds


@pytest.mark.parametrize(
    ("change", "holds"),
    [(0.5, True), (2e-6, True), (1e-6, False), (0.0, False), (math.nan, False), (math.inf, False)],
)
def test_a_control_passes_if_the_output_changes_visibly(change, holds):
    assert Control("any", change).holds is holds


def test_the_verdict_needs_every_part(certificate):
    assert certificate.holds
    for part in ("elements", "controls"):
        assert not replace(certificate, **{part: ()}).holds
    broken = replace(certificate.elements[1], float64=1e-9)
    assert not replace(certificate, elements=(broken,)).holds
    assert not replace(certificate, controls=(Control("any", 0.0),)).holds
    assert not replace(certificate, original=replace(certificate.original, change=1.0)).holds
    assert not replace(certificate, sizes=(replace(certificate.sizes[0], float64=1.0),)).holds


def test_the_claim_names_the_exact_subgroup(certificate):
    assert certificate.claim == "D4"
    finer = replace(certificate, group="D8")
    assert finer.claim == "D4, the exact subgroup of D8"


def test_the_contents(certificate):
    plain = as_json(certificate)
    assert plain["holds"] is True
    assert (plain["target"], plain["group"], plain["exact_subgroup"]) == ("mine", "D4", "D4")
    assert plain["images"] == "noise, 3 of shape (1, 8, 8)"
    assert plain["versions"].keys() == {"turnwise", "torch", "python", "platform"}
    assert plain["versions"]["turnwise"] == turnwise.__version__
    assert [e["meaning"] for e in plain["elements"]] == [e.meaning for e in certificate.elements]
    assert plain["elements"][1]["float64"] == certificate.elements[1].float64
    assert len(plain["controls"]) == len(plain["angles"]) == 3


def test_a_failure_is_written_too(failed):
    assert as_json(failed)["holds"] is False


# The schema


def test_written_certificates_fit_the_schema(certificate, failed):
    assert schema_error(as_json(certificate)) == schema_error(as_json(failed)) == ""
    plain = as_json(failed)
    assert plain["original"] is not None and plain["sizes"][1]["refusal"]
    parts = ("elements", "angles", "transformations", "worst_images", "layers")
    assert all(plain[part] for part in parts)


def test_infinite_numbers_fit_the_schema(certificate):
    element = replace(certificate.elements[1], float64=math.inf, margin=math.nan)
    assert schema_error(as_json(replace(certificate, elements=(element,), original=None))) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("holds"), "$: 'holds' is a required property"),
        (lambda p: p.update(format=1), "$.format: 3 was expected"),
        (lambda p: p.update(holds="yes"), "$.holds: 'yes' is not of type 'boolean'"),
        (lambda p: p.update(more=1), "$: Additional properties are not allowed ('more'"),
        (lambda p: p.update(group="Q4"), "$.group: 'Q4' does not match"),
        (lambda p: p.update(weights_sha256="0"), "$.weights_sha256: '0' does not match"),
        (lambda p: p["elements"][1].pop("float64"), "$.elements[1]: 'float64' is a required"),
        (lambda p: p["elements"][0].update(float32="small"), "$.elements[0].float32: 'small'"),
        (lambda p: p["elements"][0].update(element=-1), "$.elements[0].element: -1 is less than"),
        (lambda p: p["elements"][0].update(element=True), "$.elements[0].element: True is not"),
        (lambda p: p["angles"].append("45"), "$.angles[3]: '45' is not of type 'object'"),
        (
            lambda p: p["transformations"][0].update(kind="jump"),
            "$.transformations[0].kind: 'jump' is not one of",
        ),
        (lambda p: p["versions"].update(torch=2), "$.versions.torch: 2 is not of type 'string'"),
    ],
)
def test_damage_is_located(certificate, change, message):
    damaged = copy.deepcopy(as_json(certificate))
    change(damaged)
    assert schema_error(damaged).startswith(message)


def test_the_schema_is_valid():
    package = files("turnwise.evaluation.certificate")
    schema = json.loads(package.joinpath("certificate.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)


# Reading


def test_a_certificate_is_read_as_it_was_written(certificate, tmp_path):
    write_json(tmp_path / "c.json", certificate.plain())
    read, stated = read_certificate(tmp_path / "c.json")
    assert read == certificate
    assert stated is True
    assert from_plain(as_json(certificate)) == certificate


def test_infinite_numbers_are_read_as_they_were_written(certificate, tmp_path):
    broken = replace(certificate.elements[1], float64=math.inf)
    write_json(tmp_path / "c.json", replace(certificate, elements=(broken,)).plain())
    read, stated = read_certificate(tmp_path / "c.json")
    assert read.elements[0].float64 == math.inf
    assert stated is read.holds is False


@pytest.mark.parametrize("content", ["", "[1, 2]", "not JSON", '{"format": 1}'])
def test_a_file_that_is_no_certificate_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(InputError, match=r"c\.json (cannot be read|is no certificate)"):
        read_certificate(tmp_path / "c.json")


def test_a_certificate_of_version_0_1_0_is_read_in_the_present_words():
    read, stated = read_certificate(OLD)
    old = json.loads(OLD.read_text())
    assert stated is read.holds is True
    assert (read.exact_subgroup, read.weights_sha256) == ("C4", old["weights_sha256"])
    assert [e.meaning for e in read.elements] == [
        "identity", "rotate by 90°", "rotate by 180°", "rotate by 270°",
    ]  # fmt: skip
    assert [e.float64 for e in read.elements] == [e["float64"] for e in old["elements"]]
    assert [t.change for t in read.transformations] == [m["change"] for m in old["moves"]]
    assert {t.kind for t in read.transformations} == {"reflection", "shift"}
    assert [w.image for w in read.worst_images] == [w["picture"] for w in old["worst"]]
    assert [c.threshold for c in read.controls] == [c["visible"] for c in old["controls"]]
    assert [c.output_error for c in read.layers] == [c["error"] for c in old["layers"]]
    assert schema_error(as_json(read)) == ""
    texts = json.dumps({k: v for k, v in as_json(read).items() if k not in ("request", "layers")})
    assert not any(word in texts for word in ("picture", "mirror", "turn by", "answer"))


def test_notebooks_show_the_verdict_and_every_element(certificate, failed):
    shown = certificate._repr_html_()
    assert f"{certificate.target}: invariant under {certificate.group}" in shown
    assert shown.count("<tr>") == 1 + len(certificate.elements) + len(certificate.controls)
    assert "FAILS" not in shown
    assert "NOT invariant" in failed._repr_html_() and "FAILS" in failed._repr_html_()
