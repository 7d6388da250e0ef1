"""Golden values: the outputs of the original programs for made-up weights (tests/golden)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "golden"


def made_up(number, key, shape):
    """Return parameter `number` of a case, by the formula behind the golden outputs."""
    i = np.arange(np.prod(shape, dtype=int), dtype=np.float64)
    values = np.sin(1.7 * (i + 1) + 0.61 * (number + 1) + 0.05 * i * np.sin(0.3 * i))
    values *= 2.0 if "group_embedding" in key else 0.3
    values += 1.0 if key.endswith("layer_norm.weight") else 0.0
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


@pytest.fixture(scope="session")
def keys():
    """Return the keys and shapes of the parameters and buffers of each case."""
    return json.loads((GOLDEN / "keys.json").read_text())


@pytest.fixture(scope="session")
def golden_weights(keys):
    """Return a function that makes the parameters of a case, by their original keys."""

    def make(case):
        named = enumerate(keys[case]["parameters"])
        return {key: made_up(number, key, shape) for number, (key, shape) in named}

    return make


@pytest.fixture(scope="session")
def golden():
    """Return a function that gives an input or output of a program by its name.

    For example golden("ge-vit", "net_rotmnist_p4_p5.logits").
    """
    arrays = {origin: np.load(GOLDEN / f"{origin}.npz") for origin in ("gsa-nets", "ge-vit")}
    return lambda origin, entry: torch.from_numpy(arrays[origin][entry])
