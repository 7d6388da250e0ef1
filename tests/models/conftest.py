"""Golden values: what the original programs answered with made-up weights (tests/golden)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "golden"


def made_up(number, key, shape):
    """Parameter `number` of a case, by the formula that the golden answers were made with."""
    i = np.arange(np.prod(shape, dtype=int), dtype=np.float64)
    values = np.sin(1.7 * (i + 1) + 0.61 * (number + 1) + 0.05 * i * np.sin(0.3 * i))
    values *= 2.0 if "group_embedding" in key else 0.3
    values += 1.0 if key.endswith("layer_norm.weight") else 0.0
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


@pytest.fixture(scope="session")
def keys():
    """For each case the keys and shapes of its parameters and of its buffers."""
    return json.loads((GOLDEN / "keys.json").read_text())


@pytest.fixture(scope="session")
def golden_weights(keys):
    """The parameters of a case, by their original keys."""

    def make(case):
        named = enumerate(keys[case]["parameters"])
        return {key: made_up(number, key, shape) for number, (key, shape) in named}

    return make


@pytest.fixture(scope="session")
def golden():
    """An input or answer of a program, e.g. golden("ge-vit", "net_rotmnist_p4_p5.logits")."""
    answers = {origin: np.load(GOLDEN / f"{origin}.npz") for origin in ("gsa-nets", "ge-vit")}
    return lambda origin, entry: torch.from_numpy(answers[origin][entry])
