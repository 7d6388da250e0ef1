"""What every model computed before, it computes now: see recorded_models.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import recorded_models as recorded

RECORD = recorded.read_record()
CASES = {recorded.title(*case): case for case in recorded.cases()}


@pytest.mark.parametrize("case", CASES)
def test_a_model_computes_what_it_computed(case):
    assert case in RECORD, "record it: python tests/regression/recorded_models.py --write"
    assert recorded.difference(RECORD[case], recorded.measure(*CASES[case])) == ""


@pytest.mark.parametrize("name", recorded.pretrained_names())
def test_pretrained_weights_give_the_recorded_logits(name):
    measured = recorded.measure_pretrained(name)
    assert recorded.difference(RECORD[f"pretrained {name}"], measured) == ""


def test_no_model_is_gone():
    pretrained = {f"pretrained {name}" for name in recorded.pretrained_names()}
    assert set(RECORD) <= CASES.keys() | pretrained


def test_control_a_changed_weight_is_noticed():
    name, group, options = "turnwise_vit_nano", "C4", {}
    measured = recorded.measure(name, group, options)
    case = RECORD[recorded.title(name, group, options)]
    changed = {**measured, "norms": [measured["norms"][0] * (1 + 1e-9), *measured["norms"][1:]]}
    assert recorded.difference(case, measured) == ""
    largest = max(range(len(measured["norms"])), key=measured["norms"].__getitem__)
    changed = {**measured, "norms": list(measured["norms"])}
    changed["norms"][largest] *= 1 + 1e-9
    assert "norms" in recorded.difference(case, changed)
    assert "keys" in recorded.difference(case, {**measured, "keys": measured["keys"][1:]})
