"""0 where a certificate still holds, 1 where it does not, 2 where it cannot be asked."""

import json
import textwrap

import pytest
import torch

from turnwise.models import create_model, load, save

SMALL = ("width=16", "depth=1", "heads=2", "patch=7")
QUICK = ("--pictures", 3, "--angles", 2)


def test_a_run_whose_certificate_still_holds(turnwise, run):
    assert turnwise("certify", run, *QUICK)[0] == 0
    status, said, _ = turnwise("verify", run / "certificate.json")
    assert status == 0
    assert said.startswith(f"{run} under C4, certified ")
    assert said.endswith("\nSTILL HOLDS\n")


def test_weights_that_were_changed(turnwise, run):
    turnwise("certify", run, *QUICK)
    model = load(run)
    with torch.no_grad():
        model.model.head.bias += 1
    save(model, run / "model")
    status, said, _ = turnwise("verify", run / "certificate.json")
    assert status == 1
    assert "- the weights are not those that were certified\n" in said
    assert said.endswith("\nDOES NOT HOLD\n")


def test_a_refusal_does_not_hold(turnwise, empty_place):
    turnwise("certify", "vit", *SMALL, *QUICK, "--output", "c.json")
    status, said, _ = turnwise("verify", "c.json")
    assert status == 1
    assert "its figures do not show invariance under C4" in said


def test_the_model_may_be_elsewhere(turnwise, empty_place):
    options = {"width": 16, "depth": 1, "heads": 2, "patch": 7}
    save(create_model("orbit_vit", group="C4", **options), "net")
    turnwise("certify", "net", *QUICK, "--output", "c.json")
    (empty_place / "net").rename(empty_place / "moved")
    assert turnwise("verify", "c.json", "--target", "moved")[0] == 0


def test_code_is_run_only_if_it_is_named_here(turnwise, refused, empty_place):
    (empty_place / "own_code_to_verify.py").write_text(
        textwrap.dedent("""
            import turnwise
            from torch import nn

            def net():
                return turnwise.orbit(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "C4")
        """)
    )
    named = ("own_code_to_verify:net", "--size", 8)
    assert turnwise("certify", *named, *QUICK, "--output", "c.json")[0] == 0
    assert json.loads((empty_place / "c.json").read_text())["holds"] is True
    assert "say --target own_code_to_verify:net" in refused("verify", "c.json")
    assert turnwise("verify", "c.json", "--target", "own_code_to_verify:net")[0] == 0


@pytest.mark.parametrize("content", [None, "no JSON", "{}"])
def test_what_is_no_certificate(refused, empty_place, content):
    if content is not None:
        (empty_place / "c.json").write_text(content)
    assert "c.json" in refused("verify", "c.json")
